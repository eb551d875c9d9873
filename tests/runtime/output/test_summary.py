"""The end of a run: the summary's keys, what is printed, and peak memory."""

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from runtime.checkpoints.origin import Origin
from runtime.checkpoints.resume import ResumePoint
from runtime.control.messages import Outcome, Start
from runtime.files import write_json_aside
from runtime.launch import machine
from runtime.launch.machine import PeakMemory, process_tree_bytes
from runtime.launch.processes import process_tree
from runtime.launch.run import RunResult, places_of, summary_of
from runtime.output.card import of_whole_run
from runtime.output.summary import Summary, closed_steps, print_summary
from runtime.settings import load_settings
from runtime.trace.notes import Status
from specs.scenarios.file import BalanceExpectation
from tests.runtime.bookkeeping import config_of, random_moves, world_of


def finished(sampler: str = "ready_first", *, resumed_at: int | None = None, **changes: Any) -> Summary:
    world = world_of(config_of(sampler), 40)
    random_moves(world, 3, 10_000)
    assert world.status == "completed"
    given: dict[str, Any] = {
        "accuracy_by_set": {"validation": {"before": 0.125, "after": 0.975}},
        "closed": closed_steps(world.core),
        "balance": world.core.state.sheet.as_counts(),
        "rl_s": 80.0,
        "trace": Path("runs/a/trace.jsonl"),
    }
    outcome = Outcome("completed", None, **given | changes)
    origin = Origin("run", {}, {})
    resume = None
    if resumed_at is not None:
        resume = ResumePoint(Path("there"), {"state": {"trainer": ["idle", resumed_at]}}, origin, ())
    start = Start(40, {}, origin, resume)
    return summary_of(load_settings(None, ["seed=4"]), outcome, start, wall_s=93.20049, peak_bytes=3 * 2**29)


