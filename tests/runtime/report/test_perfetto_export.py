"""Trace events: what the format asks of tracks, times, nesting and flows; and what they say of the run."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fsm.events import FailureKind
from fsm.machines.prompt_group import GroupState
from runtime.cli.app import app
from runtime.report.collect import rows_of
from runtime.report.perfetto import COUNTERS, STEPS, TRAINER
from runtime.trace.notes import WorkerDied
from tests.runtime.explain.helpers import config_of, recording
from tests.runtime.report.helpers import HOSTILE, collected, wandered
from tests.runtime.trace.helpers import SAMPLERS

Event = dict[str, Any]
KEYS = {
    "M": {"pid", "name", "args"},
    "X": {"pid", "tid", "ts", "dur", "name"},
    "C": {"pid", "ts", "name", "args"},
    "i": {"pid", "tid", "ts", "name", "s"},
    "s": {"pid", "tid", "ts", "name", "cat", "id"},
    "t": {"pid", "tid", "ts", "name", "cat", "id"},
    "f": {"pid", "tid", "ts", "name", "cat", "id", "bp"},
}


def exported(path: Path) -> list[Event]:
    output = path.with_suffix(".perfetto.json")
    result = CliRunner().invoke(app, ["export", str(path), "--perfetto", str(output)])
    assert result.exit_code == 0, result.output
    events: list[Event] = json.loads(output.read_text(encoding="ascii"))["traceEvents"]
    assert f"{len(events):,} events" in result.output
    return events


def slice_at(events: list[Event], flow: Event) -> Event:
    """The innermost slice that an event of a flow is bound to."""
    within = [
        event
        for event in events
        if event["ph"] == "X"
        and (event["pid"], event["tid"]) == (flow["pid"], flow["tid"])
        and event["ts"] <= flow["ts"] < event["ts"] + event["dur"]
    ]
    assert within, f"no slice for {flow}"
    return min(within, key=lambda event: event["dur"])


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_events_have_the_keys_of_their_phase_and_come_in_order_of_time(tmp_path: Path, sampler: str) -> None:
    wandered(tmp_path / "trace.jsonl", sampler, seed=1)
    events = exported(tmp_path / "trace.jsonl")
    for event in events:
        assert event.keys() >= KEYS[event["ph"]]
    times = [event["ts"] for event in events if event["ph"] != "M"]
    assert times == sorted(times)
    assert all(type(time) is int and time >= 0 for time in times)
    assert [event["ph"] for event in events].index("X") >= sum(event["ph"] == "M" for event in events)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_every_track_is_named_once(tmp_path: Path, sampler: str) -> None:
    wandered(tmp_path / "trace.jsonl", sampler, seed=2)
    events = exported(tmp_path / "trace.jsonl")
    named = [(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"]
    processes = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert len(named) == len(set(named))
    assert {(event["pid"], event["tid"]) for event in events if event["ph"] in "Xstf"} <= set(named)
    assert {event["pid"] for event in events} == set(processes)
    assert {"steps", "trainer", "generation-0", "generation-1"} <= set(processes.values())


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_slices_of_a_track_nest_or_lie_apart(tmp_path: Path, sampler: str) -> None:
    wandered(tmp_path / "trace.jsonl", sampler, seed=3)
    tracks = defaultdict(list)
    for event in exported(tmp_path / "trace.jsonl"):
        if event["ph"] == "X":
            assert event["dur"] > 0
            tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for slices in tracks.values():
        open_until: list[int] = []
        for begun, ended in slices:
            while open_until and open_until[-1] <= begun:
                open_until.pop()
            assert not open_until or ended <= open_until[-1]
            open_until.append(ended)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_flow_goes_from_every_trained_group_to_the_step_that_trained_it(tmp_path: Path, sampler: str) -> None:
    path = tmp_path / "trace.jsonl"
    core = wandered(path, sampler, seed=4)
    events = exported(path)
    flows: dict[int, list[Event]] = defaultdict(list)
    for event in events:
        if event["ph"] in "stf":
            flows[event["id"]].append(event)
    assert len(flows) == core.state.sheet.trained
    trained = {
        row["prompt"]: row["step"]
        for row in rows_of(collected(path).attempts.rows)
        if row["state"] == GroupState.TRAINED
    }
    for flow in flows.values():
        assert [event["ph"] for event in flow] in (["s", "t", "f"], ["s", "f"])
        assert [event["ts"] for event in flow] == sorted(event["ts"] for event in flow)
        start, end = slice_at(events, flow[0]), slice_at(events, flow[-1])
        assert end["pid"] == STEPS
        assert end["name"] == f"step {trained[start['args']['prompt']]}"
        for over in flow[1:-1]:
            assert over["pid"] == TRAINER
            assert slice_at(events, over)["name"] == "training"


def test_counters_end_where_the_core_ended(tmp_path: Path) -> None:
    core = wandered(tmp_path / "trace.jsonl", "in_order", seed=5, moves=60)
    last = {event["name"]: event["args"]["value"] for event in exported(tmp_path / "trace.jsonl") if event["ph"] == "C"}
    sheet = core.state.sheet
    assert last.keys() == COUNTERS.keys()
    counted = [last[name] for name in ("in flight", "ready", "pool", "queued")]
    assert counted == [sheet.in_flight, sheet.ready, sheet.spare, sheet.queued]


def test_hostile_content_is_text_in_events_too(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    with recording(path, config_of("in_order", 2)) as run:
        run.world.fail(0, FailureKind.INFRA, HOSTILE + "x" * 1_000_000)
        run.note(WorkerDied(HOSTILE, HOSTILE))
    events = exported(path)
    [failed] = [event for event in events if "error" in event.get("args", {})]
    assert failed["args"]["error"].startswith("</script>")
    assert len(failed["args"]["error"]) < 3_000
    assert all(character.isprintable() for character in failed["args"]["error"])


def test_what_is_no_trace_is_refused_and_leaves_no_file(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no trace", encoding="ascii")
    output = tmp_path / "out.json"
    result = CliRunner().invoke(app, ["export", str(tmp_path / "notes.txt"), "--perfetto", str(output)])
    assert result.exit_code == 1
    assert "no trace of evenstep" in result.output
    assert not output.exists()
    assert CliRunner().invoke(app, ["export", str(tmp_path / "notes.txt")]).exit_code == 2


def test_a_place_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    wandered(tmp_path / "trace.jsonl", moves=10)
    output = tmp_path / "missing" / "out.json"
    result = CliRunner().invoke(app, ["export", str(tmp_path / "trace.jsonl"), "--perfetto", str(output)])
    assert result.exit_code == 2
    assert "cannot be written" in result.output
