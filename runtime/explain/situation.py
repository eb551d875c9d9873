"""A run at one moment: everything that a verdict is based on."""

import dataclasses
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from fsm.errors import EvenstepError, SamplerError, Stalled
from fsm.machines.run import Run, RunState
from fsm.machines.step_assembly import want
from fsm.machines.table import fire
from fsm.rules.changes import Picks, RunStopped
from fsm.rules.laws import Laws
from fsm.rules.sampler_calls import ask_select
from fsm.state import GroupClass, Limits, State, charged
from fsm.values import pages
from runtime.explain.finding import Usual, usual_of
from runtime.trace.choose import Chooser, head_of, with_text
from runtime.trace.kinds import mark_of
from runtime.trace.moment import Moment, state_at
from runtime.trace.notes import CallBegan, CallEnded, RunEnded, Status
from runtime.trace.reader import SNAPSHOT_MARK, TraceFile
from runtime.trace.records import NoteRecord, Record, TransitionRecord
from runtime.trace.vitals import CALL_BEGINS, CALL_ENDS, RunningAttempt, Vitals

STATES_MAX = 4_000
"""States that the search for a continuation explores, about a second's worth."""
CALLS_KEPT = 512
"""How many of the last records about calls are used to tell how long calls usually take."""


class StepOutlook(Protocol):
    """Whether a step can still close; `specs.checker.closing.Outlook` is one."""

    @property
    def closes(self) -> bool | None:
        """None if a bound was hit."""

    @property
    def states(self) -> int:
        """States explored."""

    @property
    def dead_end(self) -> State | None:
        """The state in which the run gets stuck if every group is kept; None if it does not."""


Look = Callable[[State, Laws, Mapping[GroupClass, int], int], StepOutlook]
"""`specs.checker.closing.outlook`, which the commands pass in: `runtime` does not import `specs` elsewhere."""


@dataclass(frozen=True)
class Situation:
    """A run at one moment. What needs another look at the trace is read once, when it is asked for."""

    trace: TraceFile
    moment: Moment
    state: State
    """The moment's. If the watchdog stopped the run: the state before that."""
    now_s: float
    """On the trace's monotonic clock. Later than the moment if nothing was recorded since."""
    look: Look
    stopped_by: EvenstepError | None
    """The error with which the core stopped the run; None if it did not."""
    ended: RunEnded | None
    """The recorded outcome, or the one that the core's state shows; None if the run is not over.

    A completed core alone does not end a run: its model is saved and measured first."""

    @property
    def running(self) -> bool:
        """The core runs, or ran until the watchdog stopped it."""
        return self.state.run.status is RunState.RUNNING

    @property
    def restart(self) -> str | None:
        """Such as "restart 2 of at most 3"; None of a process that is no restart, or of an older evenstep."""
        said: str | None = self.trace.header.get("restart")
        return said

    @property
    def limits(self) -> Limits:
        return self.moment.core.limits

    @cached_property
    def laws(self) -> Laws:
        """The run's laws, fired without `transitions` machines."""
        return self.moment.core.laws._replace(fire=fire)

    @property
    def vitals(self) -> Vitals:
        return self.moment.vitals

    @property
    def sampler(self) -> str:
        return self.laws.sampler_name

    @property
    def step(self) -> int:
        return self.state.trainer.version

    @property
    def charged(self) -> int:
        return charged(self.state, self.step)

    @property
    def want(self) -> int:
        """Groups that the step still needs."""
        return want(self.limits.size, self.state.step.selected, self.charged)

    @property
    def least(self) -> int:
        """Fewest eligible groups that make a chunk (S1)."""
        return min(self.limits.min_groups, self.want)

    @cached_property
    def eligible(self) -> Picks:
        """What the sampler would take if one group were enough; () if it raises."""
        if not self.state.sheet.ready or self.want <= 0:
            return ()
        try:
            return ask_select(self.state, self.laws, 1, self.want)
        except SamplerError:
            return ()

    @cached_property
    def outlook(self) -> StepOutlook:
        return self.look(self.state, self.laws, {}, STATES_MAX)

    def closes_without(self, held: Mapping[GroupClass, int]) -> bool:
        """Whether the step closes if these attempts never answer and all others are kept."""
        return self.look(self.state, self.laws, held, 1).closes is True

    @cached_property
    def usual_rollout(self) -> Usual | None:
        return usual_of(finished.age_s for finished in self.vitals.recent)

    @cached_property
    def usual_calls(self) -> Mapping[str, Usual | None]:
        marks = [mark_of(kind) for kind in (*CALL_BEGINS, *CALL_ENDS, CallBegan, CallEnded)]
        last = deque(self.lines(with_text(marks)), maxlen=CALLS_KEPT)
        durations = call_durations([self.trace.parse(line) for line in last])
        return {call: usual_of(known) for call, known in durations.items()}

    @property
    def stall_timeout_s(self) -> float:
        """The age from which something hangs, as long as no usual time is known."""
        return self.moment.core.setup.config.async_rl.stall_watchdog.stall_timeout_s

    @property
    def deadline_s(self) -> float | None:
        return self.moment.core.setup.config.async_rl.rollout_failure.rollout_timeout_s

    def age_s(self, since_s: float) -> float:
        return max(0.0, self.now_s - since_s)

    def class_of(self, rollout: RunningAttempt) -> GroupClass | None:
        """The class of a running attempt; None if the core does not know it."""
        group = self.moment.core.book.roster.in_flight.get(rollout.attempt.prompt)
        return None if group is None else group.group_class

    def lines(self, choose: Chooser) -> Iterator[bytes]:
        """The chosen lines up to the moment."""
        for line in self.trace.lines(choose):
            head = head_of(line)
            if head is not None and head.seq > self.moment.seq:
                return
            yield line

    @cached_property
    def begun(self) -> bool:
        """The core has had its Begin event."""
        return next(self.lines(with_text([b'"e":["B"', SNAPSHOT_MARK])), None) is not None

    @property
    def at_the_end(self) -> bool:
        """The moment is the one at which the process closed its trace."""
        head = self.trace.last_head()
        is_last = head is not None and head.seq == self.moment.seq
        return is_last and self.trace.path.suffix == ".jsonl" and self.trace.closed


