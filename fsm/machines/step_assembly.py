"""StepAssembly: how far the step being trained is.

Its guard is the heart of evenstep: selected + charged never exceeds the step size, and the step is full exactly
when they are equal. The step's ShortfallLedger counts the charges, which come in the context.
"""

from enum import IntEnum
from typing import NamedTuple

from fsm.machines.table import Rule, Table


class StepState(IntEnum):
    """How far the step is."""

    ASSEMBLING = 0
    FULL = 1
    """selected + charged = size; its last chunk may still be in training."""
    FINISHING = 2
    """The optimizer step was asked for."""
    SHORT = 3
    """The optimizer step was asked for, and the step closes short at exhaustion."""
    CLOSED = 4
    BELOW_FLOOR = 5
    """It lost more groups than min_step_batch_fraction allows; the run stops."""


class StepAssembly(NamedTuple):
    """The value of the step being trained."""

    status: StepState = StepState.ASSEMBLING
    selected: int = 0
    """Groups selected into the step, whether their chunk is trained or in training. 0 ≤ selected ≤ size."""


class StepContext(NamedTuple):
    """What the step's rules look at."""

    size: int
    """N."""
    charged: int
    """The step's shortfall, after any charge that is part of the same transition."""
    floor: int
    """ceil(N × min_step_batch_fraction)."""
    groups: int = 0
    """Groups that are selected, or that turned out unreadable."""


def want(size: int, selected: int, charged: int) -> int:
    """Groups that a step still needs (S1)."""
    return size - selected - charged


_ASSEMBLING, _FULL, _FINISHING, _SHORT, _CLOSED, _BELOW_FLOOR = StepState


def status_of(selected: int, charged: int, size: int) -> StepState | None:
    """How far a step is whose optimizer step was not asked for; None where selected + charged exceed the size."""
    missing = want(size, selected, charged)
    if missing < 0:
        return None
    return _ASSEMBLING if missing else _FULL


def _leaves_room(step: StepAssembly, context: StepContext) -> bool:
    groups = context.groups
    return groups >= 0 and status_of(step.selected + groups, context.charged, context.size) is _ASSEMBLING


def _makes_full(step: StepAssembly, context: StepContext) -> bool:
    groups = context.groups
    return groups >= 0 and status_of(step.selected + groups, context.charged, context.size) is _FULL


def _has_selected(step: StepAssembly, context: StepContext) -> bool:
    return 1 <= context.groups <= step.selected


def _is_full(step: StepAssembly, context: StepContext) -> bool:
    return status_of(step.selected, context.charged, context.size) is _FULL


def _has_place(step: StepAssembly, context: StepContext) -> bool:
    return status_of(step.selected, context.charged, context.size) is _ASSEMBLING


def _may_close_short(step: StepAssembly, context: StepContext) -> bool:
    return step.selected >= context.floor and step.selected >= 1 and _has_place(step, context)


def _lost_too_many(_: StepAssembly, context: StepContext) -> bool:
    return context.size - context.charged < context.floor


def _is_untouched(_: StepAssembly, context: StepContext) -> bool:
    return context.charged >= 0 and status_of(0, context.charged, context.size) is _ASSEMBLING


def _is_all_charged(_: StepAssembly, context: StepContext) -> bool:
    return status_of(0, context.charged, context.size) is _FULL


def _select(step: StepAssembly, context: StepContext) -> StepAssembly:
    return StepAssembly(step.status, step.selected + context.groups)


def _unselect(step: StepAssembly, context: StepContext) -> StepAssembly:
    return StepAssembly(step.status, step.selected - context.groups)


def _empty(step: StepAssembly, _: StepContext) -> StepAssembly:
    return StepAssembly(step.status, 0)


def comes_out_even(step: StepAssembly, size: int, charged: int) -> bool:
    """selected + charged ≤ size, and full exactly when equal (L5); short only below the size (X1)."""
    status = step.status
    so_far = status_of(step.selected, charged, size)
    if step.selected < 0 or so_far is None:
        return False
    if status is _CLOSED or status is _BELOW_FLOOR:
        return True
    return so_far is (_ASSEMBLING if status is _ASSEMBLING or status is _SHORT else _FULL)


def step_holds(step: StepAssembly, context: StepContext) -> bool:
    """The step comes out even."""
    return comes_out_even(step, context.size, context.charged)


_RESUMABLE = (_ASSEMBLING, _FULL, _FINISHING, _SHORT, _BELOW_FLOOR)
"""Below the floor too: the floor may be another after a resume."""

STEP_ASSEMBLY: Table[StepAssembly, StepContext] = Table(
    name="StepAssembly",
    states=StepState,
    initial=_ASSEMBLING,
    rules=(
        Rule("select", (_ASSEMBLING,), _ASSEMBLING, ("S1", "S4"), (_leaves_room,), _select),
        Rule("select", (_ASSEMBLING,), _FULL, ("S1", "S4", "L5"), (_makes_full,), _select),
        Rule("charged", (_ASSEMBLING,), _ASSEMBLING, ("L3",), (_has_place,)),
        Rule("charged", (_ASSEMBLING,), _FULL, ("L3", "L5"), (_is_full,)),
        Rule("claim_failed", (_ASSEMBLING, _FULL), _ASSEMBLING, ("S5",), (_has_selected,), _unselect),
        Rule("finish", (_FULL,), _FINISHING, ("L5",), (_is_full,)),
        Rule("close_short", (_ASSEMBLING,), _SHORT, ("X1",), (_may_close_short,)),
        Rule("fall_below", (_ASSEMBLING, _FULL), _BELOW_FLOOR, ("L6",), (_lost_too_many,)),
        Rule("close", (_FINISHING, _SHORT), _CLOSED, ("L5", "X1")),
        Rule("next", (_CLOSED,), _ASSEMBLING, ("L5",), (_is_untouched,), _empty),
        Rule("next", (_CLOSED,), _FULL, ("L3", "L5"), (_is_all_charged,), _empty),
        Rule("take_back", _RESUMABLE, _ASSEMBLING, ("C2",), (_is_untouched,), _empty),
        Rule("take_back", _RESUMABLE, _FULL, ("C2", "L3"), (_is_all_charged,), _empty),
    ),
    refusals={
        "select": "selected + charged may not exceed the step size",
        "charged": "a charge goes to a step with a place left (L4)",
        "claim_failed": "only a selected group of a step that is not finishing can turn out unreadable",
        "finish": "a step is finished once selected + charged equal its size",
        "close_short": "a step closes short on at least one group, and on no fewer than the floor",
        "fall_below": "a step falls below the floor by its charges alone",
        "close": "a step closes once its optimizer step has finished",
        "next": "the next step opens when the one before has closed",
        "take_back": "an open step is taken back, and its charges stay within its size",
    },
    invariant=step_holds,
)
