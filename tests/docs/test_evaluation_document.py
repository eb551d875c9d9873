"""What docs/evaluation.md shows runs as it stands."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from runtime.cli.app import app
from runtime.evaluation.figures import figures_of
from runtime.settings import load_settings
from runtime.simulation.fleet import evaluation_of

DOCUMENT = (Path(__file__).parents[2] / "docs/evaluation.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", DOCUMENT, flags=re.DOTALL))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_sets_of_the_document_are_measured_by_its_command(folder: Path) -> None:
    assert set(FILES) == {"sets.yaml", "names.jsonl"}
    [command] = [line for line in DOCUMENT.splitlines() if line.startswith("$ evenstep eval tiny")]
    result = CliRunner().invoke(app, [*shlex.split(command)[2:], "--set", "warmup.steps=2"])
    assert result.exit_code == 0, result.stderr

    assert "pass@8" in result.stdout
    prompts = next(line for line in result.stdout.splitlines() if line.strip().startswith("prompts"))
    assert re.findall(r"\d+", prompts) == ["64", "4"]


def test_the_sets_of_the_document_are_those_of_a_run(folder: Path) -> None:
    found = {each.name: each for each in load_settings(folder / "sets.yaml").sets}
    assert list(found) == ["greedy", "pass8", "names"]
    assert [each.every_steps for each in found.values()] == [50, 200, 50]
    assert found["pass8"].sampling.top_p == 0.95


def test_every_field_of_a_validation_is_in_the_document() -> None:
    section = DOCUMENT.partition("## During a run")[2]
    for field in figures_of(evaluation_of()).metrics():
        assert f"`{field}`" in section, field
