"""`evenstep train`: wrong use is told before anything starts."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from runtime.cli import app


def test_a_summary_that_could_not_be_written_is_refused_before_the_run(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["train", "--summary", str(tmp_path / "none" / "summary.json")])
    assert result.exit_code == 2
    assert "there is no directory" in result.output


def test_an_output_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    result = CliRunner().invoke(app, ["train", "--output", str(tmp_path / "file" / "run")])
    assert result.exit_code == 2
    assert str(tmp_path / "file") in result.output
