"""One pass over the traces of a run: all that a report or an export shows, in columns."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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
from runtime.report.columns import Columns, Texts, milliseconds
from runtime.report.counters import Counters
from runtime.report.happenings import Happenings
from runtime.report.phases import Phases, cause_of
from runtime.report.steps import metric_columns, steps_of
from runtime.trace.files import TraceUnreadable, first_step_of, setup_of
from runtime.trace.kinds import Json
from runtime.trace.notes import AttemptsPlaced, GroupReceived, RunEnded
from runtime.trace.reader import TraceFile
from runtime.trace.records import NoteRecord, Record, SnapshotRecord, TransitionRecord

TOLD_EVERY = 10_000
"""Records between two reports of progress."""
_WRONG = (TypeError, ValueError, LookupError, AttributeError, OverflowError)
"""What values of a wrong type, size or place raise."""


def collect(
    trace: TraceFile, reached: Callable[[int], None] = lambda _: None, older: Sequence[TraceFile] = ()
) -> "Collected":
    """Read a whole trace, after the older ones of its run. `reached` is called with the number of records read so far.

    Raises TraceUnreadable: the trace has no record, is damaged before its last line, or holds what no run writes.
    """
    with _blaming(trace, lambda: "its header"):
        collected = Collected(trace)
    for each in (*older, trace):
        _read(each, collected, reached)
    reached(collected.records)
    with _blaming(trace, lambda: "the sum of its records"):
        collected.close()
    return collected


def _read(trace: TraceFile, collected: "Collected", reached: Callable[[int], None]) -> None:
    records = trace.records()
    first = next(records, None)
    if first is None:
        raise TraceUnreadable(
            f"{trace.path} has no record: its process died before anything happened; read the run's output"
        )
    last = first
    with _blaming(trace, lambda: f"record {last.seq}"):
        collected.open(trace, first)
        for last in chain([first], records):
            collected.record(last)
            if not collected.records % TOLD_EVERY:
                reached(collected.records)


@contextmanager
def _blaming(trace: TraceFile, what: Callable[[], str]) -> Iterator[None]:
    """Turn errors that wrong values cause into TraceUnreadable with the place."""
    try:
        yield
    except _WRONG as error:
        raise TraceUnreadable(
            f"{trace.path}: {what()} does not come from a run: {type(error).__name__}: {error}"
        ) from error


def _shape(header: Json) -> Json:
    """What the header says about the run."""
    config = header["config"]
    return {
        "sampler": str(config["async_rl"]["sampler"]["name"]),
        "size": int(config["grpo"]["num_prompts_per_step"]),  # N
        "generations": int(config["grpo"]["num_generations_per_prompt"]),
        "incarnation": int(header["incarnation"]),
        **{key: dict(header[key]) for key in ("config", "seeds", "packages")},
    }


def _limits(trace: TraceFile) -> Limits | None:
    try:
        return setup_of(trace.header).limits
    except ConfigError:
        return None


class TracedProcess(NamedTuple):
    """One process of a run, by its trace."""

    name: str
    """Of the file."""
    began: int
    """When its trace was opened, ms on the axis of all columns."""
    started_unix_s: float
    step: int
    """The step that it began with."""


class Collected:
    """What the traces of a run hold.

    Times are milliseconds since the first one was opened, without those between two processes.
    """

    def __init__(self, trace: TraceFile) -> None:
        self.trace = trace
        """The newest."""
        self.processes: list[TracedProcess] = []
        self.shape = _shape(trace.header)
        self.limits = _limits(trace)
        """None if the run's custom sampler cannot be loaded here: they depend on it."""
        self.texts = Texts()
        self.attempts = Attempts(self.texts)
        self.counters = Counters()
        self.phases = Phases()
        self.happenings = Happenings(self.texts)
        self.steps: Columns
        self.metrics: Columns
        self.records = self.first_seq = 0
        self.begun = self.ended = 0
        """Times of the first and the last record."""
        self.over = False
        """The run has ended, or its core is completed or stopped."""
        self._before = 0
        self._ended_unix_s = 0.0
        self._unplaced = True
        """The trace has no beginning, and no snapshot was read yet."""

    def open(self, trace: TraceFile, record: Record) -> None:
        """Begin with a trace, whose first record this is. With its beginning, counts start from the header."""
        saved, step = trace.header["snapshot"], first_step_of(trace.header)
        if self.processes:
            self._go_on(trace, step)
        self.processes.append(TracedProcess(trace.path.name, self.ended, trace.started_unix_s, step))
        self._before = self._time(record)
        if len(self.processes) == 1:
            self.first_seq, self.begun = record.seq, self._before
        if record.seq != 0:
            return
        self._unplaced = False
        self.counters.begin(saved)
        if len(self.processes) > 1:
            self.counters.sample(self._before)
        if saved is not None:
            self.attempts.adopt(saved, None)

    def _go_on(self, trace: TraceFile, step: int) -> None:
        before, away_s = self.processes[-1], trace.started_unix_s - self._ended_unix_s
        closed = self.phases.closings["step"]
        redone = f", so steps {step} to {closed[-1]} were done again" if len(closed) and closed[-1] >= step else ""
        text = f"{trace.path.name} goes on with step {step}, {away_s:.0f} s after {before.name} ended{redone}"
        self._pass_time(self.ended)
        self.happenings.go_on(step, self.ended, text)
        self.attempts.go_on(trace.header["snapshot"], self.ended)
        self.phases.go_on(step, self.ended)
        self.over = False

    def _time(self, record: Record) -> int:
        return self.processes[-1].began + milliseconds(record.monotonic_s)

    def record(self, record: Record) -> None:
        now = self.ended = self._time(record)
        self._ended_unix_s = record.unix_s
        self.records += 1
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

    def close(self) -> None:
        now = self.ended
        self._pass_time(now)
        self.phases.finish(now)
        self.counters.sample(now)
        self.steps = steps_of(self.attempts.rows, self.phases)
        self.metrics = metric_columns(self.happenings.metrics)

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
        """Nothing changes between two events, so the trainer waited for the same cause all the time."""
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
            max_buffered=None if self.limits is None else self.limits.max_buffered,
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
    """The rows of a table, each by column name."""
    names = list(table.columns)
    for values in zip(*table.columns.values(), strict=True):
        yield dict(zip(names, values, strict=True))
