"""The documents show what the code does."""

from __future__ import annotations

import re
from pathlib import Path

from specs.evidence.diagrams import refreshed

ROOT = Path(__file__).parents[2]


def _tested_blocks(document: Path, mark: str = "tested") -> list[str]:
    text = document.read_text(encoding="utf-8")
    return re.findall(rf"<!-- {mark} -->\n```python\n(.*?)```", text, flags=re.DOTALL)


def test_the_library_example_of_the_readme_runs_in_under_thirty_lines(capsys):
    [example] = _tested_blocks(ROOT / "README.md")

    exec(compile(example, "README.md", "exec"), {})

    shown = capsys.readouterr().out
    assert len(example.splitlines()) < 30
    assert shown.count("StepClosed") == 3
    assert "the run is completed after 3 steps" in shown


def test_the_sampler_that_the_page_writes_is_about_ten_lines_and_runs(capsys, tmp_path, monkeypatch):
    page = ROOT / "docs/writing_a_sampler.md"
    [sampler], [world] = _tested_blocks(page), _tested_blocks(page, "continues")
    (tmp_path / "freshest_first.py").write_text(sampler, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)

    exec(compile(world, page.name, "exec"), {})

    assert len(sampler.splitlines()) <= 10
    assert "step 0 has 2 selected and 0 charged of 2" in capsys.readouterr().out


def test_the_diagrams_of_the_documents_are_those_of_the_tables():
    document = (ROOT / "docs/machines.md").read_text(encoding="utf-8")

    assert refreshed(document) == document, "stale: run `make docs`"
    assert document.count("stateDiagram-v2") == 8


def test_every_link_of_the_documents_leads_to_a_file():
    for document in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", document.read_text(encoding="utf-8")):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"


def test_the_scenario_of_the_readme_holds(tmp_path):
    from specs.scenarios.run import run_file

    [scenario] = re.findall(r"```yaml\n(name: .*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    file = tmp_path / "readme.yaml"
    file.write_text(scenario, encoding="utf-8")

    assert run_file(file).problems == ()
