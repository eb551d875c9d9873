"""What every transition needs besides the state: the limits, the sampler, and a way to fire rules."""

from typing import NamedTuple

from fsm.machines.shortfall_ledger import LedgerContext
from fsm.machines.source import SourceContext, SourceState
from fsm.machines.spare_pool import PoolContext
from fsm.machines.step_assembly import StepContext
from fsm.machines.table import Fire
from fsm.samplers.promises import Promises, promises_of
from fsm.samplers.protocol import BaseSampler, DropAccountingSampler, PromptGroupSampler, accounting_of, is_custom
from fsm.state import Limits, State, charged, selected


class Laws(NamedTuple):
    """Fixed for a run."""

    limits: Limits
    sampler: PromptGroupSampler
    sampler_name: str
    accounting: DropAccountingSampler
    """Answers for lost groups: the sampler, or the defaults if it says nothing of them."""
    is_custom: bool
    """The sampler's answers are checked, and it may be to blame."""
    evicts_nothing: bool
    """The sampler has the default `evict`, so it need not be asked after every event (E2)."""
    keeps_stale: bool
    """The sampler has the default `should_abort_inflight`, so it need not be asked about every class (E2)."""
    fire: Fire
    promises: Promises


def laws_of(limits: Limits, sampler: PromptGroupSampler, sampler_name: str, fire: Fire) -> Laws:
    """The laws of a run under `sampler`. Raises ConfigError if it declares a promise of the wrong type."""
    never_evicts: object = BaseSampler.evict
    never_aborts: object = BaseSampler.should_abort_inflight
    return Laws(
        limits,
        sampler,
        sampler_name,
        accounting_of(sampler),
        is_custom(sampler),
        evicts_nothing=type(sampler).evict is never_evicts,
        keeps_stale=type(sampler).should_abort_inflight is never_aborts,
        fire=fire,
        promises=promises_of(sampler, sampler_name),
    )


def step_context(state: State, laws: Laws, groups: int = 0) -> StepContext:
    """For the step being trained."""
    limits = laws.limits
    return StepContext(limits.size, charged(state, state.trainer.version), limits.floor, groups)


def ledger_context(state: State, limits: Limits, step: int) -> LedgerContext:
    """For one open step."""
    return LedgerContext(limits.size, limits.floor, selected(state, step))


def pool_context(state: State, laws: Laws, groups: int = 0) -> PoolContext:
    """For the pool, with the source as it is in `state`."""
    return PoolContext(laws.limits.reserve, int(state.source.status is SourceState.PRODUCING), groups)


def source_context(state: State, laws: Laws, groups: int = 0) -> SourceContext:
    """For the source."""
    limits, sheet = laws.limits, state.sheet
    return SourceContext(
        limits.size,
        limits.prompts_per_epoch,
        limits.epochs,
        int(limits.skips_trailing),
        groups,
        sheet.queued + sheet.in_flight,
        state.pool.spares,
    )
