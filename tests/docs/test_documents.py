"""The documents show what the code does."""

import ast
import re
from collections import Counter
from operator import attrgetter
from pathlib import Path

import pytest

import fsm
from fsm import effects, events
from fsm.state import State
from specs.evidence.diagrams import refreshed

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    *sorted(ROOT.glob("*.md")),
    *(page for part in ("docs", "tests") for page in sorted((ROOT / part).rglob("*.md"))),
]
HEADS = {"", "word", "event", "effect"}
TERMS = (
    "prompt", "prompt group", "step", "version", "start weight", "staleness", "batch", "admission", "gate", "lookahead",
    "target step", "slot", "attempt", "in flight", "ready", "selection", "chunk", "filtered", "dropped", "lost",
    "charge", "shortfall", "spare", "spare pool", "evicted", "aborted", "exhausted", "weight sync", "class", "roster",
    "label", "incarnation", "change", "own move", "stamp", "bucket", "floor", "window", "dispatch number",
    "dispatch index", "ledger", "buffer", "budget", "backoff", "retry", "deadline", "replacement", "balance sheet",
    "left over", "outcome", "watchdog", "progress", "stalled", "deadlocked", "livelocked", "dead end", "starved",
    "snapshot", "checkpoint", "regenerated", "event", "effect", "driver", "sampler", "view", "limits", "laws", "row",
    "trace", "note", "vitals", "pump", "fleet", "verdict", "property", "fairness", "counterexample", "scenario",
    "bound", "mutant", "twin", "obligation", "late answer", "short", "assembling step", "want", "eligible",
)  # fmt: skip
"""Words of messages, traces and public names."""


def _prose(document: Path) -> str:
    """The text without its code blocks."""
    return re.sub(r"```.*?```", "", document.read_text(encoding="utf-8"), flags=re.DOTALL)


def _anchors(document: Path) -> set[str]:
    """The anchors that a page gives to its headings."""
    headings = re.findall(r"^#+ (.*)$", _prose(document), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


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
    document = (ROOT / "docs/generated/machines.md").read_text(encoding="utf-8")

    assert refreshed(document) == document, "stale: run `make docs`"
    assert document.count("stateDiagram-v2") == 8


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_to_a_heading_of_it(document):
    for target, anchor in re.findall(r"\]\((?!https?:|mailto:)([^)#]*)#?([^)]*)\)", _prose(document)):
        file = document if not target else document.parent / target
        assert file.exists(), f"{document.name} links to {target}"
        assert not anchor or anchor in _anchors(file), f"{document.name} links to {target}#{anchor}"


def test_the_readme_links_every_document():
    linked = set(re.findall(r"\]\(((?:docs/|tests/|CONTRIB)[^)#]+)", (ROOT / "README.md").read_text(encoding="utf-8")))
    assert linked >= {str(page.relative_to(ROOT)) for page in DOCUMENTS if page != ROOT / "README.md"}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_documents_cite_what_is_in_the_repository(document):
    assert "DES" + "IGN" not in document.read_text(encoding="utf-8")


def test_every_file_that_the_architecture_names_exists():
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:fsm|specs|runtime|tests|examples)/[\w/.]*)`", text))
    assert len(named) > 20
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("package", ["fsm", "specs", "runtime"])
def test_the_house_map_has_the_parts_of_each_package_in_import_order(package):
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    section = text.partition(f"**{package}**, ")[2].partition("\n\n**")[0].partition("\n\n`tests/`")[0]
    cells = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    mapped = [name.rstrip("/") for cell in cells for name in re.findall(r"`([^`]+)`", cell)]
    docstring = ast.get_docstring(ast.parse((ROOT / package / "__init__.py").read_text(encoding="utf-8")))
    assert docstring is not None
    assert mapped == re.findall(r"^ {4}(\w+) {2,}", docstring, re.MULTILINE)


def test_the_glossary_has_every_event_effect_and_term():
    text = (ROOT / "docs/glossary.md").read_text(encoding="utf-8")
    entries = {
        word.strip("` ") for cell in re.findall(r"^\| ([^|]+) \|", text, re.MULTILINE) for word in cell.split(",")
    }
    assert set(TERMS) <= entries
    for module in (events, effects):
        public = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
        assert [name for name in public if name not in entries and f"`{name}`" not in text] == []


def test_a_word_has_one_entry():
    cells = re.findall(r"^\| ([^|]+) \|", (ROOT / "docs/glossary.md").read_text(encoding="utf-8"), re.MULTILINE)
    words = [word.strip() for cell in cells for word in cell.split(",") if cell.strip("- ") not in HEADS]
    assert [word for word, times in Counter(words).items() if times > 1] == []


def test_every_public_name_of_the_core_is_there_and_sorted():
    assert fsm.__all__ == sorted(fsm.__all__)
    assert all(hasattr(fsm, name) for name in fsm.__all__)


def test_the_scenario_of_the_readme_holds(tmp_path):
    from specs.scenarios.run import run_file

    [scenario] = re.findall(r"```yaml\n(name: .*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    file = tmp_path / "readme.yaml"
    file.write_text(scenario, encoding="utf-8")

    assert run_file(file).problems == ()


def test_the_property_of_its_page_is_checked_as_the_page_says(tmp_path, monkeypatch, capfd):
    from runtime.cli.app import app

    page = ROOT / "docs/writing_a_property.md"
    [example] = _tested_blocks(page)
    (tmp_path / "my_properties.py").write_text(example, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(ROOT)
    with pytest.raises(SystemExit) as ended:
        app(["check", "examples/windowed.yaml", "--jobs", "1", "--property", "my_properties:evicts_at_most_two"])
    shown = capfd.readouterr().out.splitlines()

    assert ended.value.code == 2
    assert len(example.split("\n\n\n")[1].strip().splitlines()) <= 10
    for line in page.read_text(encoding="utf-8").partition("examples/windowed.yaml: ")[2].splitlines():
        if line == "```":
            break
        said = line.partition("at once; ")[0]
        assert line == "..." or any(said in other for other in shown), line


def test_every_field_of_the_state_that_the_page_of_properties_names_exists():
    text = (ROOT / "docs/writing_a_property.md").read_text(encoding="utf-8")
    named = set(re.findall(r"(?<![\w.])state((?:\.[a-z_]+)+)", text))
    assert named
    for path in named:
        attrgetter(path[1:])(State())
