"""What the system refuses to write is told by name, and costs that file alone. The refusals are the kernel's own."""

import asyncio
import json
import os
import pickle
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from typer.testing import CliRunner

from fsm.config.setup import set_up
from fsm.core import Core
from fsm.errors import ConfigError
from fsm.events import Begin
from runtime.checkpoints.checkpoint import staging
from runtime.cli.app import app
from runtime.control.messages import Message, Notice
from runtime.control.run_recorder import RunRecorder
from runtime.files import FileNotWritten, write_json_aside, writing
from runtime.launch.driving import Heard, outcome_without_controller
from runtime.launch.model import prepare_model
from runtime.launch.preflight import output_problems
from runtime.metrics.accumulator import StepMeter
from runtime.metrics.writers import MOST_WAITING, SAMPLES_FILE, JsonlWriter, SamplesWriter, close_writers, open_writers
from runtime.samples.book import SampleBook
from runtime.settings import load_settings
from runtime.trace.files import make_header
from runtime.trace.moment import state_at
from runtime.trace.notes import AnswerWasLate, NotWritten
from runtime.trace.reader import open_trace
from runtime.trace.records import NoteRecord
from runtime.trace.replay import replay
from runtime.trace.writer import Trace, TraceConfig, TraceFailed
from tests.runtime.bookkeeping import config_of, random_moves
from tests.runtime.control.fakes import FakeFleet, FakeTrainer, Run
from tests.runtime.trace.helpers import open_for, traced_world

