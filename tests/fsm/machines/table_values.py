"""Small values and contexts of every rule table, and how a context moves across an event.

A rule's obligation is: the machine's invariant holds before, and the guards hold, so the invariant holds after.
Before and after are mostly told by one context. Where an event is itself what moves the context (a charge, the next
step, another configuration after a resume), `BEFORE` gives the contexts in which the value may have stood before.
"""

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

from fsm.machines.admission_gate import GateContext, GateState
from fsm.machines.prompt_group import GroupContext, GroupCount
from fsm.machines.run import RunContext
from fsm.machines.shortfall_ledger import LedgerContext
from fsm.machines.source import SourceContext, SourceState
from fsm.machines.spare_pool import PoolContext
from fsm.machines.step_assembly import StepContext
from fsm.machines.table import Table
from fsm.machines.trainer import TrainerContext

SIZES = (1, 2, 3, 4)
COUNTS = (-1, 0, 1, 2, 3, 4, 5)

Values = dict[str, tuple[int, ...]]

VALUES: dict[str, Values] = {
    "PromptGroup": {"groups": COUNTS},
    "StepAssembly": {"selected": COUNTS},
    "ShortfallLedger": {"charged": COUNTS},
    "SparePool": {"spares": COUNTS},
    "AdmissionGate": {"dispatch_index": (-2, *COUNTS)},
    "Trainer": {"version": COUNTS},
    "Source": {"epoch": (-1, 0, 1, 2), "offset": (-1, 0, 1, 2, 4, 5), "requeued": (-1, 0, 1, 3)},
    "Run": {},
}
"""Per table the fields of its value beside the status, in order, and what they are tried with."""

CONTEXTS: dict[str, tuple[type[Any], Values]] = {
    "PromptGroup": (GroupContext, {"groups": COUNTS}),
    "StepAssembly": (StepContext, {"size": SIZES, "charged": COUNTS, "floor": SIZES, "groups": COUNTS}),
    "ShortfallLedger": (LedgerContext, {"size": SIZES, "floor": SIZES, "selected": COUNTS}),
    "SparePool": (PoolContext, {"reserve": (0, 1, 2, 3), "data_left": (0, 1), "groups": COUNTS}),
    "AdmissionGate": (GateContext, {"sampler_admits": (0, 1), "max_steps": (-1, 1, 2, 4), "version": (0, 1, 2, 4)}),
    "Trainer": (TrainerContext, {"chunk": COUNTS}),
    "Source": (
        SourceContext,
        {
            "size": (1, 2, 3),
            "prompts_per_epoch": (0, 1, 2, 4),
            "epochs": (1, 2),
            "skips_trailing": (0, 1),
            "groups": (-1, 0, 1, 3),
            "hands": (0, 1),
            "spares": (0, 2),
        },
    ),
    "Run": (RunContext, {}),
}
"""Per table the context that its rules look at, and what its fields are tried with."""

VALUE_TYPES: dict[str, type[Any]] = {"PromptGroup": GroupCount}
"""The type of a value, where it is not that of the table's own name in its module."""


def values_of(table: Table[Any, Any], make: type[Any]) -> Iterator[Any]:
    """Every value of the grid, in every state."""
    fields = VALUES[table.name]
    for status, *rest in product(table.states, *fields.values()):
        yield make(status, *rest)


def contexts_of(table: Table[Any, Any]) -> Iterator[Any]:
    """Every context of the grid."""
    make, fields = CONTEXTS[table.name]
    for given in product(*fields.values()):
        yield make(*given)


def _one_charge_less(context: StepContext) -> list[StepContext]:
    return [context._replace(charged=context.charged - 1)]


def _of_the_closed_step(context: StepContext) -> list[StepContext]:
    return [context._replace(charged=charged) for charged in range(context.size + 1)]


def _other_floor(context: Any) -> list[Any]:
    return [context._replace(floor=floor) for floor in SIZES]


def _data_was_left(context: PoolContext) -> list[PoolContext]:
    return [context._replace(data_left=1)]


def _other_pool(context: PoolContext) -> list[PoolContext]:
    return [context._replace(data_left=left, reserve=reserve) for left in (0, 1) for reserve in (0, 1, 2, 3)]


def _other_source(context: SourceContext) -> list[SourceContext]:
    return [context._replace(size=size, skips_trailing=skips) for size in (1, 2, 3) for skips in (0, 1)]


BEFORE: dict[tuple[str, str], Callable[[Any], list[Any]]] = {
    ("StepAssembly", "charged"): _one_charge_less,
    ("StepAssembly", "next"): _of_the_closed_step,
    ("StepAssembly", "take_back"): _other_floor,
    ("ShortfallLedger", "resume"): _other_floor,
    ("SparePool", "stock"): _data_was_left,
    ("SparePool", "data_moved"): _other_pool,
    ("Source", "resume"): _other_source,
}

FRESH = {("Source", "resume"), ("SparePool", "data_moved")}
"""These also take the value of a run that has not begun, whose status says nothing yet about the data."""


def stood_before(table: Table[Any, Any], event: str, value: Any, context: Any) -> bool:
    """The invariant held of `value` before `event`."""
    before = BEFORE.get((table.name, event), lambda same: [same])(context)
    if any(table.invariant(value, each) for each in before):
        return True
    initial = value.status in (SourceState.PRODUCING, GateState.OPEN) and value == type(value)()
    return (table.name, event) in FRESH and initial
