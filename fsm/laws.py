"""What every transition needs beside the state: the limits, the sampler, and a way to fire rules.

The sampler is asked here and nowhere else. What a custom one answers is checked, and what it raises becomes a
SamplerError that names it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fsm import pages
from fsm.admission_gate import GateContext
from fsm.errors import SamplerError
from fsm.samplers.protocol import Admission, DropAccountingSampler, GatedSampler, PromptGroupSampler, optional
from fsm.shortfall_ledger import LedgerContext
from fsm.source import SourceContext, SourceState
from fsm.spare_pool import PoolContext
from fsm.state import GroupClass, Limits, State, View, assembling_step, charged
from fsm.step_assembly import StepContext
from fsm.table import Fire


class Laws(NamedTuple):
    """Fixed for a run."""

    limits: Limits
    sampler: PromptGroupSampler
    sampler_name: str
    accounting: DropAccountingSampler
    """The sampler itself where it says what becomes of lost groups, else the defaults."""
    keeps_stale: bool
    """The sampler never aborts (E2), so that it need not be asked about every class."""
    fire: Fire


def laws_of(limits: Limits, sampler: PromptGroupSampler, sampler_name: str, fire: Fire) -> Laws:
    """The laws of a run under `sampler`."""
    never: object = GatedSampler.should_abort_inflight
    keeps_stale = type(sampler).should_abort_inflight is never
    accounting = sampler if isinstance(sampler, DropAccountingSampler) else GatedSampler()
    return Laws(limits, sampler, sampler_name, accounting, keeps_stale, fire)


def _blame(laws: Laws, method: str, cause: Exception) -> SamplerError:
    return SamplerError(
        f"sampler {laws.sampler_name}: {method} raised {type(cause).__name__}: {cause}. "
        f"The run cannot go on without its answer; correct the sampler."
    )


def ask_admit(state: State, laws: Laws) -> Admission | None:
    """The sampler's admission for the next batch (A1)."""
    try:
        admission = laws.sampler.admit(View(state, laws.limits))
    except Exception as cause:
        raise _blame(laws, "admit", cause) from cause
    if admission is not None and not isinstance(admission, Admission):
        raise SamplerError(f"sampler {laws.sampler_name}: admit returned {admission!r}, not an Admission or None")
    if admission is not None and admission.target_step is not None:
        step = admission.target_step
        if step < state.trainer.version:
            raise SamplerError(
                f"sampler {laws.sampler_name}: admit stamped a batch for step {step}, which is closed; "
                f"the version is {state.trainer.version}"
            )
    return admission


def ask_select(state: State, laws: Laws, min_groups: int, max_groups: int) -> tuple[tuple[GroupClass, int], ...]:
    """The sampler's selection, () for not yet; checked against what is ready (S1, S2)."""
    try:
        picks = tuple(laws.sampler.select(View(state, laws.limits), min_groups, max_groups))
    except Exception as cause:
        raise _blame(laws, "select", cause) from cause
    if not picks:
        return ()
    taken = 0
    seen: set[GroupClass] = set()
    for group_class, groups in picks:
        ready = pages.get(state.ready, group_class, 0)
        if not 1 <= groups <= ready or group_class in seen:
            raise SamplerError(
                f"sampler {laws.sampler_name}: select took {groups} groups of {group_class}, of which {ready} "
                f"are ready{', twice' if group_class in seen else ''}"
            )
        if optional(group_class.target_step) not in (None, state.trainer.version):
            raise SamplerError(
                f"sampler {laws.sampler_name}: select took groups stamped for step {group_class.target_step} "
                f"into step {state.trainer.version}"
            )
        seen.add(group_class)
        taken += groups
    if not min_groups <= taken <= max_groups:
        raise SamplerError(
            f"sampler {laws.sampler_name}: select took {taken} groups, asked for {min_groups} to {max_groups}"
        )
    return picks


def ask_evict(state: State, laws: Laws) -> tuple[tuple[GroupClass, int], ...]:
    """The ready classes that the sampler evicts, with their counts (E1)."""
    try:
        classes: Sequence[GroupClass] = laws.sampler.evict(View(state, laws.limits))
    except Exception as cause:
        raise _blame(laws, "evict", cause) from cause
    picks = tuple((group_class, pages.get(state.ready, group_class, 0)) for group_class in classes)
    if any(groups == 0 for _, groups in picks) or len(set(classes)) != len(classes):
        raise SamplerError(f"sampler {laws.sampler_name}: evict named classes that are not ready: {picks}")
    return picks


def ask_abort(state: State, laws: Laws) -> tuple[tuple[GroupClass, int], ...]:
    """The running classes that the sampler aborts when the version moves, with their counts (E1)."""
    if laws.keeps_stale:
        return ()
    view = View(state, laws.limits)
    try:
        return tuple(
            (group_class, groups)
            for group_class, groups in pages.items(state.running)
            if laws.sampler.should_abort_inflight(view, group_class)
        )
    except Exception as cause:
        raise _blame(laws, "should_abort_inflight", cause) from cause


def ask_charge(state: State, laws: Laws, group_class: GroupClass) -> int | None:
    """The step that a lost group of the class is charged to, or None (L3); refused where there is no place (L4)."""
    limits = laws.limits
    try:
        step = laws.accounting.charge_step_for_lost_group(
            optional(group_class.target_step), assembling_step(state, limits)
        )
    except Exception as cause:
        raise _blame(laws, "charge_step_for_lost_group", cause) from cause
    if step is None:
        return None
    version = state.trainer.version
    chosen = state.step.selected if step == version else 0
    if step < version or chosen + charged(state, step) >= limits.size:
        counts = f"selected {chosen} + charged {charged(state, step)} of {limits.size}"
        what = "which is closed" if step < version else f"which is full ({counts})"
        raise SamplerError(
            f"sampler {laws.sampler_name}: charge_step_for_lost_group charges a lost group of {group_class} to "
            f"step {step}, {what}; the version is {version}. A charge goes to an open step with a place left (L4)."
        )
    return step


def step_context(state: State, laws: Laws, groups: int = 0) -> StepContext:
    """For the step being trained."""
    limits = laws.limits
    return StepContext(limits.size, charged(state, state.trainer.version), limits.floor, groups)


def ledger_context(state: State, laws: Laws, step: int) -> LedgerContext:
    """For one open step."""
    chosen = state.step.selected if step == state.trainer.version else 0
    return LedgerContext(laws.limits.size, laws.limits.floor, chosen)


def pool_context(state: State, laws: Laws, groups: int = 0) -> PoolContext:
    """For the pool, with the source as it is in `state`."""
    return PoolContext(laws.limits.reserve, int(state.source.status is SourceState.PRODUCING), groups)


def source_context(state: State, laws: Laws, groups: int = 0) -> SourceContext:
    """For the source."""
    limits, tally = laws.limits, state.tally
    return SourceContext(
        limits.size,
        limits.prompts_per_epoch,
        limits.epochs,
        int(limits.skips_trailing),
        groups,
        tally.queued + tally.in_flight,
        state.pool.spares,
    )


def gate_context(state: State, laws: Laws) -> GateContext:
    """For the gate: what the sampler admits now, and the step limit of a gated sampler (A6)."""
    limits = laws.limits
    bound = -1 if limits.closes_short else limits.max_steps
    return GateContext(int(ask_admit(state, laws) is not None), bound, state.trainer.version)
