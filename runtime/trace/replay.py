"""Feed a recorded run to the core of today, and compare what it does: effects and moves after every event, the state
at every snapshot.

What must hold on the way is checked by whoever calls: `runtime` knows `specs` only inside its commands.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fsm.core import AppliedEvent, Core
from fsm.effects import StepClosed
from fsm.errors import EvenstepError
from fsm.explain import status
from fsm.snapshot import reinstate, snapshot
from fsm.snapshot_form import MAY_BE_MISSING
from fsm.state import State
from runtime.trace.files import TraceUnreadable, core_of, setup_of
from runtime.trace.kinds import CODES, Json, plain, read_value
from runtime.trace.notes import RunEnded
from runtime.trace.reader import SNAPSHOT_MARK, TraceFile, open_trace
from runtime.trace.records import encode, transition_body

Check = Callable[[Core, State, AppliedEvent], str | None]
"""Given the core after a transition, the state before it and the transition: what does not hold, or None."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first record at which today's core does otherwise than the recorded one did."""

    seq: int
    what: str
    """Of what: answer, state or property."""
    event: Any
    recorded: str
    """What it did, or was, then."""
    today: str
    """Now; or why the event is refused; or what does not hold."""
    waits_for: str
    """What today's run waits for then."""

    def __str__(self) -> str:
        return (
            f"record {self.seq}: the {self.what} differs\n"
            f"  event     {json.dumps(self.event)}\n"
            f"  recorded  {self.recorded}\n"
            f"  today     {self.today}\n"
            f"  and now   {self.waits_for}"
        )


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """The outcome of a replay."""

    first_seq: int
    """Of the record that it began with."""
    last_seq: int
    """Of the last record that was the same; `first_seq` − 1 where none was."""
    events: int
    """Events that were answered as recorded, all before the difference."""
    snapshots: int
    """Snapshots that the state was equal to."""
    difference: Difference | None
    torn: bool
    """The trace ends in a torn line, which was left out."""
    status: str
    """How the run ended (`RunEnded`); of a trace without its end, what the core was doing (`fsm.explain.status`)."""
    waits_for: str
    ended: RunEnded | None
    """The outcome, where the trace has it."""
    balance: dict[str, int]
    closed: tuple[StepClosed, ...]
    """Every closed step, those before a resume included; those since its first snapshot in a trace without its
    beginning."""


def replay(path: Path, *, to: int | None = None, check: Check | None = None) -> ReplayResult:
    """Replay a trace from its beginning, or from its first snapshot where that was not kept; up to the record `to`.

    Raises TraceUnreadable, and ConfigError where the configuration or a custom sampler cannot be loaded.
    """
    return _Replay(open_trace(path), check).run(to)


