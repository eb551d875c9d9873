"""One pass over a trace: everything that a report or an export shows, in columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from fsm.core import AppliedEvent
from fsm.errors import ConfigError
from fsm.events import Begin
from fsm.machines.prompt_group import GroupState
from fsm.machines.trainer import TrainerState
from fsm.rules.changes import RunCompleted, RunStopped
from fsm.state import Limits
from runtime.report.attempts import Attempts
from runtime.report.columns import Columns, milliseconds
from runtime.report.counters import Counters
from runtime.report.happenings import Happenings
from runtime.report.phases import Phases, cause_of
from runtime.report.steps import metric_columns, steps_of
from runtime.report.texts import Texts
from runtime.trace.files import TraceUnreadable, setup_of
from runtime.trace.kinds import Json
from runtime.trace.notes import AttemptsPlaced, GroupReceived, RunEnded
from runtime.trace.reader import TraceFile
from runtime.trace.records import NoteRecord, Record, SnapshotRecord, TransitionRecord

TOLD_EVERY = 10_000
"""Records after which it is told how many were read."""


class Shape(NamedTuple):
    """What the header says of the run."""

    sampler: str
    size: int
    """N."""
    generations: int
    """Rollouts of a group."""
    incarnation: int
    """How many times the run was resumed before."""
    config: Json
    seeds: Json
    packages: Json


@dataclass(frozen=True, slots=True)
class Collected:
    """What a trace holds. Times are milliseconds since it was opened."""

    trace: TraceFile
    shape: Shape
    attempts: Attempts
    counters: Counters
    phases: Phases
    happenings: Happenings
    steps: Columns
    metrics: Columns
    texts: Texts
    limits: Limits | None
    """None where the run's custom sampler cannot be loaded here, whose demands they depend on."""
    records: int
    first_seq: int
    begun: int
    """Of the first record."""
    ended: int
    """Of the last record."""
    over: bool
    """The run has ended, or its core is completed or stopped."""


def collect(trace: TraceFile, reached: Callable[[int], None] = lambda _: None) -> Collected:
    """Read a trace from its beginning to its end. `reached` is told how many records were read.

    Raises TraceUnreadable: it has no record, is damaged before its last line, or holds what no run writes.
    """
    with _refusing(trace, "its header"):
        shape, limits = _shape(trace.header), _limits(trace)
    gathering = _Gathering(limits)
    records = trace.records()
    first = last = next(records, None)
    if first is None or last is None:
        raise TraceUnreadable(
            f"{trace.path} has no record: its process died before anything happened; look at the run's output"
        )
    number = 0
    try:
        gathering.open(trace, first)
        for number, last in enumerate(chain([first], records), 1):
            gathering.record(last)
            if not number % TOLD_EVERY:
                reached(number)
    except _WRONG as error:
        raise _is_wrong(trace, f"record {last.seq}", error) from error
    reached(number)
    ended = milliseconds(last.monotonic_s)
    with _refusing(trace, "what its records add up to"):
        gathering.close(ended)
        steps = steps_of(gathering.attempts.rows, gathering.phases)
        metrics = metric_columns(gathering.happenings.metrics)
    return Collected(
        trace=trace,
        shape=shape,
        attempts=gathering.attempts,
        counters=gathering.counters,
        phases=gathering.phases,
        happenings=gathering.happenings,
        steps=steps,
        metrics=metrics,
        texts=gathering.texts,
        limits=limits,
        records=number,
        first_seq=first.seq,
        begun=milliseconds(first.monotonic_s),
        ended=ended,
        over=gathering.over,
    )


def _shape(header: Json) -> Shape:
    config = header["config"]
    grpo, sampler = config["grpo"], str(config["async_rl"]["sampler"]["name"])
    size, generations = int(grpo["num_prompts_per_step"]), int(grpo["num_generations_per_prompt"])
    return Shape(
        sampler, size, generations, int(header["incarnation"]), dict(config), dict(header["seeds"]),
        dict(header["packages"]),
    )  # fmt: skip


def _limits(trace: TraceFile) -> Limits | None:
    try:
        return setup_of(trace.header).limits
    except ConfigError:
        return None


