"""Where a run stands: the lines, the view on a terminal, and the quiet otherwise."""

import dataclasses
import fcntl
import io
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from fsm.config.setup import set_up
from fsm.core import Core
from runtime.cli.app import app
from runtime.control.messages import Notice, StepDone
from runtime.control.run_recorder import RunRecorder
from runtime.explain.explanation import explain
from runtime.explain.finding import RunVerdict
from runtime.explain.live import NoController, NotReachable, live_lines, standing_of, standing_of_core
from runtime.launch.progress import open_progress
from runtime.metrics.accumulator import StepMeter
from runtime.metrics.writers import JsonlWriter, PrometheusWriter
from runtime.output.cluster_file import LivePlace, noted_in, place_of
from runtime.output.restart_file import restart_said
from runtime.trace.files import make_header
from runtime.trace.notes import WorkerStarted
from runtime.trace.reader import open_trace
from runtime.trace.writer import Trace
from specs.checker.closing import outlook
from specs.scenarios.world import World
from tests.runtime.explain.helpers import WORKERS, config_of

STEP: dict[str, Any] = {
    "step": 2, "time_s": 9.0, "wall_s": 4.0, "entropy": 1.5,
    "unfiltered_reward": 0.25, "reward": 0.3, "zero_variance_fraction": 0.5, "selected": 4,
    "charged": 0, "filtered_prompt_groups": 3, "staleness_mean": 0.5, "generation_tokens_per_s": 1234.0,
    "trainer_idle_share": 0.1, "trained_tokens": 100,
}  # fmt: skip


def a_world() -> World:
    config = config_of("in_order", 4, grpo={"use_dynamic_sampling": True, "max_num_steps": 9},
                       failure={"on_dropped_prompt": "replace"})  # fmt: skip
    world = World(config, 64)
    world.commit(4)
    return world


def terminal() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=150)


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_lines_say_how_the_step_fills_what_is_where_and_what_it_waits_for() -> None:
    step, places, waits = live_lines(standing_of_core(a_world().core, STEP, 0.5))
    assert step == (
        "step 0 (0 of 9 done)  0 selected + 0 charged of 4  waiting for rollouts  reward 0.25  zero variance 0.50  "
        "1234 tokens/s"
    )
    assert places == "in flight 7 of 8  ready 1  buffer 8 of 8  queued 0  pool 4  gate closed at 1"
    assert waits == (
        "waits for: step 0 has 0 selected and 0 charged of 4 and waits for 4 more, at least 4 of them eligible at once "
        "under in_order; next, one of 7 running rollouts must finish or fail"
    )


def test_a_restarted_run_says_which_restart_it_is_in_its_lines_and_in_explain_alike(tmp_path: Path) -> None:
    config = config_of("in_order", 4)
    said = restart_said(2, 3)
    assert said == "restart 2 of at most 3"
    with Trace(tmp_path / "trace.jsonl", make_header(config, num_prompts=16, seeds={}, restart=said)) as trace:
        recorder = RunRecorder(StepMeter(set_up(config, 16).limits, 0.0), (), trace, lambda message: None)
        recorder.restart = said

        def make_core(*given: Any, **named: Any) -> Core:
            recorder.core = Core(*given, **named)
            return recorder.core

        World(config, 16, observer=recorder.observe, make_core=make_core)
        assert f"  {said}" in live_lines(recorder.standing())[0]
        (tmp_path / "live.ring-1.jsonl").write_bytes(recorder.recent_trace())
    for path in (tmp_path / "trace.jsonl", tmp_path / "live.ring-1.jsonl"):
        assert f" s in, {said}\n" in CliRunner().invoke(app, ["explain", str(path)]).output
    assert explain(open_trace(tmp_path / "trace.jsonl"), outlook).as_json()["restart"] == said


def test_a_run_that_has_not_begun_is_starting_and_not_deadlocked() -> None:
    standing = standing_of_core(Core(set_up(config_of("ready_first", 4), 40)), None, 0.0)
    assert standing.status == "starting"
    assert "held-out accuracy before the first step" in live_lines(standing)[2]


def test_what_no_step_has_said_yet_is_left_open() -> None:
    step, _, _ = live_lines(standing_of_core(a_world().core, None, 75.0))
    assert step.endswith("reward –  zero variance –  – tokens/s  no progress for 75 s")


def test_a_terminal_shows_where_the_run_stands_and_the_step_that_closed_last() -> None:
    console = terminal()
    with open_progress(console, 9) as listener:
        listener(StepDone(STEP))
        listener(standing_of_core(a_world().core, STEP, 0.5))
    shown = written(console)
    assert "step 2 (3 of 9 done)" in shown
    assert "0 selected + 0 charged of 4" in shown
    assert "waits for: step 0" in shown


def test_without_a_terminal_there_is_a_line_a_step_and_no_live_view() -> None:
    console = Console(file=io.StringIO(), width=150)
    with open_progress(console, 9) as listener:
        listener(standing_of_core(a_world().core, STEP, 0.5))
        assert written(console) == ""
        listener(StepDone(STEP))
    assert written(console).startswith("step 2 (3 of 9 done)  4.0 s  reward"), "the step's own seconds"
    assert written(console).count("\n") == 1


