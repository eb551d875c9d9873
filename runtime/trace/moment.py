"""The state of a run at any moment of its trace: the snapshot before it, plus the events since."""

import mmap
from collections.abc import Iterator
from dataclasses import dataclass

from fsm.core import AppliedEvent, Core
from fsm.errors import EvenstepError
from fsm.snapshot import reinstate
from runtime.trace.choose import every, head_of
from runtime.trace.files import TraceUnreadable, core_of, setup_of
from runtime.trace.reader import SNAPSHOT_MARK, TraceFile, blocks, content_of
from runtime.trace.records import NoteRecord, SnapshotRecord, TransitionRecord
from runtime.trace.vitals import Vitals, from_json


@dataclass(frozen=True, slots=True)
class Moment:
    """A run after one record."""

    core: Core
    """`book.closed` has only the steps closed since the snapshot that this was built from."""
    vitals: Vitals
    seq: int
    """The last record that counts; −1 before the first."""
    monotonic_s: float
    unix_s: float
    diverged_seq: int | None
    """The first event since the snapshot that today's core handled differently; None if there is none. The state is
    then what today's core made of the events; `evenstep replay` shows the difference."""


def state_at(trace: TraceFile, *, seq: int | None = None, unix_s: float | None = None) -> Moment:
    """The run after the last record up to `seq` and up to `unix_s`; None sets no limit.

    Raises TraceUnreadable, and ConfigError if the run's custom sampler cannot be loaded.
    """
    found = _last_snapshot(trace, seq, unix_s)
    today: list[AppliedEvent] = []
    if found is None:
        vitals, last = Vitals(), _beginning(trace)
        core = core_of(trace.header, today.append)
        lines = trace.lines()
    else:
        number, end, record = found
        core = reinstate(
            setup_of(trace.header), record.snapshot, closed_before=record.closed_before, observer=today.append
        )
        vitals, last = from_json(record.vitals), record[:3]
        lines = _lines_after(trace, number, end)
    diverged: int | None = None
    for line in lines:
        if _is_after(trace, line, seq, unix_s):
            break
        made = trace.parse(line)
        last = made[:3]
        match made:
            case TransitionRecord(monotonic_s=monotonic_s, transition=transition):
                vitals.transition(monotonic_s, transition)
                if not _apply(trace, core, today, made) and diverged is None:
                    diverged = made.seq
            case NoteRecord(monotonic_s=monotonic_s, note=note):
                vitals.note(monotonic_s, note)
            case SnapshotRecord():
                pass  # the state that is already reached
    return Moment(core, vitals, *last, diverged)


def _beginning(trace: TraceFile) -> tuple[int, float, float]:
    """The moment before the run's first record, which must be in the trace."""
    first = next(trace.lines(), None)
    head = None if first is None else head_of(first)
    if head is not None and head.seq != 0:
        raise TraceUnreadable(
            f"{trace.path} begins with record {head.seq} and has no snapshot up to the moment asked for; name a "
            f"later moment"
        )
    return -1, 0.0, trace.started_unix_s


def _apply(trace: TraceFile, core: Core, today: list[AppliedEvent], record: TransitionRecord) -> bool:
    """Apply a recorded event. Returns whether today's core did the same as the recorded one."""
    today.clear()
    try:
        core.apply(record.transition.event)
    except EvenstepError as error:
        raise TraceUnreadable(
            f"{trace.path}: today's core refuses record {record.seq} ({type(error).__name__}: {error}), so the state "
            f"after it is unknown; evenstep replay shows the difference"
        ) from error
    return str(today[0]) == str(record.transition)  # as text: errors with equal messages count as equal


def _is_after(trace: TraceFile, line: bytes, seq: int | None, unix_s: float | None) -> bool:
    if seq is None and unix_s is None:
        return False
    head = head_of(line)
    if head is None:
        return False
    if seq is not None and head.seq > seq:
        return True
    return unix_s is not None and trace.started_unix_s + head.monotonic_s + head.drift_s > unix_s


def _last_snapshot(trace: TraceFile, seq: int | None, unix_s: float | None) -> tuple[int, int, SnapshotRecord] | None:
    """The last snapshot that is not after the moment: number of its part, end of its line, record. Reads backwards."""
    for number in range(len(trace.parts) - 1, -1, -1):
        with content_of(trace.parts[number]) as content:
            for start, line in _snapshots_in(content):
                if not _is_after(trace, line, seq, unix_s):
                    record = trace.parse(line)
                    assert isinstance(record, SnapshotRecord)
                    return number, start + len(line), record
    return None


def _snapshots_in(content: bytes | mmap.mmap) -> Iterator[tuple[int, bytes]]:
    """Whole snapshot lines and their offsets, the last first."""
    position = len(content)
    while (mark := content.rfind(SNAPSHOT_MARK, 0, position)) >= 0:
        start, end = content.rfind(b"\n", 0, mark) + 1, content.find(b"\n", mark) + 1
        if end:
            yield start, content[start:end]
        position = start


def _lines_after(trace: TraceFile, number: int, offset: int) -> Iterator[bytes]:
    """Lines of a part from an offset on, then those of the parts after it."""
    for part in trace.parts[number:]:
        for block in blocks(part):
            if offset < len(block):
                yield from every(block[offset:])
            offset = max(0, offset - len(block))
