"""A run at one moment, with everything that a verdict is made from."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from fsm.effects import FinishStep, SyncWeights, TrainChunk
from fsm.errors import EvenstepError, SamplerError, Stalled
from fsm.events import ChunkTrained, StepFinished, SyncFinished
from fsm.machines.run import Run, RunState
from fsm.machines.step_assembly import want
from fsm.machines.table import fire
from fsm.rules.changes import Picks, RunStopped
from fsm.rules.laws import Laws
from fsm.rules.sampler_calls import ask_select
from fsm.state import GroupClass, Limits, State, charged
from fsm.values import pages
from runtime.explain.usual import Usual, usual_of
from runtime.trace.choose import HEADER_START, Chooser, head_of, with_text
from runtime.trace.follow import CLOSED
from runtime.trace.kinds import CODES
from runtime.trace.moment import Moment, state_at
from runtime.trace.notes import CallBegan, CallEnded, RunEnded, Status
from runtime.trace.reader import SNAPSHOT_MARK, TraceFile, blocks
from runtime.trace.records import NoteRecord, Record, TransitionRecord
from runtime.trace.vitals import RunningAttempt, Vitals

_SHORT_LINE = 200
"""Bytes; that of a trace which is closed is shorter."""
STATES_MAX = 4_000
"""States that the search for a continuation goes through, about a second's worth."""
CALLS_KEPT = 512
"""The last lines about calls, from which it is told how long they usually take."""
_BEGINS: Mapping[type[Any], str] = {TrainChunk: "accumulate", FinishStep: "finish_step", SyncWeights: "sync"}
_ENDS: Mapping[type[Any], str] = {ChunkTrained: "accumulate", StepFinished: "finish_step", SyncFinished: "sync"}


class StepOutlook(Protocol):
    """What can become of a step; see `specs.checker.closing.Outlook`."""

    @property
    def closes(self) -> bool | None:
        """None where a bound was hit."""

    @property
    def states(self) -> int:
        """Gone through."""

    @property
    def dead_end(self) -> State | None:
        """Where the run ends up if all is kept."""


Look = Callable[[State, Laws, Mapping[GroupClass, int], int], StepOutlook]
"""`specs.checker.closing.outlook`."""


@dataclass(frozen=True)
class Situation:
    """A run at one moment. What takes reading the trace is read once, when it is asked for."""

    trace: TraceFile
    moment: Moment
    state: State
    """The moment's; of a run that the watchdog stopped, as it was before."""
    now_s: float
    """On the trace's monotonic clock; later than the moment where nothing was recorded since."""
    look: Look
    stopped_by: EvenstepError | None
    """None for a run that the core did not stop."""
    ended: RunEnded | None
    """The outcome, as it was recorded, else as far as the core's state tells; None where there is none."""

    @property
    def running(self) -> bool:
        """The core was not over; one that the watchdog stopped was not, before."""
        return self.state.run.status is RunState.RUNNING

    @property
    def limits(self) -> Limits:
        """The run's."""
        return self.moment.core.limits

    @cached_property
    def laws(self) -> Laws:
        """The run's, without machines."""
        return self.moment.core.laws._replace(fire=fire)

    @property
    def vitals(self) -> Vitals:
        """As of the moment."""
        return self.moment.vitals

    @property
    def sampler(self) -> str:
        """Its name."""
        return self.laws.sampler_name

    @property
    def step(self) -> int:
        """The step being trained."""
        return self.state.trainer.version

    @property
    def charged(self) -> int:
        """To that step."""
        return charged(self.state, self.step)

    @property
    def want(self) -> int:
        """Groups that it still needs."""
        return want(self.limits.size, self.state.step.selected, self.charged)

    @property
    def least(self) -> int:
        """Eligible groups from which a chunk is selected (S1)."""
        return min(self.limits.min_groups, self.want)

    @cached_property
    def outlook(self) -> StepOutlook:
        """Whether the step can still close."""
        return self.look(self.state, self.laws, {}, STATES_MAX)

    def closes_without(self, held: Mapping[GroupClass, int]) -> bool:
        """Whether the step closes though these attempts never answer and all others are kept."""
        outlook = self.look(self.state, self.laws, held, 1)
        return outlook.closes is True

    @cached_property
    def usual_rollout(self) -> Usual | None:
        """Of the last groups that finished."""
        return usual_of(finished.age_s for finished in self.vitals.recent)

    @property
    def stall_timeout_s(self) -> float:
        """How long no progress is allowed to be, where nothing is known of what is usual."""
        return self.moment.core.setup.config.async_rl.stall_watchdog.stall_timeout_s

    @property
    def deadline_s(self) -> float | None:
        """rollout_timeout_s."""
        return self.moment.core.setup.config.async_rl.rollout_failure.rollout_timeout_s

    def age_s(self, since_s: float) -> float:
        """How long ago."""
        return max(0.0, self.now_s - since_s)

    def class_of(self, rollout: RunningAttempt) -> GroupClass | None:
        """The class of an attempt that runs; None where the core knows of none."""
        group = self.moment.core.book.roster.in_flight.get(rollout.attempt.prompt)
        return None if group is None else group.group_class

    def lines(self, choose: Chooser) -> Iterator[bytes]:
        """Lines up to the moment, those that are chosen."""
        for line in self.trace.lines(choose):
            head = head_of(line)
            if head is not None and head.seq > self.moment.seq:
                return
            yield line

    @cached_property
    def begun(self) -> bool:
        """The core was told to begin."""
        return next(self.lines(with_text([b'"e":["B"', SNAPSHOT_MARK])), None) is not None

    @cached_property
    def usual_calls(self) -> Mapping[str, Usual | None]:
        """How long the calls took of late, by name."""
        asked = [*_BEGINS, *_ENDS, CallBegan, CallEnded]
        texts = [b'["' + CODES[kind].encode() + b'"' for kind in asked]
        last = deque(self.lines(with_text(texts)), maxlen=CALLS_KEPT)
        durations = call_durations([self.trace.parse(line) for line in last])
        return {call: usual_of(known) for call, known in durations.items()}


