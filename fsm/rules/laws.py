"""What every transition needs beside the state: the limits, the sampler, and a way to fire rules."""

from __future__ import annotations

from typing import NamedTuple

from fsm.machines.shortfall_ledger import LedgerContext
from fsm.machines.source import SourceContext, SourceState
from fsm.machines.spare_pool import PoolContext
from fsm.machines.step_assembly import StepContext
from fsm.machines.table import Fire
from fsm.samplers.builtin import BUILTIN
from fsm.samplers.protocol import DropAccountingSampler, GatedSampler, PromptGroupSampler
from fsm.state import Limits, State, charged


class Laws(NamedTuple):
    """Fixed for a run."""

    limits: Limits
    sampler: PromptGroupSampler
    sampler_name: str
    accounting: DropAccountingSampler
    """The sampler itself where it says what becomes of lost groups, else the defaults."""
    is_custom: bool
    """The sampler comes from outside, and so may be to blame."""
    evicts_nothing: bool
    """The sampler never evicts (E2), so that it need not be asked after every event."""
    keeps_stale: bool
    """The sampler never aborts (E2), so that it need not be asked about every class."""
    fire: Fire


def laws_of(limits: Limits, sampler: PromptGroupSampler, sampler_name: str, fire: Fire) -> Laws:
    """The laws of a run under `sampler`."""
    never_evicts: object = GatedSampler.evict
    never_aborts: object = GatedSampler.should_abort_inflight
    evicts_nothing = type(sampler).evict is never_evicts
    keeps_stale = type(sampler).should_abort_inflight is never_aborts
    accounting = sampler if isinstance(sampler, DropAccountingSampler) else GatedSampler()
    is_custom = type(sampler) not in BUILTIN
    return Laws(limits, sampler, sampler_name, accounting, is_custom, evicts_nothing, keeps_stale, fire)


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