CONTROL_CONFIG: dict[str, Any] = {
    "grpo": {"num_prompts_per_step": 2, "num_generations_per_prompt": 2},
    "async_rl": {"sampler": {"name": "in_order", "max_lookahead_versions": 1}},
}


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """The kernel refuses every write of this process beyond so many bytes of a file (EFBIG)."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def lines_of(path: Path) -> list[dict[str, Any]]:
    text = path.read_text(encoding="utf-8")
    assert text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


def test_an_error_names_the_file_the_reason_and_what_is_kept_and_crosses_processes(tmp_path: Path) -> None:
    with pytest.raises(FileNotWritten) as refused, writing(tmp_path / "x", "the rest is kept"):
        Path("/dev/full").write_text("much", encoding="ascii")
    assert str(refused.value) == f"{tmp_path}/x could not be written: No space left on device; the rest is kept"
    back = pickle.loads(pickle.dumps(refused.value))
    assert (str(back), back.path, back.reason) == (str(refused.value), tmp_path / "x", "No space left on device")


def test_metrics_that_were_refused_are_written_once_the_disk_takes_them(tmp_path: Path) -> None:
    writer = JsonlWriter(tmp_path / "metrics.jsonl")
    writer.write("step", {"step": 0})
    with files_up_to((tmp_path / "metrics.jsonl").stat().st_size + 5):
        for step in (1, 2):
            with pytest.raises(FileNotWritten, match=r"metrics\.jsonl could not be written: File too large"):
                writer.write("step", {"step": step})
        assert [line["step"] for line in lines_of(tmp_path / "metrics.jsonl")] == [0]
    writer.write("step", {"step": 3})
    writer.close()
    assert [line["step"] for line in lines_of(tmp_path / "metrics.jsonl")] == [0, 1, 2, 3]


def test_metrics_that_stay_refused_are_counted_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    writers = open_writers(tmp_path, config={})
    with pytest.raises(FileNotWritten, match="No space left on device; the run continues"):
        writers[0].write("step", {"step": 0})
    with pytest.raises(FileNotWritten, match="it lacks its last 1 line, and"):
        close_writers(writers)


def test_samples_that_a_full_disk_refuses_wait_and_the_oldest_of_too_many_are_left_out(tmp_path: Path) -> None:
    writer = SamplesWriter(tmp_path / SAMPLES_FILE)
    writer.show_samples(0, [{"kind": "sample", "step": 0}])
    with files_up_to((tmp_path / SAMPLES_FILE).stat().st_size + 5):
        for step in range(1, MOST_WAITING + 3):
            with pytest.raises(FileNotWritten, match=r"samples\.jsonl could not be written: File too large"):
                writer.show_samples(step, [{"kind": "sample", "step": step}])
        assert [line["step"] for line in lines_of(tmp_path / SAMPLES_FILE)] == [0]
    writer.show_samples(5_000, [{"kind": "sample", "step": 5_000}])
    writer.close()
    steps = [line["step"] for line in lines_of(tmp_path / SAMPLES_FILE)]
    assert steps == [0, *range(4, MOST_WAITING + 3), 5_000]


def test_half_a_line_that_a_killed_writer_left_is_ended(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"kind": "st')
    writer = JsonlWriter(tmp_path / "metrics.jsonl")
    writer.write("step", {"step": 0})
    writer.close()
    assert (tmp_path / "metrics.jsonl").read_text() == '{"kind": "st\n{"kind": "step", "step": 0}\n'


def test_tensorboard_and_metrics_that_can_t_be_opened_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").mkdir()
    with pytest.raises(FileNotWritten, match="a file is expected, but it is a directory"):
        open_writers(tmp_path, config={})


def test_refused_metrics_are_told_once_and_the_run_goes_on(tmp_path: Path) -> None:
    told: list[Message] = []
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    setup = set_up(config_of(), 24)
    with open_for(tmp_path / "trace.jsonl") as trace:
        writer = JsonlWriter(tmp_path / "metrics.jsonl")
        recorder = RunRecorder(StepMeter(setup.limits, time.monotonic()), [writer], trace, told.append)
        recorder.core = Core(setup, observer=recorder.observe)
        recorder.core.apply(Begin())
        for _ in range(3):
            recorder._write("step", {"step": 0})
        with pytest.raises(FileNotWritten, match="it lacks its last 3 lines, and"):
            writer.close()
    said = [message.text for message in told if isinstance(message, Notice)]
    assert len(said) == 1
    assert "metrics.jsonl could not be written: No space left on device" in said[0]
    notes = [record.note for record in open_trace(tmp_path).records() if isinstance(record, NoteRecord)]
    assert NotWritten(str(tmp_path / "metrics.jsonl"), "No space left on device") in notes


def test_every_line_of_metrics_says_which_process_of_the_run_wrote_it(tmp_path: Path) -> None:
    setup = set_up(config_of(), 24)
    with open_for(tmp_path / "trace.jsonl") as trace:
        writer = JsonlWriter(tmp_path / "metrics.jsonl")
        samples = SampleBook(0, 3, 7)
        recorder = RunRecorder(StepMeter(setup.limits, time.monotonic()), [writer], trace, lambda _: None, samples)
        recorder._write("step", {"step": 7})
        writer.close()
    line = json.loads((tmp_path / "metrics.jsonl").read_text())
    assert (line["step"], line["incarnation"]) == (7, 3)


def trace_of(path: Path, refused: list[FileNotWritten], **options: Any) -> Trace:
    header = make_header(config_of(), num_prompts=10**6, seeds={})
    return Trace(
        path, header, TraceConfig(**{"snapshot_every": 10, "flush_interval_s": 1.0, **options}), refused.append
    )


def test_a_refused_trace_is_told_once_ends_there_and_its_memory_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    refused: list[FileNotWritten] = []
    with trace_of(path, refused) as trace:
        world = traced_world(trace, "in_order", 10**6)
        random_moves(world, 3, 30)
        trace.flush()
        whole = trace.records
        with files_up_to(path.stat().st_size + 100):
            for seed in (4, 5):
                random_moves(world, seed, 30)
                trace.flush()
        random_moves(world, 6, 5)
        (tmp_path / "live.ring-1.jsonl").write_text("".join(trace.memory()), encoding="ascii")
    assert [error.path for error in refused] == [path]
    assert "the run goes on, its trace ends there" in str(refused[0])
    result = replay(path)
    assert result.difference is None
    assert result.last_seq >= whole - 1
    now = state_at(open_trace(tmp_path / "live.ring-1.jsonl"))
    assert now.core.state == world.core.state


def test_a_trace_whose_next_part_is_refused_keeps_the_parts_before(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    refused: list[FileNotWritten] = []
    with trace_of(path, refused, max_bytes=30_000, compress=False) as trace:
        world = traced_world(trace, "in_order", 10**6)
        random_moves(world, 3, 30)
        trace.flush()
        assert trace._file is not None
        with files_up_to(1_000), pytest.raises(OSError, match="File too large") as full:  # less than a header
            trace._rotate(trace._file)
        trace._refused(full.value)
        random_moves(world, 4, 30)
    assert len(refused) == 1
    assert replay(path).difference is None


def test_a_part_that_can_t_be_compressed_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    refused: list[FileNotWritten] = []
    (tmp_path / f".trace.jsonl.1.gz.tmp-{os.getpid()}").mkdir()  # where it would be packed
    trace = trace_of(path, refused, max_bytes=10_000)
    world = traced_world(trace, "in_order", 10**6)
    for seed in range(100):
        random_moves(world, seed, 5)
        trace.flush()
    trace.close()
    assert [error.path.name for error in refused] == ["trace.jsonl.1.gz"]
    assert (tmp_path / "trace.jsonl.1").exists()
    assert replay(path).difference is None


def test_a_trace_that_nobody_is_told_of_raises(tmp_path: Path) -> None:
    trace = open_for(tmp_path / "trace.jsonl")
    with files_up_to(10):
        trace.note(AnswerWasLate())
        with pytest.raises(TraceFailed, match="File too large"):
            trace.flush()
    with pytest.raises(TraceFailed):
        trace.close()


def test_a_dump_that_is_refused_is_told_and_stops_nothing(tmp_path: Path) -> None:
    told: list[Message] = []
    refused: list[FileNotWritten] = []
    setup = set_up(config_of(), 24)
    with trace_of(tmp_path / "trace.jsonl", refused) as trace:
        recorder = RunRecorder(StepMeter(setup.limits, time.monotonic()), (), trace, told.append)
        recorder.core = Core(setup, observer=recorder.observe)
        recorder.core.apply(Begin())
        with files_up_to(10):
            assert recorder.dump_trace() is None
            assert recorder.recent_trace().startswith(b'{"format"')
    assert len(refused) == 1
    assert any("its last records stay in memory" in message.text for message in told if isinstance(message, Notice))


def test_a_checkpoint_that_is_refused_leaves_the_last_one_and_no_half(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-000001-step-00000004").mkdir()
    with (
        files_up_to(1_000),
        pytest.raises(FileNotWritten, match="no checkpoint was added, and checkpoint-000001-step-00000004 stays"),
        staging(tmp_path) as staged,
    ):
        save_file({"weights": np.zeros(10_000, np.float32)}, staged / "model.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-000001-step-00000004"]


def test_a_model_that_can_t_be_written_at_the_start_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    settings = load_settings(None, ["warmup.steps=1"])
    with (
        files_up_to(1_000),
        pytest.raises(FileNotWritten, match=r"model could not be written: .*the run has not begun"),
    ):
        prepare_model(settings, tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [FileNotWritten(Path("trace.jsonl"), "No space left", "x"), ConfigError("no module")])
def test_what_an_actor_refuses_before_the_run_begins_is_a_refusal(error: Exception) -> None:
    with pytest.raises(ConfigError, match=f"the run cannot start: {error}"):
        outcome_without_controller(Heard(1.0), error, None)


def test_a_run_whose_checkpoint_is_refused_goes_on_and_writes_the_next(tmp_path: Path) -> None:
    trainer = FakeTrainer()
    trainer.full_disk = {2}
    run = Run(CONTROL_CONFIG, 8, FakeFleet(), trainer, checkpoint_every=2)
    asyncio.run(run.go())
    assert run.core.error is None
    assert run.recorder.checkpoints[-1] == 4
    assert 2 not in run.recorder.checkpoints
    assert run.pumps.checkpoints.lost == 1
    assert ("checkpoint", 2, "ended") in run.recorder.calls
    [error] = run.recorder.refused
    assert str(error).endswith("no checkpoint was added; the run continues, and tries again between later steps")
    [notice] = run.recorder.notices
    assert notice.startswith("checkpoints can be written again")


@pytest.mark.parametrize(
    ("name", "is_folder"), [("metrics.jsonl", True), ("config.yaml", True), ("checkpoints", False), ("model", False)]
)
def test_a_name_that_a_resumed_run_can_t_write_to_is_refused_at_the_start(
    name: str, is_folder: bool, tmp_path: Path
) -> None:
    (tmp_path / "checkpoints" / "checkpoint-000001-step-00000004").mkdir(parents=True)
    if name == "checkpoints":
        (tmp_path / name / "checkpoint-000001-step-00000004").rmdir()
        (tmp_path / name).rmdir()
    if is_folder:
        (tmp_path / name).mkdir()
    else:
        (tmp_path / name).write_text("", encoding="ascii")
    assert any(problem.startswith(f"{tmp_path / name} is not") for problem in output_problems(tmp_path, resume=True))
    result = CliRunner().invoke(app, ["train", "--resume", "--output", str(tmp_path)])
    assert result.exit_code == 2
    assert f"{tmp_path / name} is not" in result.output
    assert "Traceback" not in result.output


def test_a_summary_that_is_a_directory_is_refused_before_the_run(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["train", "--summary", str(tmp_path)])
    assert result.exit_code == 2
    assert "a file is expected, but it is a directory, which would be replaced" in " ".join(result.output.split())


def test_a_refused_summary_leaves_the_one_that_was_there(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    write_json_aside(path, {"steps": 1})
    with files_up_to(5), pytest.raises(FileNotWritten), writing(path, "it is printed"):
        write_json_aside(path, {"steps": 2, "more": "x" * 100})
    assert json.loads(path.read_text(encoding="utf-8")) == {"steps": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["summary.json"]
