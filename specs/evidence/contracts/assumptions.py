"""What the obligations of the rules assume and claim beyond a table's guards and its invariant.

Before an event the invariant held in the same context as after it, unless the event itself moves the context (a charge,
the next step, another configuration after a resume): `BEFORE` has those.

Not covered: a resume under a smaller max_num_steps or max_num_epochs than was already admitted or read. No rule
re-establishes the invariants of AdmissionGate and Source there.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from fsm.machines.admission_gate import AdmissionGate, GateContext, GateState
from fsm.machines.catalog import ALL_TABLES
from fsm.machines.run import RunState
from fsm.machines.source import Source, SourceContext, SourceState, left_in_epoch
from fsm.machines.step_assembly import StepAssembly, StepContext, StepState, want
from fsm.machines.trainer import Trainer, TrainerContext, TrainerState


class Before(NamedTuple):
    """How a value stood before an event."""

    moved: tuple[str, ...]
    """Fields of the context that may have been others before."""
    stood: Callable[[Any, Any, Any], bool]
    """Of the value, the context before and the context after."""


_INVARIANTS = {table.name: table.invariant for table in ALL_TABLES}


def _held(table: str, *moved: str) -> Before:
    invariant = _INVARIANTS[table]
    return Before(moved, lambda value, before, _: invariant(value, before))


_ANYHOW = Before((), lambda *_: True)

BEFORE: Mapping[tuple[str, str], Before] = {
    ("StepAssembly", "charged"): Before(
        ("charged",),
        lambda step, before, after: (
            before.charged == after.charged - 1 and _INVARIANTS["StepAssembly"](step, before)
        ),
    ),
    ("StepAssembly", "next"): _held("StepAssembly", "charged"),
    ("StepAssembly", "take_back"): _held("StepAssembly", "size", "charged", "floor"),
    ("ShortfallLedger", "resume"): _held("ShortfallLedger", "floor"),
    ("SparePool", "stock"): Before(
        ("data_left",), lambda pool, before, _: before.data_left == 1 and _INVARIANTS["SparePool"](pool, before)
    ),
    ("SparePool", "data_moved"): _ANYHOW,
    ("AdmissionGate", "restart"): _ANYHOW,
    # Regenerated prompts and another N (C3) change whether a batch is left, so the status says nothing yet.
    ("Source", "resume"): Before((), lambda source, _, after: (
        0 <= source.offset <= after.prompts_per_epoch and 0 <= source.epoch < after.epochs and source.requeued >= 0
    )),
}  # fmt: skip
"""Per table and event; for all others the invariant held in the same context."""


def before_of(table: str, event: str) -> Before:
    """How a value of the table stood before the event."""
    return BEFORE.get((table, event)) or _held(table)


def _charges_are_within(_: StepAssembly, context: StepContext) -> bool:
    return 0 <= context.charged <= context.size


DUE: Mapping[tuple[str, str], Callable[[Any, Any], bool]] = {
    ("StepAssembly", "select"): lambda step, context: (
        0 <= context.groups <= want(context.size, step.selected, context.charged)
    ),
    ("StepAssembly", "charged"): lambda *_: True,
    ("StepAssembly", "next"): _charges_are_within,
    ("StepAssembly", "take_back"): _charges_are_within,
    ("ShortfallLedger", "charge"): lambda ledger, context: (
        context.selected >= 0 and context.selected + ledger.charged < context.size
    ),
    ("ShortfallLedger", "resume"): lambda *_: True,
    ("SparePool", "stock"): lambda _, context: context.groups >= 0,
    ("SparePool", "draw"): lambda pool, context: 0 <= context.groups <= pool.spares,
    ("SparePool", "data_moved"): lambda pool, context: 0 <= context.groups <= pool.spares,
    ("Source", "pull"): lambda source, context: (
        0 <= context.groups <= left_in_epoch(source, context.prompts_per_epoch)
    ),
    ("Source", "resume"): lambda _, context: context.groups == 0,
}  # fmt: skip
"""Per event with several rules in one state: when it may not be refused there."""


def _step_edge(before: StepAssembly, after: StepAssembly, context: StepContext) -> bool:
    """S1, S5: selected groups come while the step is assembled and go as the event says. X1, L6: the two bad ends."""
    came = after.selected - before.selected
    if came > 0 and (before.status is not StepState.ASSEMBLING or came != context.groups):
        return False
    if came < 0 and after.selected > 0 and came != -context.groups:
        return False
    if after.status is StepState.SHORT:
        return after.selected >= max(context.floor, 1)
    if after.status is StepState.BELOW_FLOOR:
        return context.size - context.charged < context.floor
    return True


def _gate_edge(before: AdmissionGate, after: AdmissionGate, context: GateContext) -> bool:
    """A1: the index grows by one a batch; a run that starts over stands at its version (C3). A6: the step limit."""
    grew = after.dispatch_index - before.dispatch_index
    is_bounded = context.max_steps >= 0
    if after.status is GateState.OPEN:
        goes_beyond = is_bounded and before.dispatch_index + 1 >= context.max_steps
        return grew == (before.status is GateState.OPEN) and context.sampler_admits != 0 and not goes_beyond
    if after.dispatch_index == context.version - 1:
        return True
    return grew == 0 and (context.sampler_admits == 0 or (is_bounded and after.dispatch_index + 1 >= context.max_steps))


def _trainer_edge(before: Trainer, after: Trainer, context: TrainerContext) -> bool:
    """L5: the version moves by one when an optimizer step has finished, and never else. S1: no empty chunk."""
    if after.status is TrainerState.TRAINING and context.chunk < 1:
        return False
    return after.version - before.version == (after.status is TrainerState.SYNCING)


def _source_edge(before: Source, after: Source, context: SourceContext) -> bool:
    """X4: no prompt is passed over but an epoch's trailing ones, or pulled twice. X1: what exhaustion means."""
    if after.status is SourceState.EXHAUSTED and (context.hands != 0 or context.spares >= context.size):
        return False
    pulled = 0 if after.status is SourceState.EXHAUSTED else context.groups
    again = min(pulled, before.requeued)
    if after.requeued != before.requeued - again:
        return False
    if after.epoch == before.epoch:
        return after.offset == before.offset + pulled - again
    return after.epoch == before.epoch + 1 and after.offset == 0


EDGES: Mapping[str, Callable[[Any, Any, Any], bool]] = {
    # X4: what leaves a place was there, and nothing comes from nowhere.
    "PromptGroup": lambda before, after, context: (
        context.groups >= 0 and after.groups + context.groups == before.groups
    ),
    "StepAssembly": _step_edge,
    # L3: charges never fall, and come one at a time.
    "ShortfallLedger": lambda before, after, _: before.charged <= after.charged <= before.charged + 1,
    # X4: as many spares come or go as the event says, or none.
    "SparePool": lambda before, after, context: after.spares - before.spares in (0, context.groups, -context.groups),
    "AdmissionGate": _gate_edge,
    "Trainer": _trainer_edge,
    "Source": _source_edge,
    # X3: a run ends once.
    "Run": lambda before, *_: before.status is RunState.RUNNING,
}  # fmt: skip
"""Per table what every move does to a value, of the value before, after and the context."""
