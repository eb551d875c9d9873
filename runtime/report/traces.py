"""The traces of a run that was resumed or restarted: every process wrote its own."""

from collections.abc import Sequence
from typing import NamedTuple

from runtime.trace.choose import head_of
from runtime.trace.files import TraceUnreadable, older_traces
from runtime.trace.reader import TraceFile, open_trace


class Older(NamedTuple):
    """What was before a trace."""

    traces: Sequence[TraceFile]
    """Oldest first, with no gap up to the given trace; without those that have no record."""
    left_out: str | None
    """Why the run's first traces are not among them; None if all are."""


def older_of(trace: TraceFile) -> Older:
    """The traces that the same run wrote before this one, back to the first that cannot be read from its beginning on.

    Raises TraceUnreadable: this trace cannot be read.
    """
    found: list[TraceFile] = []
    after = trace
    for path in reversed(older_traces(trace.path)):
        if _first_seq(after) not in (0, None):
            first = f"{after.path.name} begins with record {_first_seq(after)}"
            return Older(found[::-1], f"{first}, so {path.name} and what was before it cannot be joined to it")
        try:
            opened = open_trace(path)
            first_seq = _first_seq(opened)
        except TraceUnreadable as error:
            return Older(found[::-1], str(error))
        if first_seq is not None:
            found.append(opened)
            after = opened
    return Older(found[::-1], None)


def _first_seq(trace: TraceFile) -> int | None:
    """The number of its first record; None if it has none."""
    head = head_of(next(trace.lines(), b""))
    return None if head is None else head.seq
