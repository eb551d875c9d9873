"""Source: how much of the data is left, and when nothing can come any more.

An epoch is a fixed number of prompts in dataloader order. A prompt of a second epoch is another prompt.
"""

from enum import IntEnum
from typing import NamedTuple

from fsm.machines.table import Rule, Table


class SourceState(IntEnum):
    """Where prompts come from."""

    PRODUCING = 0
    DRAINING_SPARES = 1
    """The data is used up; only spares, the queue and groups in flight are left."""
    EXHAUSTED = 2
    """No data, nothing queued, nothing in flight, no whole batch of spares."""


class Source(NamedTuple):
    """The source's value."""

    status: SourceState = SourceState.PRODUCING
    epoch: int = 0
    offset: int = 0
    """Prompts of this epoch that are pulled or skipped."""
    requeued: int = 0
    """Prompts to be generated again, ahead of the rest of the data (C3)."""


class SourceContext(NamedTuple):
    """What the source's rules look at."""

    size: int
    """N: a whole batch."""
    prompts_per_epoch: int
    epochs: int
    skips_trailing: int
    """1 where an epoch's trailing batch is never pulled (A5)."""
    groups: int = 0
    """Prompts that are pulled."""
    hands: int = 0
    """Groups queued or in flight."""
    spares: int = 0


def position(source: Source, prompts_per_epoch: int) -> int:
    """Prompts of all epochs that are pulled or skipped."""
    return source.epoch * prompts_per_epoch + source.offset


def left_in_epoch(source: Source, prompts_per_epoch: int) -> int:
    """Prompts before the next end of an epoch, those to be generated again included."""
    return source.requeued + prompts_per_epoch - source.offset


def pullable(source: Source, context: SourceContext) -> bool:
    """A batch can be taken: prompts are left, and enough of them where a trailing batch is never pulled (A5)."""
    left = left_in_epoch(source, context.prompts_per_epoch)
    return left >= (context.size if context.skips_trailing else 1)


def advance(source: Source, context: SourceContext) -> Source:
    """`source` after a pull of `context.groups`; in the next epoch if this one has no batch left.

    Prompts to be generated again come first, and are kept for the next epoch. The end of the last epoch is not skipped,
    since a resume may be able to use it (another N, or a pool).
    """
    again = min(context.groups, source.requeued)
    offset = source.offset + context.groups - again
    source = Source(source.status, source.epoch, offset, source.requeued - again)
    if pullable(source, context) or source.epoch + 1 >= context.epochs:
        return source
    following = Source(source.status, source.epoch + 1, 0, source.requeued)
    return following if pullable(following, context) else source


def _is_left(source: Source, context: SourceContext) -> bool:
    return pullable(advance(source, context), context)


def _may_pull(source: Source, context: SourceContext) -> bool:
    return 0 <= context.groups <= left_in_epoch(source, context.prompts_per_epoch)


def _pulls_nothing(_: Source, context: SourceContext) -> bool:
    return context.groups == 0


def _used_up(source: Source, context: SourceContext) -> bool:
    return not _is_left(source, context)


def _nothing_left(_: Source, context: SourceContext) -> bool:
    return context.hands == 0 and context.spares < context.size


def source_holds(source: Source, context: SourceContext) -> bool:
    """Positions are within the data, and the source is producing exactly while a batch can be taken."""
    within = (
        0 <= source.offset <= context.prompts_per_epoch and 0 <= source.epoch < context.epochs and source.requeued >= 0
    )
    return within and pullable(source, context) == (source.status is SourceState.PRODUCING)


_PRODUCING, _DRAINING, _EXHAUSTED = SourceState

SOURCE: Table[Source, SourceContext] = Table(
    name="Source",
    states=SourceState,
    initial=_PRODUCING,
    rules=(
        Rule("pull", (_PRODUCING,), _PRODUCING, ("A1", "A5", "P1"), (_may_pull, _is_left), advance),
        Rule("pull", (_PRODUCING,), _DRAINING, ("A1", "A5", "P1"), (_may_pull, _used_up), advance),
        Rule("exhaust", (_DRAINING,), _EXHAUSTED, ("X1",), (_nothing_left,)),
        Rule("resume", (_PRODUCING, _DRAINING, _EXHAUSTED), _PRODUCING, ("C2", "C3"), (_pulls_nothing, _is_left),
             advance),
        Rule("resume", (_PRODUCING, _DRAINING, _EXHAUSTED), _DRAINING, ("C2", "C3"), (_pulls_nothing, _used_up),
             advance),
    ),
    refusals={
        "pull": "prompts are pulled while the epoch has that many left",
        "exhaust": "the source is exhausted when nothing is queued, in flight, or a whole batch of spares",
        "resume": "a resume pulls nothing",
    },
    invariant=source_holds,
)  # fmt: skip
