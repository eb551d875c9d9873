"""`evenstep train`: wrong use is told before anything starts."""

import json
import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import pytest
from typer.testing import CliRunner

from fsm.errors import ConfigError
from runtime.cli.app import app
from runtime.control.messages import Message, Notice
from runtime.launch.run import run_training
from runtime.models.directory import ModelDirectoryProblem, inspect_model
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
    def no_ray(settings: Settings, *_: object) -> NoReturn:
        raise RuntimeError("no Ray here")

    monkeypatch.setattr("runtime.launch.run.run_until_it_ends", no_ray)
    told: list[Message] = []
    with pytest.raises(RuntimeError, match="no Ray here"):
        run_training(load_settings(None), tmp_path / "run", resume=None, listener=told.append)
    assert told == [Notice("checking the data, the model and the machine"), Notice("starting Ray")]
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("time.sleep(1e6)", "gave no verdict within"),
        ("os._exit(3)", "called os._exit"),
        ("sys.exit('bye')", "SystemExit"),
    ],
)
def test_a_verifier_that_hangs_or_exits_is_refused_with_exit_code_2(
    body: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bad_verifiers.py").write_text(f"import os, sys, time\ndef bad(completion, answer):\n    {body}\n")
    monkeypatch.syspath_prepend(tmp_path)
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps({"prompt": f"{n}", "answer": f"{n}"}) + "\n" for n in range(40)))
    task = f"{{name: jsonl, path: {data}, verifier: 'bad_verifiers:bad', verdict_timeout_s: 2}}"
    output = tmp_path / "run"
    result = CliRunner().invoke(app, ["train", "--output", str(output), "--set", f"data.task={task}"])
    assert result.exit_code == 2
    for part in ("the run cannot start", f"{data}:1", "'bad_verifiers:bad'", says, "bad_verifiers.py:3"):
        assert part in result.output
    assert "Traceback" not in result.output
    assert not output.exists()


@pytest.mark.parametrize(
    ("command", "block", "code"),
    [
        ("train", "async_rl: {sampler", 2),
        ("try", "async_rl: {sampler", 2),
        ("try", "data: {task", 2),
        ("check", "async_rl: {sampler", 1),
    ],
)
def test_users_code_that_cannot_be_imported_is_wrong_use_as_the_table_of_exit_codes_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, block: str, code: int
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(f"{block}: {{name: custom, target: 'no_such_module:S'}}}}\n")
    with pytest.raises(SystemExit) as ended:
        app([command, "run.yaml"])
    assert ended.value.code == code


def test_what_is_no_plain_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for arguments in ([str(fifo)], ["--summary", str(fifo)], ["--set", f"data.task={{name: jsonl, path: {fifo}}}"]):
        result = CliRunner().invoke(app, ["train", "--output", str(tmp_path / "run"), *arguments])
        assert result.exit_code == 2
        assert f"{fifo}" in result.output
        assert "a file is expected, but it is a FIFO" in result.output
    (tmp_path / "model").mkdir()
    os.mkfifo(tmp_path / "model" / "config.json")
    with pytest.raises(ModelDirectoryProblem, match="a file is expected, but it is a FIFO"):
        inspect_model(tmp_path / "model")


@pytest.mark.parametrize(
    ("name", "arguments"), [("not-begun", []), ("run.json", ["--resume"]), ("run.json", []), ("config.yaml", [])]
)
def test_a_fifo_in_the_runs_directory_is_refused_and_not_waited_for(
    tmp_path: Path, name: str, arguments: list[str]
) -> None:
    os.mkfifo(tmp_path / name)
    result = CliRunner().invoke(app, ["train", "--output", str(tmp_path), *arguments])
    assert result.exit_code == 2
    assert name in result.output or "no checkpoint" in result.output


def test_a_pipe_without_an_end_is_not_read_to_it() -> None:
    reading, writing = os.pipe()

    def write() -> None:
        with suppress(BrokenPipeError):
            while os.write(writing, b"x: 1\n" * 1000):
                pass

    writer = threading.Thread(target=write)
    writer.start()
    with pytest.raises(ConfigError, match="more than 1000000 characters"):
        load_settings(Path(f"/dev/fd/{reading}"))
    os.close(reading)
    writer.join()
    os.close(writing)
