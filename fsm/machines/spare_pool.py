"""SparePool: prompts held back to replace filtered or dropped ones."""

from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple

from fsm.machines.table import Rule, Table


class PoolState(IntEnum):
    """What the pool does."""

    LOW = 0
    """Below the reserve while data is left: the next whole batch is diverted into it (P1)."""
    STOCKED = 1
    DRAINING = 2
    """The data is used up; whole batches of spares are admitted (P2)."""
    SPENT = 3
    """The data is used up and no spare is left."""


class SparePool(NamedTuple):
    """The pool's value."""

    status: PoolState = PoolState.LOW
    spares: int = 0
    """Prompts in the pool. Never negative."""


class PoolContext(NamedTuple):
    """What the pool's rules look at."""

    reserve: int
    """replacement_reserve_prompts; 0 where no pool is used."""
    data_left: int
    """1 while the source has prompts to give, after any pull that is part of the same transition."""
    groups: int = 0
    """Spares that come or go."""


def _change(sign: int) -> Callable[[SparePool, PoolContext], SparePool]:
    def update(pool: SparePool, context: PoolContext) -> SparePool:
        return SparePool(pool.status, pool.spares + sign * context.groups)

    return update


def status_of(spares: int, reserve: int, data_left: int) -> PoolState:
    """The status of a pool of so many spares."""
    if data_left:
        return PoolState.LOW if spares < reserve else PoolState.STOCKED
    return PoolState.DRAINING if spares else PoolState.SPENT


def _comes_to(sign: int, status: PoolState) -> Callable[[SparePool, PoolContext], bool]:
    def guard(pool: SparePool, context: PoolContext) -> bool:
        spares = pool.spares + sign * context.groups
        return context.groups >= 0 and spares >= 0 and status_of(spares, context.reserve, context.data_left) is status

    guard.__name__ = f"_comes_to_{status.name.lower()}"
    return guard


def pool_holds(pool: SparePool, context: PoolContext) -> bool:
    """Never negative, and the status is that of its spares."""
    return pool.spares >= 0 and pool.status is status_of(pool.spares, context.reserve, context.data_left)


_LOW, _STOCKED, _DRAINING, _SPENT = PoolState


def _rules(
    event: str, sources: tuple[PoolState, ...], sign: int, implements: tuple[str, ...]
) -> tuple[Rule[SparePool, PoolContext], ...]:
    """One rule for each state that the event can lead to."""
    dests = tuple(PoolState) if _LOW in sources else (_DRAINING, _SPENT)
    return tuple(Rule(event, sources, dest, implements, (_comes_to(sign, dest),), _change(sign)) for dest in dests)


SPARE_POOL: Table[SparePool, PoolContext] = Table(
    name="SparePool",
    states=PoolState,
    initial=_LOW,
    rules=(
        *_rules("stock", (_LOW, _STOCKED), 1, ("P1", "A5")),
        *_rules("draw", tuple(PoolState), -1, ("L2", "P2")),
        *_rules("data_moved", tuple(PoolState), 0, ("P2", "C2")),
    ),
    refusals={
        "stock": "prompts come into the pool while the source has data",
        "draw": "a spare is drawn from a pool that holds one",
        "data_moved": "always possible, with no spare coming or going",
    },
    invariant=pool_holds,
)
