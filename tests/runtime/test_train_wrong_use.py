"""`evenstep train`: wrong use is told before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pytest
from typer.testing import CliRunner

from runtime.cli import app
from runtime.messages import Message, Notice
from runtime.run import run_training
from runtime.settings import Settings, load_settings


def test_a_summary_that_could_not_be_written_is_refused_before_the_run(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["train", "--summary", str(tmp_path / "none" / "summary.json")])
    assert result.exit_code == 2
    assert "there is no directory" in result.output


def test_an_output_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    result = CliRunner().invoke(app, ["train", "--output", str(tmp_path / "file" / "run")])
    assert result.exit_code == 2
    assert str(tmp_path / "file") in result.output


def test_what_is_done_before_an_actor_can_tell_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_ray(settings: Settings) -> NoReturn:
        raise RuntimeError("no Ray here")

    monkeypatch.setattr("runtime.run.ray_session", no_ray)
    told: list[Message] = []
    with pytest.raises(RuntimeError, match="no Ray here"):
        run_training(load_settings(None), tmp_path / "run", resume=None, listener=told.append)
    assert told == [Notice("checking the data, the model and the machine"), Notice("starting Ray")]
    assert not (tmp_path / "run").exists()
