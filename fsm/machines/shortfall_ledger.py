"""ShortfallLedger: the groups charged to one open step, which the step closes without."""

from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple

from fsm.machines.table import Fairness, Rule, Table


class LedgerState(IntEnum):
    """Where the step's shortfall stands against the floor."""

    EVEN = 0
    """Nothing is charged."""
    SHORT = 1
    """Charged, with room for more."""
    AT_FLOOR = 2
    """One more charge and the run stops."""
    BELOW_FLOOR = 3
    """The run stops once the trainer assembles the step (L6)."""
    SETTLED = 4
    """The step is closed."""


class ShortfallLedger(NamedTuple):
    """The value of one step's ledger."""

    status: LedgerState = LedgerState.EVEN
    charged: int = 0
    """Groups charged to the step. 0 ≤ charged ≤ size."""


class LedgerContext(NamedTuple):
    """What the ledger's rules look at."""

    size: int
    """N."""
    floor: int
    """ceil(N × min_step_batch_fraction)."""
    selected: int = 0
    """Groups selected into the step; 0 for a step that is not yet being trained."""


_EVEN, _SHORT, _AT_FLOOR, _BELOW_FLOOR, _SETTLED = LedgerState
_OPEN = (_EVEN, _SHORT, _AT_FLOOR, _BELOW_FLOOR)


def status_of(charged: int, size: int, floor: int) -> LedgerState:
    """Where an open step stands to which so many groups are charged."""
    if charged == 0:
        return _EVEN
    left = size - charged
    if left > floor:
        return _SHORT
    return _AT_FLOOR if left == floor else _BELOW_FLOOR


def _comes_to(charges: int, status: LedgerState, name: str) -> Callable[[ShortfallLedger, LedgerContext], bool]:
    """The guard: after so many more charges the step stands at `status`."""

    def guard(ledger: ShortfallLedger, context: LedgerContext) -> bool:
        return status_of(ledger.charged + charges, context.size, context.floor) is status

    guard.__name__ = name
    return guard


def _has_room(ledger: ShortfallLedger, context: LedgerContext) -> bool:
    return context.selected >= 0 and context.selected + ledger.charged < context.size


def _charge(ledger: ShortfallLedger, _: LedgerContext) -> ShortfallLedger:
    return ShortfallLedger(ledger.status, ledger.charged + 1)


def ledger_holds(ledger: ShortfallLedger, context: LedgerContext) -> bool:
    """The charge is within the step, and the status says where it stands."""
    if not 0 <= ledger.charged <= context.size:
        return False
    return ledger.status is _SETTLED or ledger.status is status_of(ledger.charged, context.size, context.floor)


SHORTFALL_LEDGER: Table[ShortfallLedger, LedgerContext] = Table(
    name="ShortfallLedger",
    states=LedgerState,
    initial=_EVEN,
    rules=(
        Rule("charge", (_EVEN, _SHORT), _SHORT, ("L3", "L4", "S5"),
             (_has_room, _comes_to(1, _SHORT, "_stays_above")), _charge, Fairness.NONE),
        Rule("charge", (_EVEN, _SHORT), _AT_FLOOR, ("L3", "L4", "S5"),
             (_has_room, _comes_to(1, _AT_FLOOR, "_comes_to_floor")), _charge, Fairness.NONE),
        Rule("charge", _OPEN, _BELOW_FLOOR, ("L3", "L4", "L6"),
             (_has_room, _comes_to(1, _BELOW_FLOOR, "_goes_below")), _charge, Fairness.NONE),
        Rule("settle", _OPEN, _SETTLED, ("L5",)),
        # A resume may be under another floor.
        Rule("resume", _OPEN, _EVEN, ("C2",), (_comes_to(0, _EVEN, "_is_even"),)),
        Rule("resume", _OPEN, _SHORT, ("C2",), (_comes_to(0, _SHORT, "_is_short"),)),
        Rule("resume", _OPEN, _AT_FLOOR, ("C2",), (_comes_to(0, _AT_FLOOR, "_is_at_floor"),)),
        Rule("resume", _OPEN, _BELOW_FLOOR, ("C2",), (_comes_to(0, _BELOW_FLOOR, "_is_below"),)),
    ),
    refusals={
        "charge": "a charge goes to an open step with selected + charged < size (L4)",
        "settle": "a step is settled once, when it closes",
        "resume": "the ledger of a closed step is over",
    },
    invariant=ledger_holds,
)  # fmt: skip