def call_durations(records: Sequence[Record]) -> dict[str, list[float]]:
    """Durations, by name, of the calls that began and ended among the records."""
    began: dict[str, float] = {}
    durations: dict[str, list[float]] = {}

    def end(call: str, now_s: float) -> None:
        if call in began:
            durations.setdefault(call, []).append(now_s - began.pop(call))

    for record in records:
        now_s = record.monotonic_s
        match record:
            case TransitionRecord(transition=transition):
                if type(transition.event) in CALL_ENDS:
                    end(CALL_ENDS[type(transition.event)], now_s)
                began |= {CALL_BEGINS[type(e)]: now_s for e in transition.effects if type(e) in CALL_BEGINS}
            case NoteRecord(note=CallBegan(call=call)):
                began[call] = now_s
            case NoteRecord(note=CallEnded(call=call)):
                end(call, now_s)
    return durations


def classes_in_hand(state: State) -> list[GroupClass]:
    """Every class that has a group, sorted."""
    counts = (state.running, state.waiting, state.backing_off, state.ready, state.chunk, state.accumulated)
    return sorted({group_class for places in counts for group_class, _ in pages.items(places)})


def situation_at(trace: TraceFile, look: Look, *, seq: int | None, unix_s: float | None) -> Situation:
    """The run after record `seq`, at a wall time, or at its end. Raises TraceUnreadable and ConfigError."""
    moment = state_at(trace, seq=seq, unix_s=unix_s)
    now_s = moment.monotonic_s
    if unix_s is not None:
        now_s = max(now_s, unix_s - (moment.unix_s - moment.monotonic_s))
    given = Situation(trace, moment, moment.core.state, now_s, look, None, moment.vitals.ended)
    if given.running:
        return given
    if given.state.run.status is RunState.COMPLETED:
        if given.ended is None and not given.at_the_end:
            return given  # it is saved and measured, or its process died meanwhile
        return dataclasses.replace(given, ended=given.ended or _ended(given, "completed", None))
    error = _stopped_by(given)
    state = given.state._replace(run=Run()) if isinstance(error, Stalled) else given.state
    ended = given.ended or _ended(given, "stopped", f"{type(error).__name__}: {error}")
    return dataclasses.replace(given, state=state, stopped_by=error, ended=ended)


def _ended(given: Situation, status: Status, error: str | None) -> RunEnded:
    """The outcome that the core's state shows, for a trace that has no record of it."""
    return RunEnded(status, error, given.step, given.vitals.checkpoint, None)


def _stopped_by(given: Situation) -> EvenstepError:
    if given.moment.core.error is not None:
        return given.moment.core.error
    for line in given.lines(with_text([mark_of(RunStopped)])):
        record = given.trace.parse(line)
        if isinstance(record, TransitionRecord):
            for change in record.transition.changes:
                if isinstance(change, RunStopped):
                    return change.error
    return EvenstepError("the reason is not in this trace")


def is_open(trace: TraceFile) -> bool:
    """The trace may still be written to: it is neither a rotated part nor a dump of the ring, and is not closed."""
    return trace.path.suffix == ".jsonl" and ".ring-" not in trace.path.name and not trace.closed