def printed(summary: Summary, *, terminal: bool, **given: Any) -> str:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=80, color_system=None)
    print_summary(summary, console, **{"outcome": "completed", "places": {}} | given)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_summary_has_just_the_keys_that_are_promised(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    for _ in range(2):
        write_json_aside(path, dict(finished()))
    summary = json.loads(path.read_text())
    assert list(tmp_path.rglob("*")) == [path]
    assert list(summary) == [
        *(
            "accuracy_before",
            "accuracy_after",
            "accuracy_by_set",
            "steps",
            "closed",
            "balance",
            "steps_without_tokens",
            "steps_not_applied",
            "wall_s",
            "rl_s",
        ),
        *("peak_memory_bytes", "resumed_at", "trace", "seed", "config"),
    ]
    assert summary["steps"] == len(summary["closed"])
    assert set(summary["closed"][0]) == {"step", "selected", "charged", "short"}
    assert set(summary["balance"]) == set(BalanceExpectation.model_fields)
    assert summary["trace"] == "runs/a/trace.jsonl"


def test_closed_steps_and_balance_are_the_cores_own() -> None:
    summary = finished()
    balance = summary["balance"]
    assert sum(step["selected"] for step in summary["closed"]) == balance["trained"]
    left = sum(balance[place] for place in ("spare", "queued", "in_flight", "ready", "selected"))
    gone = sum(balance[place] for place in ("trained", "filtered", "dropped", "evicted", "aborted"))
    assert balance["leftover"] == left
    assert balance["pulled"] == left + gone


def test_plain_lines_say_what_became_of_every_prompt() -> None:
    summary = finished()
    text = printed(summary, terminal=False, places={"metrics": Path("a/metrics.jsonl"), "plot": Path("a/plot.png")})
    assert text.startswith("run completed\nheld-out accuracy 0.125 before, 0.975 after (+0.850)\n")
    assert "80.0 s of RL, 93.2 s in all, peak memory 1.50 GiB, seed 4" in text
    assert f"{summary['balance']['pulled']}  prompts taken from the data" in text
    assert "the balance sheet adds up" in text
    assert "metrics  a/metrics.jsonl\nplot     a/plot.png\n" in text
    assert "evicted" not in text


def test_after_a_resume_seconds_and_memory_are_said_to_be_of_its_steps() -> None:
    summary = finished(steps_not_applied=2, resumed_at=2)
    text = printed(summary, terminal=False)
    assert f"\n{summary['steps']} steps: " in text
    assert "\n2 steps not applied since the resume: " in text
    assert "\nsince the resume: 16 steps, 80.0 s of RL, 93.2 s in all, peak memory 1.50 GiB, seed 4" in text


def test_one_of_anything_is_singular() -> None:
    one = [{"step": 0, "selected": 1, "charged": 0, "short": 0}]
    summary = finished(closed=one, steps_without_tokens=1, steps_not_applied=1)
    text = printed(summary, terminal=False)
    assert "\n1 step: 1 group selected, 0 charged, 0 short\n" in text
    assert "\n1 step trained on no token: " in text
    assert "\n1 step not applied: " in text


def test_files_are_named_within_the_directory_as_it_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given = Path("runs/a")
    given.mkdir(parents=True)
    settings = load_settings(None, ["logger.plot=false"])
    outcome = Outcome("completed", None, trace=tmp_path / given / "trace.jsonl", model=tmp_path / given / "model/final")
    places = places_of(settings, given, outcome, print)
    assert places == {
        "metrics": given / "metrics.jsonl",
        "trace": given / "trace.jsonl",
        "model": given / "model/final",
    }
    (given / "samples.jsonl").write_text("")
    assert list(places_of(settings, given, outcome, print)) == ["metrics", "samples", "trace", "model"]
    assert places_of(settings, given, outcome, print)["samples"] == given / "samples.jsonl"


def test_each_named_set_has_its_line() -> None:
    by_set = {"greedy": {"before": 0.125, "after": 0.975}, "hard": {"before": 0.5}}
    text = printed(finished(accuracy_by_set=by_set), terminal=False)
    assert "held-out accuracy of greedy 0.125 before, 0.975 after (+0.850)\n" in text
    assert "held-out accuracy of hard 0.500 before\n" in text


def test_a_terminal_is_shown_a_table_with_every_place() -> None:
    text = printed(finished(), terminal=True)
    assert "balance sheet" in text
    assert "evicted: ready, but too stale" in text
    assert "adds up" in text


def test_a_balance_sheet_that_does_not_add_up_says_so() -> None:
    summary = finished()
    summary["balance"]["trained"] += 1
    assert "DOES NOT ADD UP" in printed(summary, terminal=False)


def test_before_is_before_the_first_step_of_a_resumed_run_and_missing_if_that_is_not_known(tmp_path: Path) -> None:
    lines = [{"kind": "validation", "step": step, "accuracy": step / 10, "set": "a"} for step in (0, 7)]
    lines += [{"kind": "validation", "step": 7, "accuracy": 0.7, "set": "b"}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    resumed = {name: {"before": 0.7, "after": 0.8} for name in "ab"}
    text = printed(finished(accuracy_by_set=of_whole_run(resumed, tmp_path)), terminal=False)
    assert "held-out accuracy of a 0.000 before, 0.800 after (+0.800)" in text
    assert "held-out accuracy of b 0.800 after\n" in text


def test_accuracy_is_left_out_where_nothing_was_held_out() -> None:
    assert "accuracy" not in printed(finished(accuracy_by_set={}), terminal=False)


def test_a_path_with_brackets_is_printed_as_it_is() -> None:
    text = printed(finished(), terminal=False, outcome="stopped: [red]why[/red]", places={"plot": Path("[bold]/p")})
    assert "run stopped: [red]why[/red]" in text
    assert "plot  [bold]/p" in text


HOG = """
import subprocess, sys
code = "held = bytearray(b'x') * 120_000_000; print('ready', flush=True); input()"
hog = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=sys.stdout)
input()
hog.communicate(b"\\n")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_peak_memory_counts_descendants_and_stays_when_they_are_gone() -> None:
    with subprocess.Popen([sys.executable, "-c", HOG], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        assert len(process_tree(child.pid)) == 2
        with PeakMemory(child.pid, interval_s=0.01) as peak:
            child.communicate(b"\n", timeout=30)
    assert peak.peak_bytes > 120_000_000
    assert peak.method == "PSS (/proc)"
    assert process_tree(child.pid) == [child.pid]


def test_without_proc_psutil_is_asked_and_the_method_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert process_tree_bytes(1)[1]
    monkeypatch.setattr(machine, "PROC", tmp_path)
    with PeakMemory() as peak:
        assert peak.method == "RSS (psutil)"
    assert peak.peak_bytes > 10_000_000
    monkeypatch.setattr(machine, "find_spec", lambda _: None)
    found, method = process_tree_bytes(1)
    assert found == 0
    assert method.startswith("nothing:")


@pytest.mark.parametrize("status", ["stopped", "completed"])
def test_a_run_that_is_stopped_tells_why_attempts_failed_and_what_to_run(status: Status) -> None:
    outcome = Outcome(status, "step 0 lost 1 group", lost=("a model",), failed_attempts="1 attempt failed: nan")
    told = RunResult(outcome, finished(), {"metrics": Path("runs/a/metrics.jsonl")}).warnings
    failed = ("1 attempt failed: nan; for all reasons run: evenstep explain runs/a",) * (status == "stopped")
    assert told == (*failed, "a model")


@pytest.mark.parametrize("status", ["completed", "interrupted", "stopped", "failed"])
def test_a_run_that_can_go_on_says_by_which_command(status: Status) -> None:
    places = {"metrics": Path("runs/a b/metrics.jsonl")}
    told = RunResult(Outcome(status, None, checkpoint=Path("c")), finished(), places).to_continue
    command = ("to continue: evenstep train --output 'runs/a b' --resume",)
    assert told == (() if status == "completed" else command)
    assert RunResult(Outcome(status, None), finished(), places).to_continue == ()