@contextmanager
def _refusing(trace: TraceFile, what: str) -> Iterator[None]:
    """What is wrong in a trace is said to be so, by its place."""
    try:
        yield
    except _WRONG as error:
        raise _is_wrong(trace, what, error) from error


def _is_wrong(trace: TraceFile, what: str, error: Exception) -> TraceUnreadable:
    return TraceUnreadable(f"{trace.path}: {what} is none of a run: {type(error).__name__}: {error}")


_WRONG = (TypeError, ValueError, LookupError, AttributeError, OverflowError)
"""What values of a wrong type, size or place raise."""


class _Gathering:
    """Everything that is told of the records, and the time between them."""

    def __init__(self, limits: Limits | None) -> None:
        self.texts = Texts()
        self.attempts = Attempts(self.texts)
        self.counters = Counters()
        self.phases = Phases()
        self.happenings = Happenings(self.texts)
        self.over = False
        self._max_buffered = None if limits is None else limits.max_buffered
        self._before = 0
        self._unplaced = True
        """No snapshot was seen yet of a trace that has no beginning."""

    def open(self, trace: TraceFile, record: Record) -> None:
        """The first record is known: does the trace have the run's beginning?"""
        self._before = milliseconds(record.monotonic_s)
        if record.seq != 0:
            return
        self._unplaced = False
        saved = trace.header["snapshot"]
        self.counters.begin(saved)
        if saved is not None:
            self.attempts.adopt(saved, None)

    def record(self, record: Record) -> None:
        """One record."""
        now = milliseconds(record.monotonic_s)
        if type(record) is TransitionRecord:
            self._pass_time(now)
            self._transition(now, record.transition)
        elif type(record) is NoteRecord:
            note = record.note
            if type(note) is AttemptsPlaced:
                self.attempts.placed(note)
            elif type(note) is GroupReceived:
                self.attempts.received(note)
            else:
                self.over |= type(note) is RunEnded
                self.happenings.note(now, note)
        elif type(record) is SnapshotRecord:
            self._snapshot(record)

    def close(self, now: int) -> None:
        """The last record was told."""
        self._pass_time(now)
        self.phases.finish(now)
        self.counters.sample(now)

    def _transition(self, now: int, transition: AppliedEvent) -> None:
        if type(transition.event) is Begin:
            self.phases.begin(self.counters.version, now)
        self.attempts.transition(now, transition)
        self.counters.transition(now, transition.changes)
        self.phases.transition(now, transition)
        self.happenings.transition(now, transition)
        if transition.changes and isinstance(transition.changes[-1], RunCompleted | RunStopped):
            self.over = True

    def _pass_time(self, now: int) -> None:
        """Between two events nothing changes, so what the trainer waited for is what it waited for all the while."""
        for_ms, self._before = now - self._before, now
        busy = self.phases.now
        if for_ms <= 0 or busy is None or busy[0] is not TrainerState.ASSEMBLING or self.over:
            return
        counts = self.counters.counts
        in_flight = counts[GroupState.IN_FLIGHT]
        cause = cause_of(
            running=len(self.attempts.running),
            in_flight=in_flight,
            buffered=in_flight + counts[GroupState.READY],
            max_buffered=self._max_buffered,
            gate_open=self.counters.gate_open,
        )
        self.phases.waited(cause, for_ms)

    def _snapshot(self, record: SnapshotRecord) -> None:
        if not self._unplaced:
            return
        self._unplaced = False
        self.counters.snapshot(record.snapshot)
        self.attempts.adopt(record.snapshot, record.vitals)
        status, version = record.snapshot["state"]["trainer"]
        if self.phases.now is None:
            since = milliseconds(record.vitals["trainer_since_s"])
            step = version - 1 if status == TrainerState.SYNCING else version
            self.phases.now = (TrainerState(status), step, since)


def rows_of(table: Columns) -> Iterator[dict[str, float]]:
    """Rows by name, for tests and for writing out."""
    names = list(table.columns)
    for values in zip(*table.columns.values(), strict=True):
        yield dict(zip(names, values, strict=True))
