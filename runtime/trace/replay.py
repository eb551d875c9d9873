"""Feed a recorded run to today's core and compare: changes and effects after every event, the state at every snapshot.

The caller may check properties after each event; `specs` is imported only by the commands.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fsm.core import AppliedEvent, Core
from fsm.errors import ConfigError, EvenstepError
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
"""Takes the core after a transition, the state before it and the transition; returns what does not hold, or None."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first record at which today's core differs from the recorded one."""

    seq: int
    what: str
    """What differs: answer, state or property."""
    event: Any
    recorded: str
    """What the recorded core did, or its state."""
    today: str
    """What today's core does, or its state; or why it refuses the event; or which property does not hold."""
    waits_for: str
    """What the replayed run waits for at that record."""

    def __str__(self) -> str:
        return (
            f"record {self.seq}: the {self.what} differs\n"
            f"  event     {json.dumps(self.event)}\n"
            f"  recorded  {self.recorded}\n"
            f"  today     {self.today}\n"
            f"  and now   {self.waits_for}"
        )


def replay(path: Path, *, to: int | None = None, check: Check | None = None) -> "Replay":
    """Replay a trace from its beginning, or without that from its first snapshot; up to the record `to`.

    Raises TraceUnreadable, and ConfigError if the configuration or a custom sampler cannot be loaded.
    """
    replayed = Replay(open_trace(path), check)
    replayed.run(to)
    return replayed


class Replay:
    """A replay of one trace, and its outcome."""

    def __init__(self, trace: TraceFile, check: Check | None) -> None:
        self.trace = trace
        self.check = check
        self.core = core_of(trace.header, self._observe)
        self.difference: Difference | None = None
        self.first_seq = 0
        """The record that the replay began with."""
        self.last_seq = -1
        """The last record without a difference; `first_seq` − 1 if there is none."""
        self.events = self.snapshots = 0
        """Events and snapshots without a difference."""
        self.ended: RunEnded | None = None
        self._closed_before = 0
        """Steps that closed before those in the core's book."""
        self._transition: AppliedEvent | None = None
        """What today's core made of the last event."""

    @property
    def status(self) -> str:
        """How the run ended (`RunEnded`); without that record, the core's status (`fsm.explain.status`)."""
        return status(self.core.state) if self.ended is None else self.ended.status

    def run(self, to: int | None) -> None:
        """Replay up to the record `to`, or to the first difference."""
        begun = False
        seq = None
        for line in self.trace.lines():
            given = self.trace.json_of(line)
            seq = given["q"]
            if to is not None and seq > to:
                return
            try:
                begun = begun or self._begin(given)
                if not begun:
                    continue
                self.difference = self._step(given, line)
            except ConfigError:
                raise  # it says what is wrong
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
                raise TraceUnreadable(
                    f"{self.trace.path}: record {seq} cannot be replayed ({type(error).__name__}: {error}): if the "
                    "file was not damaged, today's core cannot take what an older one wrote"
                ) from error
            if self.difference is not None:
                return
            self.last_seq = seq
        if seq is not None and not begun:
            raise TraceUnreadable(
                f"{self.trace.path} has neither its run's beginning nor a snapshot to start from; name another part"
            )

    def _begin(self, given: Json) -> bool:
        """Begin at the run's first record or at the first snapshot. Returns False before that."""
        if given["q"] != 0:
            if "s" not in given:
                return False
            setup, self._closed_before = setup_of(self.trace.header), given["b"]
            self.core = reinstate(setup, given["s"], closed_before=given["b"], observer=self._observe)
        self.first_seq, self.last_seq = given["q"], given["q"] - 1
        return True

    def _observe(self, transition: AppliedEvent) -> None:
        self._transition = transition

    def _step(self, given: Json, line: bytes) -> Difference | None:
        if given["q"] != self.last_seq + 1:
            raise TraceUnreadable(
                f"{self.trace.path}: record {given['q']} follows {self.last_seq}: lines are missing or doubled"
            )
        if "e" in given:
            return self._answer(given, line)
        if "n" in given and given["n"][0] == CODES[RunEnded]:
            self.ended = self._value(given, "n")
        return self._compare_state(given) if SNAPSHOT_MARK in line else None

    def _value(self, given: Json, key: str) -> Any:
        try:
            return read_value(given[key])
        except ValueError as error:
            raise TraceUnreadable(f"{self.trace.path}: record {given['q']}: {error}") from error

    def _answer(self, given: Json, line: bytes) -> Difference | None:
        """Apply one recorded event. Returns None if the answer is the recorded one and all properties hold."""
        before = self.core.state
        event = self._value(given, "e")
        try:
            self.core.apply(event)
        except EvenstepError as error:
            return self._differs(given, "answer", _did(given), f"refused, {type(error).__name__}: {error}")
        assert self._transition is not None, "the core calls its observer for every applied event"
        body = transition_body(self._transition)
        if not line.endswith(f"{body}}}\n".encode()):
            today = json.loads(f"{{{body}}}")
            if any(today.get(key, []) != given.get(key, []) for key in ("m", "f")):
                return self._differs(given, "answer", _did(given), _did(today))
        self.events += 1
        broken = None if self.check is None else self.check(self.core, before, self._transition)
        return None if broken is None else self._differs(given, "property", _did(given), broken)

    def _compare_state(self, given: Json) -> Difference | None:
        today = snapshot(self.core)
        today["closed"] = today["closed"][given["b"] - self._closed_before :]
        recorded = given["s"]
        known = {key: today[key] for key in today if key in recorded or key not in MAY_BE_MISSING}
        today = json.loads(encode(known))
        if today == recorded:
            self.snapshots += 1
            return None
        keys = sorted(key for key in today.keys() | recorded.keys() if today.get(key) != recorded.get(key))
        shown = [json.dumps({key: which.get(key) for key in keys}) for which in (recorded, today)]
        return self._differs(given, "state", *shown)

    def _differs(self, given: Json, what: str, recorded: str, today: str) -> Difference:
        event = plain(read_value(given["e"])) if "e" in given else None
        return Difference(given["q"], what, event, recorded, today, self.core.waits_for())


def _did(given: Json) -> str:
    lines = [f"{word} {json.dumps(plain(read_value(value)))}" for key, word in (("m", "change"), ("f", "effect"))
             for value in given.get(key, ())]  # fmt: skip
    return "".join(f"\n    {line}" for line in lines) or "nothing"
