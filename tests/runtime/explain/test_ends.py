"""W3: one outcome, told alike by explain, replay, the report, the trace and whoever asks where the run stands."""

import datetime
import fcntl
import json
import os
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fsm.core import Core
from fsm.events import FailureKind
from fsm.snapshot import snapshot
from runtime.checkpoints.checkpoint import FORMAT, MANIFEST
from runtime.cli.app import app
from runtime.control.run_recorder import RunRecorder
from runtime.explain.finding import RunVerdict
from runtime.files import write_json
from runtime.metrics.accumulator import StepMeter
from runtime.output.directory import hold
from runtime.report.collect import collect
from runtime.report.happenings import KINDS
from runtime.report.page import verdict_of
from runtime.trace.files import make_header
from runtime.trace.notes import EXIT_CODES, RunEnded, Status
from runtime.trace.reader import open_trace
from runtime.trace.records import NoteRecord
from runtime.trace.replay import replay
from runtime.trace.writer import Trace, TraceConfig
from specs.checker.closing import outlook
from tests.runtime.explain.helpers import BEGAN_UNIX_S, Recorded, config_of, explained_run, recorded, recording

ENDS: list[tuple[Status, str | None, str]] = [
    ("completed", None, "the run is completed after 1 step and waits for nothing"),
    ("stopped", "prompt 3 was given up on", "the run was stopped after 1 step: prompt 3 was given up on"),
    ("failed", "trainer-0 died", "the run failed after 1 step: trainer-0 died"),
    ("interrupted", None, "the run was interrupted after 1 step"),
]