def test_hostile_text_is_shown_as_text() -> None:
    """A custom sampler's name is in what the run waits for."""
    hostile = "custom [bold]x[/bold] \x1b[2J\u202e"
    hostile_standing = dataclasses.replace(standing_of_core(a_world().core, None, 75.0), waits_for=hostile)
    lines = live_lines(hostile_standing)
    assert "[bold]x[/bold]" in lines[2]
    assert all(character.isprintable() for line in lines for character in line)
    console = terminal()
    with open_progress(console, None) as listener:
        listener(hostile_standing)
        listener(Notice("a [red]notice[/red]"))
    assert "\x1b[2J\u202e" not in written(console)
    assert "a [red]notice[/red]" in written(console)


def test_the_recent_trace_of_a_run_explains_it_and_leaves_no_file(tmp_path: Path) -> None:
    config = config_of("in_order", 2)
    header = make_header(config, num_prompts=16, seeds={})
    with Trace(tmp_path / "trace.jsonl", header) as trace:
        sent: list[object] = []
        recorder = RunRecorder(StepMeter(set_up(config, 16).limits, 0.0), [], trace, sent.append)

        def make_core(*given: Any, **named: Any) -> Core:
            recorder.core = Core(*given, **named)
            return recorder.core

        for worker in WORKERS:
            trace.note(WorkerStarted(worker))
        world = World(config, 16, observer=recorder.observe, make_core=make_core)
        world.commit(0)
        copy = tmp_path / "copy.ring-1.jsonl"
        copy.write_bytes(recorder.recent_trace())
        assert [entry.name for entry in sorted(tmp_path.iterdir())] == ["copy.ring-1.jsonl", "trace.jsonl"]
        assert sent == []
        assert recorder.standing().ready == 1
        explanation = explain(open_trace(copy), outlook)
        assert explanation.verdict is RunVerdict.HEALTHY
        assert explanation.situation.state == world.core.state


def test_a_run_that_can_t_be_reached_is_said_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray")

    def nobody(**given: object) -> None:
        raise ConnectionError("Could not find any running Ray instance")

    monkeypatch.setattr(ray, "init", nobody)
    with pytest.raises(NotReachable, match="give the trace of the run instead"):
        standing_of("today", "auto", "evenstep")
    for command in ("status", "explain"):
        result = CliRunner().invoke(app, [command, "--run", "today"])
        assert result.exit_code == 1
        assert "Could not find any running Ray instance" in result.output


def test_prometheus_serves_where_the_run_stands_and_for_how_long_it_made_no_progress() -> None:
    writer = PrometheusWriter(0)
    try:
        writer.stands(dataclasses.asdict(standing_of_core(a_world().core, STEP, 75.0)))
        with urllib.request.urlopen(f"http://127.0.0.1:{writer.port}/metrics", timeout=10) as answer:
            served = answer.read().decode()
    finally:
        writer.close()
    for line in (
        "evenstep_now 0.0",
        "evenstep_now_in_flight 7.0",
        "evenstep_now_ready 1.0",
        "evenstep_now_idle_s 75.0",
    ):
        assert f"\n{line}\n" in served


def test_other_writers_keep_nothing_of_where_a_run_stands(tmp_path: Path) -> None:
    writer = JsonlWriter(tmp_path / "metrics.jsonl")
    writer.stands({"step": 1, "in_flight": 7})
    writer.close()
    assert (tmp_path / "metrics.jsonl").read_text() == ""


def test_status_takes_a_directory_and_says_why_no_run_is_reached_by_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_controller(*place: str) -> None:
        raise NoController(f"Failed to look up actor with name {place[0]}-controller")

    def told(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, ["status", *arguments])
        return result.exit_code, result.output

    place = LivePlace("run-1", "127.0.0.1:6379", "evenstep")
    with noted_in(tmp_path, place, print):
        assert place_of(tmp_path) == place
    assert list(tmp_path.iterdir()) == []
    code, says = told(str(tmp_path))
    assert code == 1
    assert "has no cluster.json: its run starts at this moment" in says
    (tmp_path / "run.json").write_text("{}")
    code, says = told(str(tmp_path))
    assert code == 1
    assert f"no process runs in {tmp_path}: evenstep explain {tmp_path} says how its run ended" in says
    with (tmp_path / "run.json").open("rb") as locked, noted_in(tmp_path, place, print):
        fcntl.flock(locked, fcntl.LOCK_EX)
        monkeypatch.setattr("runtime.cli.explain.standing_of", no_controller)
        code, says = told(str(tmp_path))
        assert (code, "is being started or restarted: it has no controller yet; ask again" in says) == (1, True)
        assert "Failed to look up" not in says
    for arguments in ([], [str(tmp_path), "--run", "run-1"], [str(tmp_path / "gone")]):
        assert told(*arguments)[0] == 2


def test_a_disk_that_refuses_where_a_run_is_reached_costs_the_run_nothing_else(tmp_path: Path) -> None:
    told: list[str] = []
    with noted_in(tmp_path / "gone", LivePlace("run-1", "127.0.0.1:6379", "evenstep"), told.append):
        pass
    [line] = told
    assert "cluster.json" in line