def call_durations(records: Sequence[Record]) -> dict[str, list[float]]:
    """How long the calls took, by name, of those that began and ended among the records."""
    began: dict[str, float] = {}
    durations: dict[str, list[float]] = {}

    def end(call: str, now_s: float) -> None:
        if call in began:
            durations.setdefault(call, []).append(now_s - began.pop(call))

    for record in records:
        now_s = record.monotonic_s
        match record:
            case TransitionRecord(transition=transition):
                if type(transition.event) in _ENDS:
                    end(_ENDS[type(transition.event)], now_s)
                began |= {_BEGINS[type(e)]: now_s for e in transition.effects if type(e) in _BEGINS}
            case NoteRecord(note=CallBegan(call=call)):
                began[call] = now_s
            case NoteRecord(note=CallEnded(call=call)):
                end(call, now_s)
    return durations


def eligible(state: State, laws: Laws, want: int) -> Picks:
    """What the sampler would take if one group were enough; () where it raises."""
    if not state.tally.ready or want <= 0:
        return ()
    try:
        return ask_select(state, laws, 1, want)
    except SamplerError:
        return ()


def classes_in_hand(state: State) -> list[GroupClass]:
    """Every class that has a group, in order."""
    counts = (state.running, state.waiting, state.backing_off, state.ready, state.chunk, state.accumulated)
    return sorted({group_class for places in counts for group_class, _ in pages.items(places)})


def situation_at(trace: TraceFile, look: Look, *, seq: int | None, unix_s: float | None) -> Situation:
    """The run after record `seq`, or at a wall time, or at its end. Raises TraceUnreadable and ConfigError."""
    moment = state_at(trace, seq=seq, unix_s=unix_s)
    now_s = moment.monotonic_s
    if unix_s is not None:
        now_s = max(now_s, unix_s - (moment.unix_s - moment.monotonic_s))
    given = Situation(trace, moment, moment.core.state, now_s, look, None, moment.vitals.ended)
    if given.running:
        return given
    if given.state.run.status is RunState.COMPLETED:
        return dataclasses.replace(given, ended=given.ended or _ended(given, "completed", None))
    error = _stopped_by(given)
    state = given.state._replace(run=Run()) if isinstance(error, Stalled) else given.state
    ended = given.ended or _ended(given, "stopped", f"{type(error).__name__}: {error}")
    return dataclasses.replace(given, state=state, stopped_by=error, ended=ended)


def _ended(given: Situation, status: Status, error: str | None) -> RunEnded:
    """The outcome as far as the core's state tells it, of a trace that has no record of it."""
    return RunEnded(status, error, given.step, given.vitals.checkpoint, None)


def _stopped_by(given: Situation) -> EvenstepError:
    if given.moment.core.error is not None:
        return given.moment.core.error
    for line in given.lines(with_text([b'["' + CODES[RunStopped].encode() + b'"'])):
        record = given.trace.parse(line)
        if isinstance(record, TransitionRecord):
            for move in record.transition.changes:
                if isinstance(move, RunStopped):
                    return move.error
    return EvenstepError("why is not in this trace")


def _last_line(trace: TraceFile) -> bytes:
    """The last line of a trace, of a long one its end; a file that was just begun has none but its header."""
    return next((line for part in reversed(trace.parts) if (line := _last_of(part))), b"")


def _last_of(part: Path) -> bytes:
    if part.suffix == ".gz":
        last = b""
        for block in blocks(part):
            last = block
        line = last[last.rfind(b"\n", 0, -1) + 1 :]
        return b"" if line.startswith(HEADER_START) else line
    with part.open("rb") as file:
        begin = len(file.readline())
        size = file.seek(0, 2)
        file.seek(max(begin, size - _SHORT_LINE))
        return (file.read().splitlines(keepends=True) or [b""])[-1]


def is_open(trace: TraceFile) -> bool:
    """A file that its process may still be writing to: no rotated part, no dump, and without an end."""
    written = trace.path.suffix == ".jsonl" and ".ring-" not in trace.path.name
    return written and not _last_line(trace).endswith(CLOSED)


def is_the_end(given: Situation) -> bool:
    """The moment is the one at which the process closed its trace."""
    if given.trace.path.suffix != ".jsonl":
        return False
    line = _last_line(given.trace)
    head = head_of(line)
    return line.endswith(CLOSED) and head is not None and head.seq == given.moment.seq
