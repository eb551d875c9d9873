"""Trace events for the Perfetto viewer, in the JSON format that it shares with Chrome.

Slices ("X") of one track must nest or lie apart, so attempts that one worker runs at once get separate tracks. A flow
("s", "t", "f" of one id) connects the slices around its events: a group's attempt, its chunk, and the step that trained
it. Times are microseconds since the trace was opened; every slice takes at least one.
"""

import heapq
import json
import math
from collections.abc import Iterable, Iterator
from typing import IO, Any, NamedTuple

from fsm.machines.prompt_group import GroupState
from fsm.machines.trainer import TrainerState
from fsm.state import NONE
from runtime.report.attempts import STATES, lanes_of
from runtime.report.collect import Collected, rows_of
from runtime.report.columns import NO_WORKER, NOT_YET
from runtime.report.happenings import KINDS, Kind
from runtime.report.phases import PHASES
from runtime.trace.show import printable

Event = dict[str, Any]
CONTROL, STEPS, TRAINER, UNPLACED, FIRST_WORKER = 1, 2, 3, 4, 10
"""Groups of tracks (the viewer's processes)."""
MAIN, CALLS = 1, 2
"""Tracks of the trainer."""
COUNTERS = {"in flight": "in_flight", "ready": "ready", "pool": "spare", "queued": "queued", "gate open": "gate"}
"""By counter of the viewer, the column that it shows."""


def events_of(collected: Collected) -> Iterator[Event]:
    """All events: names of tracks, then the rest by time; at one time the enclosing slice comes first."""
    lanes, counts = lanes_of(collected.attempts.rows, collected.ended)
    yield from _names(collected, counts)
    trained = _trained(collected, lanes)
    yield from heapq.merge(
        sorted(_steps(collected), key=_order),
        sorted(_phases(collected), key=_order),
        _calls(collected),
        _attempts(collected, lanes),
        (_flow_event("s", flow, flow.begun_us, flow.worker, flow.lane) for flow in _by(trained, "begun_us")),
        (_flow_event("t", flow, flow.training_us, TRAINER, MAIN) for flow in _by(trained, "training_us")),
        (_flow_event("f", flow, flow.closes_us, STEPS, MAIN) for flow in _by(trained, "closes_us")),
        _counters(collected),
        _marks(collected),
        key=_order,
    )


def _order(event: Event) -> tuple[int, bool, int]:
    return event["ts"], event["ph"] != "X", -event.get("dur", 0)


def write_events(collected: Collected, opened: IO[str]) -> int:
    """Write the events, and return how many there are."""
    header = {
        "displayTimeUnit": "ms",
        "otherData": {
            "trace": printable(str(collected.trace.path), widest=2_000),
            "started_unix_s": repr(collected.trace.started_unix_s),
        },
    }
    opened.write(json.dumps(header)[:-1] + ', "traceEvents": [\n')
    count = 0
    for event in events_of(collected):
        opened.write((",\n" if count else "") + json.dumps(event, separators=(",", ":"), allow_nan=False))
        count += 1
    opened.write("\n]}\n")
    return count


def _us(ms: float) -> int:
    return int(ms) * 1000


def _slice(pid: int, tid: int, begun_us: int, ended_us: int, name: str, about: Event) -> Event:
    dur = max(1, ended_us - begun_us)
    return {"ph": "X", "pid": pid, "tid": tid, "ts": begun_us, "dur": dur, "name": name, "args": about}


def _names(collected: Collected, workers: dict[int, int]) -> Iterator[Event]:
    groups = [(CONTROL, "control"), (STEPS, "steps"), (TRAINER, "trainer")]
    names = dict(enumerate(collected.attempts.workers)) | {NO_WORKER: "not placed"}
    groups += [(_process(worker), names[worker]) for worker in sorted(workers)]
    for order, (pid, name) in enumerate(groups):
        yield {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": name}}
        yield {"ph": "M", "pid": pid, "name": "process_sort_index", "args": {"sort_index": order}}
    tracks = [(STEPS, MAIN, "steps"), (TRAINER, MAIN, "phases"), (TRAINER, CALLS, "calls")]
    for worker, count in sorted(workers.items()):
        tracks += [(_process(worker), lane + 1, f"rollouts {lane + 1}") for lane in range(count)]
    for pid, tid, name in tracks:
        yield {"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": name}}
        yield {"ph": "M", "pid": pid, "tid": tid, "name": "thread_sort_index", "args": {"sort_index": tid}}


def _process(worker: int) -> int:
    return UNPLACED if worker == NO_WORKER else FIRST_WORKER + worker


def _steps(collected: Collected) -> Iterator[Event]:
    for row in rows_of(collected.steps):
        if row["begun"] == NOT_YET:
            continue
        names = ("selected", "charged", "short", "filtered", "replaced", "dropped", "evicted", "aborted")
        about = {name: row[name] for name in names}
        yield _slice(STEPS, MAIN, _us(row["begun"]), _end_us(collected, row["synced"]), f"step {row['step']}", about)


