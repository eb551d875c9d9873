"""What the obligations of the rules assume and claim beside a table's guards and its invariant.

A rule's value stood, before, in the same context as after, except where the event is itself what moves the context
(a charge, the next step, another configuration after a resume).

Not covered: a resume under a smaller max_num_steps or max_num_epochs than was already admitted or read. No rule
re-establishes the invariants of AdmissionGate and Source there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from fsm.machines.admission_gate import AdmissionGate, GateContext, GateState
from fsm.machines.catalog import ALL_TABLES
from fsm.machines.prompt_group import GroupContext, GroupCount
from fsm.machines.run import Run, RunContext, RunState
from fsm.machines.shortfall_ledger import LedgerContext, ShortfallLedger
from fsm.machines.source import Source, SourceContext, SourceState, left_in_epoch
from fsm.machines.spare_pool import PoolContext, SparePool
from fsm.machines.step_assembly import StepAssembly, StepContext, StepState, want
from fsm.machines.trainer import Trainer, TrainerContext, TrainerState


class Before(NamedTuple):
    """How a value stood before an event."""

    moved: tuple[str, ...]
    """Fields of the context that may have been others before."""
    stood: Callable[[Any, Any, Any], bool]
    """Of the value, the context before and the context after."""


_INVARIANTS = {table.name: table.invariant for table in ALL_TABLES}


def _charge_came(step: StepAssembly, before: StepContext, after: StepContext) -> bool:
    return before.charged == after.charged - 1 and _INVARIANTS["StepAssembly"](step, before)


def _data_was_left(pool: SparePool, before: PoolContext, _: PoolContext) -> bool:
    return before.data_left == 1 and _INVARIANTS["SparePool"](pool, before)


def _held_before(table: str) -> Callable[[Any, Any, Any], bool]:
    invariant = _INVARIANTS[table]

    def held(value: Any, before: Any, _: Any) -> bool:
        return invariant(value, before)

    return held


def _anyhow(_: Any, __: Any, ___: Any) -> bool:
    return True


def _is_within_data(source: Source, _: SourceContext, after: SourceContext) -> bool:
    """Regenerated prompts (C3) and another N change whether a batch is left, so the status says nothing yet.

    The epoch is one of the new configuration's.
    """
    return 0 <= source.offset <= after.prompts_per_epoch and 0 <= source.epoch < after.epochs and source.requeued >= 0


BEFORE: Mapping[tuple[str, str], Before] = {
    ("StepAssembly", "charged"): Before(("charged",), _charge_came),
    ("StepAssembly", "next"): Before(("charged",), _held_before("StepAssembly")),
    ("StepAssembly", "take_back"): Before(("size", "charged", "floor"), _held_before("StepAssembly")),
    ("ShortfallLedger", "resume"): Before(("floor",), _held_before("ShortfallLedger")),
    ("SparePool", "stock"): Before(("data_left",), _data_was_left),
    ("SparePool", "data_moved"): Before((), _anyhow),
    ("AdmissionGate", "restart"): Before((), _anyhow),
    ("Source", "resume"): Before((), _is_within_data),
}
"""Per table and event; elsewhere the invariant held in the same context."""


def before_of(table: str, event: str) -> Before:
    """How a value of the table stood before the event."""
    return BEFORE.get((table, event)) or Before((), _held_before(table))


def _chunk_is_wanted(step: StepAssembly, context: StepContext) -> bool:
    return 0 <= context.groups <= want(context.size, step.selected, context.charged)


def _charges_are_within(_: StepAssembly, context: StepContext) -> bool:
    return 0 <= context.charged <= context.size


def _step_has_place(ledger: ShortfallLedger, context: LedgerContext) -> bool:
    return context.selected >= 0 and context.selected + ledger.charged < context.size


def _spares_come(_: SparePool, context: PoolContext) -> bool:
    return context.groups >= 0


def _spares_are_there(pool: SparePool, context: PoolContext) -> bool:
    return 0 <= context.groups <= pool.spares


def _prompts_are_left(source: Source, context: SourceContext) -> bool:
    return 0 <= context.groups <= left_in_epoch(source, context.prompts_per_epoch)


def _pulls_nothing(_: Source, context: SourceContext) -> bool:
    return context.groups == 0


def _always(_: Any, __: Any) -> bool:
    return True


DUE: Mapping[tuple[str, str], Callable[[Any, Any], bool]] = {
    ("StepAssembly", "select"): _chunk_is_wanted,
    ("StepAssembly", "charged"): _always,
    ("StepAssembly", "next"): _charges_are_within,
    ("StepAssembly", "take_back"): _charges_are_within,
    ("ShortfallLedger", "charge"): _step_has_place,
    ("ShortfallLedger", "resume"): _always,
    ("SparePool", "stock"): _spares_come,
    ("SparePool", "draw"): _spares_are_there,
    ("SparePool", "data_moved"): _spares_are_there,
    ("Source", "pull"): _prompts_are_left,
    ("Source", "resume"): _pulls_nothing,
}
"""Per event with several rules in one state: when it may not be refused there."""


def _group_edge(before: GroupCount, after: GroupCount, context: GroupContext) -> bool:
    """X4: what leaves a place was there, and nothing comes from nowhere."""
    return context.groups >= 0 and after.groups + context.groups == before.groups


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


def _ledger_edge(before: ShortfallLedger, after: ShortfallLedger, _: LedgerContext) -> bool:
    """L3: charges never fall, and come one at a time."""
    return before.charged <= after.charged <= before.charged + 1


def _pool_edge(before: SparePool, after: SparePool, context: PoolContext) -> bool:
    """X4: as many spares come or go as the event says, or none."""
    return after.spares - before.spares in (0, context.groups, -context.groups)


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


def _run_edge(before: Run, _: Run, __: RunContext) -> bool:
    """X3: a run ends once."""
    return before.status is RunState.RUNNING


EDGES: Mapping[str, Callable[[Any, Any, Any], bool]] = {
    "PromptGroup": _group_edge,
    "StepAssembly": _step_edge,
    "ShortfallLedger": _ledger_edge,
    "SparePool": _pool_edge,
    "AdmissionGate": _gate_edge,
    "Trainer": _trainer_edge,
    "Source": _source_edge,
    "Run": _run_edge,
}
"""Per table what every move does to a value, of the value before, after and the context."""
