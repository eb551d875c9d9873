"""The example of docs/migrate.md, as it is written there."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from runtime.cli.app import app
from runtime.settings import load_settings

PAGE = (Path(__file__).parents[2] / "docs/migrate.md").read_text(encoding="utf-8")


def test_the_example_of_the_page_becomes_what_the_page_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("omegaconf")
    for name, text in re.findall(r"<!-- file: (\S+) -->\n```yaml\n(.*?)```", PAGE, re.DOTALL):
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["migrate", "mine.yaml", "-o", "run.yaml"])
    assert result.exit_code == 0, result.output
    lines = {" ".join(line.replace("│", " ").split()) for line in result.stdout.splitlines()}
    [shown] = re.findall(r"<!-- shown -->\n```text\n(.*?)```", PAGE, re.DOTALL)
    told = [" ".join(line.split()) for line in shown.splitlines()]
    assert len(told) > 10
    assert [line for line in told if not any(at.startswith(line) for at in lines)] == []
    assert load_settings(Path("run.yaml")).async_rl.sampler.name == "windowed"