def _end_us(collected: Collected, when: float) -> int:
    return _us(collected.ended if when == NOT_YET else when)


def _phases(collected: Collected) -> Iterator[Event]:
    for row in rows_of(collected.phases.rows):
        about = {"step": row["step"]}
        yield _slice(TRAINER, MAIN, _us(row["begun"]), _us(row["ended"]), PHASES[int(row["phase"])], about)


def _calls(collected: Collected) -> Iterator[Event]:
    """Calls on one track: a call begins when the one before it has ended, if it began earlier."""
    free_us = 0
    for row in sorted(rows_of(collected.happenings.calls), key=lambda row: row["begun"]):
        name, about = collected.texts.kept[int(row["call"])], {"number": row["number"]}
        begun_us, ended_us = max(_us(row["begun"]), free_us), _end_us(collected, row["ended"])
        yield _slice(TRAINER, CALLS, begun_us, ended_us, name, about)
        free_us = max(begun_us + 1, ended_us)


def _attempts(collected: Collected, lanes: dict[int, int]) -> Iterator[Event]:
    table = collected.attempts.rows
    for number in sorted(lanes, key=lambda number: (table["begun"][number], number)):
        row = {name: column[number] for name, column in table.columns.items()}
        about: Event = {name: row[name] for name in ("prompt", "dispatch", "weight", "tokens", "rollouts", "correct")}
        about |= {"group": row["slot"], "became": STATES[row["state"]]}
        if row["finished"] and math.isfinite(row["reward"]):
            about |= {"reward": row["reward"]}
        if row["error"] != NOT_YET:
            about |= {"error": collected.texts.kept[row["error"]]}
        place = (_process(row["worker"]), lanes[number] + 1)
        ended_us = _end_us(collected, row["ended"])
        yield _slice(*place, _us(row["begun"]), ended_us, f"prompt {row['prompt']}", about)


class _Flow(NamedTuple):
    """A trained group."""

    number: int
    worker: int
    """Its group of tracks."""
    lane: int
    """Its track."""
    begun_us: int
    training_us: int
    """NONE if its chunk took no time and so has no slice."""
    closes_us: int


def _trained(collected: Collected, lanes: dict[int, int]) -> list[_Flow]:
    """Flows from an attempt's beginning to its chunk's training to the close of its step."""
    steps = {row["step"]: _within_step(collected, row) for row in rows_of(collected.steps) if row["closed"] != NOT_YET}
    phases, attempts = collected.phases.rows, collected.attempts.rows
    training = TrainerState.TRAINING
    chunks = {begun for phase, begun in zip(phases["phase"], phases["begun"], strict=True) if phase == training}
    flows = []
    for number, lane in lanes.items():
        step = attempts["step"][number]
        if attempts["state"][number] != GroupState.TRAINED or step not in steps:
            continue
        begun_us, left = _us(attempts["begun"][number]), attempts["left"][number]
        place = (_process(attempts["worker"][number]), lane + 1)
        training_us = _us(left) if left in chunks else NONE
        flows.append(_Flow(number, *place, begun_us, training_us, max(begun_us, steps[step])))
    return flows


def _by(flows: list[_Flow], when: str) -> list[_Flow]:
    place = _Flow._fields.index(when)
    return sorted((flow for flow in flows if flow[place] != NONE), key=lambda flow: (flow[place], flow.number))


def _flow_event(phase: str, flow: _Flow, ts: int, pid: int, tid: int) -> Event:
    binding = {} if phase == "s" else {"bp": "e"}
    about = {"cat": "group", "name": "trained", "id": flow.number}
    return {"ph": phase, "ts": ts, "pid": pid, "tid": tid, **about, **binding}


def _within_step(collected: Collected, step: dict[str, float]) -> int:
    """When a step closes, at least a microsecond before its slice ends."""
    end = _end_us(collected, step["synced"]) - 1
    return max(_us(step["begun"]), min(_us(step["closed"]), end))


def _counters(collected: Collected) -> Iterator[Event]:
    before: dict[str, float] = {}
    for row in rows_of(collected.counters.rows):
        for name, column in COUNTERS.items():
            if before.get(name) != row[column]:
                before[name] = row[column]
                about = {"value": row[column]}
                yield {"ph": "C", "pid": CONTROL, "ts": _us(row["t"]), "name": name, "args": about}


def _marks(collected: Collected) -> Iterable[Event]:
    for row in rows_of(collected.happenings.marks):
        if row["kind"] == Kind.CLOSED:
            continue
        name, about = KINDS[int(row["kind"])], {"said": collected.texts.kept[int(row["text"])]}
        ts = _us(row["t"])
        yield {"ph": "i", "s": "g", "pid": CONTROL, "tid": MAIN, "ts": ts, "name": name, "args": about}