def told(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, [*arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def end(run: Recorded, status: Status, error: str | None = None, **kept: Path) -> None:
    """As the controller's recorder does it."""
    recorder = RunRecorder(StepMeter(run.cores[-1].limits, 0.0), (), run.trace, lambda message: None)
    recorder.core = run.cores[-1]
    recorder.finish()
    assert recorder.standing().status == "ending"
    recorder.ended(status, error, kept.get("checkpoint"), kept.get("model"))
    assert recorder.standing().status == status


def ended_run(folder: Path, status: Status, error: str | None = None, **kept: Path) -> Path:
    """A run that ended after its first step. Its trace has the end both in a note and in a snapshot's vitals."""
    path = folder / "trace.jsonl"
    with recording(path, config_of("in_order", 2)) as run:
        run.commit(0, 1)
        run.close()
        end(run, status, error, **kept)
    return path


def checkpointed(folder: Path, *names: str) -> Path:
    for name in names:
        directory = folder / "checkpoints" / name
        directory.mkdir(parents=True)
        write_json(directory / MANIFEST, {"format": FORMAT, "step": 1, "files": {}})
    return folder / "checkpoints"


@pytest.mark.parametrize(("status", "error", "said"), ENDS)
def test_every_reader_of_a_trace_tells_the_same_outcome(
    status: Status, error: str | None, said: str, tmp_path: Path
) -> None:
    path = ended_run(tmp_path, status, error)
    code, output = told("explain", str(path), "--json")
    explained = json.loads(output)
    assert code == EXIT_CODES[status]
    assert explained["verdict"] == explained["status"] == status
    assert explained["error"] == error
    assert explained["waits_for"][0].startswith(said)
    assert said in told("explain", str(path))[1]
    assert replay(path).status == status
    assert said.split(" and waits")[0] in told("replay", str(path))[1]
    trace = open_trace(path)
    assert verdict_of(trace, outlook)["verdict"] == status
    found = collect(trace)
    assert found.over
    assert [KINDS[kind] for kind in found.happenings.marks["kind"]].count(status) == 1
    assert f"RunEnded status={status}" in told("trace", str(path), "--kind", "RunEnded")[1]


@pytest.mark.parametrize("status", ["stopped", "failed", "interrupted"])
def test_what_resume_goes_on_from_is_looked_up_in_the_directory(status: Status, tmp_path: Path) -> None:
    path = ended_run(tmp_path, status, checkpoint=tmp_path / "checkpoints" / "checkpoint-000001-step-00000001")
    nothing = f"there is no whole checkpoint in {tmp_path}/checkpoints, so --resume has nothing to continue from"
    assert nothing in told("explain", str(path))[1]
    assert json.loads(told("explain", str(path), "--json")[1])["resumes_from"] is None
    folder = checkpointed(tmp_path, "checkpoint-000001-step-00000005", "checkpoint-000002-step-00000003", ".tmp-x")
    newest = folder / "checkpoint-000002-step-00000003"
    assert f"--resume continues from {newest}, after 3 steps" in told("explain", str(path))[1]
    assert json.loads(told("explain", str(path), "--json")[1])["resumes_from"] == str(newest)


def test_a_trace_that_was_copied_away_is_looked_up_where_its_process_wrote_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    [newest] = checkpointed(tmp_path, "checkpoint-000001-step-00000001").iterdir()
    path = tmp_path / "copy" / "trace.jsonl"
    with recording(path, config_of("in_order", 2)) as run:
        recorder = RunRecorder(StepMeter(run.cores[-1].limits, 0.0), (), run.trace, lambda message: None)
        recorder.checkpointed(1, newest)
        end(run, "interrupted", checkpoint=newest)
    assert f"--resume continues from {newest}, after 1 step" in told("explain", str(path))[1]


def test_the_model_that_was_kept_is_named_and_told_from_one_that_is_gone(tmp_path: Path) -> None:
    model = tmp_path / "model" / "final"
    path = ended_run(tmp_path, "stopped", "a budget", model=model)
    assert f"the model was saved in {model}, which is gone" in told("explain", str(path))[1]
    model.mkdir(parents=True)
    assert f"the model is in {model}" in told("explain", str(path))[1]
    assert json.loads(told("explain", str(path), "--json")[1])["model"] == str(model)


def test_a_moment_before_the_end_is_explained_without_it(tmp_path: Path) -> None:
    path = ended_run(tmp_path, "failed", "trainer-0 died")
    [ended] = [
        record
        for record in open_trace(path).records()
        if isinstance(record, NoteRecord) and type(record.note) is RunEnded
    ]
    assert explained_run(path, seq=ended.seq).verdict is RunVerdict.FAILED
    assert explained_run(path, seq=ended.seq - 1).verdict is RunVerdict.HEALTHY


def test_an_interrupted_run_that_hung_says_what_it_hung_on_after_its_outcome(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    with recording(path, config_of("in_order", 2)) as run:
        run.commit(0)
        run.later(900.0)
        end(run, "interrupted")
    explanation = explained_run(path)
    assert (explanation.verdict, explanation.before) == (RunVerdict.INTERRUPTED, RunVerdict.STALLED)
    assert explanation.waits_for[0] == "the run was interrupted after 0 steps"
    assert explanation.waits_for[1].startswith("before that it was stalled: step 0 has 0 selected")
    assert "prompt 1 (dispatch 1" in explanation.root
    assert told("explain", str(path))[1].startswith("interrupted, stalled before   step 0")


def test_a_failure_after_the_last_step_is_a_failure_though_the_core_is_completed(tmp_path: Path) -> None:
    """As of a last validation that fails."""
    path = tmp_path / "trace.jsonl"
    with recording(path, config_of("in_order", 2, grpo={"max_num_steps": 1})) as run:
        run.commit(0, 1)
        run.close()
        assert run.world.over
        end(run, "failed", "held_out.jsonl:1: verifier raised TypeError")
    code, output = told("explain", str(path))
    assert code == 1
    assert "the run failed after 1 step: held_out.jsonl:1: verifier raised TypeError" in output


def test_a_run_that_is_killed_in_its_final_validation_or_save_is_not_completed(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    with recording(trace, config_of("in_order", 2, grpo={"max_num_steps": 1})) as run:
        run.commit(0, 1)
        run.close()
        assert run.world.over
    assert explained_run(trace).verdict is RunVerdict.COMPLETED, "an older evenstep's closed trace has no other end"
    trace.write_bytes(b"".join(trace.read_bytes().splitlines(keepends=True)[:-1]))
    says = told("explain", str(trace))[1]
    assert says.startswith("healthy")
    assert "all steps are closed; the model is being saved, or measured" in says
    (tmp_path / "run.json").write_text("{}")
    code, says = told("explain", str(tmp_path))
    assert (code, says.startswith("failed")) == (1, True), says
    assert "it was killed" in says


def test_a_run_that_failed_before_its_first_event_is_explained(tmp_path: Path) -> None:
    from runtime.trace.files import make_header, setup_of
    from runtime.trace.writer import Trace

    path = tmp_path / "trace.jsonl"
    header = make_header(config_of("in_order", 2), num_prompts=4, seeds={})
    with Trace(path, header) as trace:
        core = Core(setup_of(header))
        recorder = RunRecorder(StepMeter(core.limits, time.monotonic()), (), trace, lambda message: None)
        recorder.core = core
        recorder.ended("failed", "the first validation failed", None, None)
    code, output = told("explain", str(path))
    assert code == 1
    assert "the run failed after 0 steps: the first validation failed" in output


def test_a_stop_is_told_of_traces_that_have_no_record_of_the_end(tmp_path: Path) -> None:
    """As those of an earlier evenstep: the core's own state tells."""
    path = tmp_path / "trace.jsonl"
    config = config_of(
        "in_order", 2, failure={"max_infra_attempts_per_prompt": 1, "max_consecutive_dropped_prompts": 0}
    )
    explanation = recorded(path, config, lambda run: run.world.drop(0, FailureKind.INFRA))
    assert explanation.verdict is RunVerdict.STOPPED
    assert explanation.waits_for[0].startswith("the run was stopped after 0 steps: BudgetExceeded: ")
    code, says = told("explain", str(path))
    assert code == EXIT_CODES["stopped"]
    assert "or raise async_rl.rollout_failure.max_consecutive_dropped_prompts, which is 0" in says
    assert says.count("the run was stopped") == 1
    assert replay(path).status == "stopped"


def test_a_stop_after_data_failures_names_the_setting_that_allows_more(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    config = config_of("in_order", 2, failure={"max_data_attempts_per_prompt": 1, "max_skipped_prompts": 0})
    explanation = recorded(path, config, lambda run: run.world.drop(0, FailureKind.DATA))
    assert "names, or raise async_rl.rollout_failure.max_skipped_prompts, which is 0" in explanation.advice


def test_a_checkpoint_without_all_its_files_is_no_promise(tmp_path: Path) -> None:
    folder = checkpointed(tmp_path, "checkpoint-000001-step-00000001", "checkpoint-000002-step-00000002")
    (folder / "checkpoint-000002-step-00000002" / MANIFEST).unlink()
    path = ended_run(tmp_path, "interrupted")
    assert f"--resume continues from {folder / 'checkpoint-000001-step-00000001'}" in told("explain", str(path))[1]


def test_a_run_that_died_before_it_had_begun_has_failed_with_or_without_a_trace(tmp_path: Path) -> None:
    mark = tmp_path / "not-begun"
    mark.write_text("")
    with mark.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        code, says = told("explain", str(tmp_path))
        assert (code, "its actors are being started; ask again" in says) == (1, True)
    code, says = told("explain", str(tmp_path))
    assert (code, "the run ended before it had begun" in says) == (1, True)
    with recording(tmp_path / "trace.jsonl", config_of("in_order", 2)):
        pass
    live = tmp_path / "trace.jsonl"
    live.write_bytes(live.read_bytes().splitlines(keepends=True)[0])
    with mark.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        code, says = told("explain", str(tmp_path))
        assert (code, says.startswith("healthy")) == (0, True)
    code, says = told("explain", str(tmp_path))
    assert code == 1
    assert says.startswith("failed")
    assert "no process runs in its directory: nothing was trained" in says
    assert "the same command starts it again" in says


def test_a_run_whose_process_was_killed_has_failed_at_once_and_is_continued_from_its_checkpoint(tmp_path: Path) -> None:
    with recording(tmp_path / "trace.jsonl", config_of("in_order", 2)) as run:
        run.commit(0, 1)
        run.close()
    trace = tmp_path / "trace.jsonl"
    trace.write_bytes(b"".join(trace.read_bytes().splitlines(keepends=True)[:-1]))
    assert told("explain", str(tmp_path))[1].startswith(("healthy", "slow", "stalled")), "no lock's file tells"
    (tmp_path / "run.json").write_text("{}")
    code, says = told("explain", str(tmp_path))
    assert (code, says.startswith("failed   step 1")) == (1, True), says
    assert f"the run failed after 1 step: it was killed: no process runs in {tmp_path}, and its last record" in says
    assert "there is no whole checkpoint" in says
    assert "stalled" not in says
    checkpointed(tmp_path, "checkpoint-000001-step-00000001")
    says = told("explain", str(tmp_path))[1]
    assert f"→ evenstep train --output {tmp_path} --resume; --resume continues from {tmp_path}/checkpoints" in says
    with (tmp_path / "run.json").open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert "killed: " not in told("explain", str(tmp_path))[1]


def test_a_run_that_is_restarted_is_neither_healthy_nor_dead(tmp_path: Path) -> None:
    with recording(tmp_path / "trace.jsonl", config_of("in_order", 2)) as run:
        run.commit(0, 1)
    (tmp_path / "run.json").write_text("{}")
    being_started = f"the run in {tmp_path} is being started or restarted: it has no controller yet; ask again"
    held = hold(tmp_path)
    assert held is not None
    for command in ("status", "explain"):
        code, says = told(command, str(tmp_path))
        assert (code, being_started in says) == (1, True), says
    with (tmp_path / "run.json").open("rb") as locked:
        fcntl.flock(locked, fcntl.LOCK_EX)
        assert being_started not in told("explain", str(tmp_path))[1]
        (tmp_path / "cluster.json").write_text("{}")
        os.utime(tmp_path / "cluster.json", (2e9, 2e9))
        assert being_started in told("explain", str(tmp_path))[1]
    os.close(held)
    assert "no process runs in" in told("status", str(tmp_path))[1]


@pytest.mark.parametrize("status", ["completed", "interrupted"])
def test_a_run_that_is_ending_is_not_taken_for_one_that_starts(tmp_path: Path, status: Status) -> None:
    (tmp_path / "run.json").write_text("{}")
    held = hold(tmp_path)
    assert held is not None
    trace = ended_run(tmp_path, status)
    with (tmp_path / "run.json").open("rb") as locked:
        for between_processes in (False, True):
            fcntl.flock(locked, fcntl.LOCK_UN if between_processes else fcntl.LOCK_EX)
            code, says = told("status", str(tmp_path))
            assert code == 1
            happened = "is completed" if status == "completed" else "was interrupted"
            assert f"the run in {tmp_path} is ending: {happened} after 1 step; what it saves is saved" in says
            assert "ask again" not in says
            assert told("explain", str(tmp_path))[1].startswith(status)
    os.close(held)
    os.utime(trace, (1e9, 1e9))
    held = hold(tmp_path)  # by the command that resumes it
    for command in ("status", "explain"):
        assert "is being started or restarted" in told(command, str(tmp_path))[1]
    assert held is not None
    os.close(held)


@pytest.mark.parametrize("arguments", [("trace",), ("trace", "--step", "0")])
def test_older_traces_of_a_resumed_run_are_named_with_the_command_that_reads_them(
    arguments: tuple[str, ...], tmp_path: Path
) -> None:
    config = config_of("in_order", 2)
    with recording(tmp_path / "trace.jsonl", config) as run:
        run.commit(0, 1)
        run.close()
        saved = snapshot(run.cores[-1])
    header = make_header(config, num_prompts=64, seeds={}, snapshot=saved, incarnation=1)
    with Trace(tmp_path / "trace-1.jsonl", header, TraceConfig()):
        pass
    command, *options = arguments
    code, says = told(command, str(tmp_path), *options)
    assert code == (2 if options else 0), says
    [line] = [line for line in says.splitlines() if "an older one is trace.jsonl" in line]
    assert "begins at step 1;" in line
    assert line.endswith(" ".join([f"evenstep {command} {tmp_path / 'trace.jsonl'}", *options]))
    assert "older one" not in told(command, str(tmp_path / "trace-1.jsonl"), *options)[1]


def test_a_time_of_an_older_process_is_explained_from_its_trace(tmp_path: Path) -> None:
    config = config_of("in_order", 2)
    with recording(tmp_path / "trace.jsonl", config) as run:
        run.later(60.0)
        run.commit(0, 1)
        run.later(60.0)
        saved = snapshot(run.cores[-1])
    header = make_header(config, num_prompts=64, seeds={}, snapshot=saved, incarnation=1)
    with Trace(tmp_path / "trace-1.jsonl", header, TraceConfig()):
        pass
    at = datetime.datetime.fromtimestamp(BEGAN_UNIX_S + 30).isoformat()
    _, says = told("explain", str(tmp_path), "--at", at)
    assert f"{at} is in {tmp_path / 'trace.jsonl'}, an older trace of this run" in says
    assert "step 0 has 0 selected" in says
    assert "an older trace" not in told("explain", str(tmp_path))[1]
    assert "an older trace" not in told("explain", str(tmp_path), "--at", "+5")[1]