class _Replay:
    """One replay, under way."""

    def __init__(self, trace: TraceFile, check: Check | None) -> None:
        self.trace = trace
        self.check = check
        self.core: Core | None = None
        self.first_seq = 0
        self.last_seq = -1
        self.events = self.snapshots = 0
        self.closed_before = 0
        """Steps closed before those that the core knows of."""
        self.ended: RunEnded | None = None
        """The outcome, once its record was reached."""
        self.transition: AppliedEvent | None = None
        """Today's, of the event applied last."""

    def run(self, to: int | None) -> ReplayResult:
        difference = None
        for line in self.trace.lines():
            given = self.trace.json_of(line)
            if to is not None and given["q"] > to:
                break
            if self.core is None and not self._begin(given):
                continue
            difference = self._step(self._started(), given, line)
            if difference is not None:
                break
            self.last_seq = given["q"]
        if self.core is None and any(True for _ in self.trace.lines()):
            raise TraceUnreadable(
                f"{self.trace.path} has neither the beginning of its run nor a snapshot: there is nothing to replay"
            )
        core = self.core or core_of(self.trace.header)  # a process that was killed before its first record
        return ReplayResult(
            first_seq=self.first_seq,
            last_seq=self.last_seq,
            events=self.events,
            snapshots=self.snapshots,
            difference=difference,
            torn=self.trace.torn,
            status=status(core.state) if self.ended is None else self.ended.status,
            waits_for=core.waits_for(),
            ended=self.ended,
            balance=core.state.tally.as_counts(),
            closed=tuple(core.book.closed),
        )

    def _begin(self, given: Json) -> bool:
        """Make the core with the first record, or with the first snapshot. False for records before that."""
        header = self.trace.header
        if given["q"] == 0:
            self.core = core_of(header, self._observe)
        elif "s" in given:
            self.core = reinstate(setup_of(header), given["s"], closed_before=given["b"], observer=self._observe)
            self.closed_before = given["b"]
        else:
            return False
        self.first_seq, self.last_seq = given["q"], given["q"] - 1
        return True

    def _started(self) -> Core:
        assert self.core is not None, "records before the beginning are passed over"
        return self.core

    def _observe(self, transition: AppliedEvent) -> None:
        self.transition = transition

    def _step(self, core: Core, given: Json, line: bytes) -> Difference | None:
        if given["q"] != self.last_seq + 1:
            raise TraceUnreadable(
                f"{self.trace.path}: record {given['q']} follows {self.last_seq}: lines are lost or doubled"
            )
        if "e" in given:
            return self._answer(core, given, line)
        if "n" in given and given["n"][0] == CODES[RunEnded]:
            self.ended = self._value(given, "n")
        return self._compare_state(core, given) if SNAPSHOT_MARK in line else None

    def _value(self, given: Json, key: str) -> Any:
        """The event or note of a line."""
        try:
            return read_value(given[key])
        except ValueError as error:
            raise TraceUnreadable(f"{self.trace.path}: record {given['q']}: {error}") from error

    def _answer(self, core: Core, given: Json, line: bytes) -> Difference | None:
        """Apply one recorded event; None where the answer is the recorded one and all properties hold."""
        before = core.state
        event = self._value(given, "e")
        try:
            core.apply(event)
        except EvenstepError as error:
            return self._differs(core, given, "answer", _did(given), f"refused, {type(error).__name__}: {error}")
        assert self.transition is not None, "a core tells its observer of every applied event"
        body = transition_body(self.transition)
        if not line.endswith(f"{body}}}\n".encode()):
            today = json.loads(f"{{{body}}}")
            if any(today.get(key, []) != given.get(key, []) for key in ("m", "f")):
                return self._differs(core, given, "answer", _did(given), _did(today))
        self.events += 1
        broken = None if self.check is None else self.check(core, before, self.transition)
        return None if broken is None else self._differs(core, given, "property", _did(given), broken)

    def _compare_state(self, core: Core, given: Json) -> Difference | None:
        today = snapshot(core)
        today["closed"] = today["closed"][given["b"] - self.closed_before :]
        recorded = given["s"]
        known = {key: today[key] for key in today if key in recorded or key not in MAY_BE_MISSING}
        today = json.loads(encode(known))
        if today == recorded:
            self.snapshots += 1
            return None
        keys = sorted(key for key in today.keys() | recorded.keys() if today.get(key) != recorded.get(key))
        shown = [json.dumps({key: which.get(key) for key in keys}) for which in (recorded, today)]
        return self._differs(core, {**given, "e": None}, "state", *shown)

    def _differs(self, core: Core, given: Json, what: str, recorded: str, today: str) -> Difference:
        event = None if given["e"] is None else plain(read_value(given["e"]))
        return Difference(given["q"], what, event, recorded, today, core.waits_for())


def _did(given: Json) -> str:
    """Moves and effects of a line, one each line."""
    lines = [f"{word} {json.dumps(plain(read_value(value)))}" for key, word in (("m", "moved "), ("f", "effect"))
             for value in given.get(key, ())]  # fmt: skip
    return "".join(f"\n    {line}" for line in lines) or "nothing"
