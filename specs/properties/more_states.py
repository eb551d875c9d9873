"""More that holds of every state: what each rule of the core's own moves leaves undone, said without those moves.

`no_poll` of `specs.properties.kinds` asks the core itself whether something is left to do, so a core that is wrong
about it agrees with itself. These say it once more from the rules: each is named after what is done, with the rule's
number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fsm.machines.admission_gate import GateState
from fsm.machines.source import SourceState, left_in_epoch, source_holds
from fsm.machines.spare_pool import pool_holds
from fsm.machines.trainer import TrainerState
from fsm.rules.laws import Laws, pool_context, source_context
from fsm.samplers.promises import NO_LIMIT, Eligible
from fsm.state import GroupClass, State, charged, is_over
from fsm.values import pages
from specs.properties.kinds import Always

_PRODUCING, _EXHAUSTED = SourceState.PRODUCING, SourceState.EXHAUSTED
_ASSEMBLING, _SYNCING = TrainerState.ASSEMBLING, TrainerState.SYNCING
_ANY, _STAMPED, _OLDEST_BUCKET = Eligible.ANY, Eligible.STAMPED, Eligible.OLDEST_BUCKET
Holds = Callable[[State, Laws], bool]


def eligible(state: State, laws: Laws, step: int) -> Iterator[tuple[GroupClass, int]]:
    """The ready classes that S2 lets into `step`, with their counts; none if the sampler doesn't say which they are."""
    selects_from, bound = laws.promises.selects_from, laws.promises.staleness_bound
    if selects_from is None:
        return
    oldest = oldest_bucket(state) if selects_from is _OLDEST_BUCKET else None
    for group_class, groups in pages.items(state.ready):
        if selects_from is _ANY:
            fits = True
        elif selects_from is _STAMPED:
            fits = group_class.target_step == step
        elif selects_from is _OLDEST_BUCKET:
            fits = group_class.bucket == oldest
        else:
            fits = bound is not None and step - bound <= group_class.start_weight <= step
        if fits:
            yield group_class, groups


def oldest_bucket(state: State) -> int | None:
    """The oldest bucket that has a group queued, in flight or ready (S2)."""
    buckets = [state.queue.bucket] if state.queue.groups else []
    for counts in (state.running, state.waiting, state.backing_off, state.ready):
        buckets += [group_class.bucket for group_class, _ in pages.items(counts)]
    return min(buckets, default=None)


def may_lead_to(laws: Laws, version: int, dispatch_index: int) -> bool:
    """Whether the sampler may have admitted that many batches at the version (A1, A6)."""
    lead, limit = laws.promises.max_lead_versions, laws.limits.max_steps
    if lead is None or lead == NO_LIMIT:
        return True
    return dispatch_index <= version + lead and (limit < 0 or dispatch_index + 1 <= limit)


def _unless_over(holds: Holds) -> Holds:
    return lambda state, laws: is_over(state) or holds(state, laws)


def _while_assembling(holds: Holds) -> Holds:
    return lambda state, laws: is_over(state) or state.trainer.status is not _ASSEMBLING or holds(state, laws)


def _gate(state: State, laws: Laws) -> bool:
    if laws.promises.max_lead_versions is None:
        return True
    admits = may_lead_to(laws, state.trainer.version, state.gate.dispatch_index + 1)
    return (state.gate.status is GateState.OPEN) == admits


def _pool_says_what_it_does(state: State, laws: Laws) -> bool:
    return pool_holds(state.pool, pool_context(state, laws))


def _source_says_what_is_left(state: State, laws: Laws) -> bool:
    return source_holds(state.source, source_context(state, laws))


def _reserve(state: State, laws: Laws) -> bool:
    limits = laws.limits
    if not limits.uses_pool or state.source.status is not _PRODUCING:
        return True
    return left_in_epoch(state.source, limits.prompts_per_epoch) >= limits.size and state.pool.spares >= limits.reserve


def _admitted(state: State, laws: Laws) -> bool:
    if state.queue.groups or state.gate.status is not GateState.OPEN:
        return True
    spares = state.pool.spares >= laws.limits.size and state.tally.in_flight == 0
    return state.source.status is not _PRODUCING and not spares


def _started(state: State, laws: Laws) -> bool:
    del laws
    return not state.waiting or state.trainer.status is _SYNCING


def _dispatched(state: State, laws: Laws) -> bool:
    limits, tally = laws.limits, state.tally
    if not state.queue.groups or state.trainer.status is _SYNCING:
        return True
    return tally.in_flight >= limits.max_inflight or tally.in_flight + tally.ready >= limits.max_buffered


def _fresh(state: State, laws: Laws) -> bool:
    bound = laws.promises.staleness_bound
    if not laws.promises.evicts_stale or bound is None:
        return True
    oldest = state.trainer.version - bound
    kept = [state.running] if state.trainer.status is not _ASSEMBLING else [state.running, state.ready]
    return all(group_class.start_weight >= oldest for counts in kept for group_class, _ in pages.items(counts))


def _selected(state: State, laws: Laws) -> bool:
    limits, step = laws.limits, state.trainer.version
    want = limits.size - state.step.selected - charged(state, step)
    enough = sum(groups for _, groups in eligible(state, laws, step)) >= min(limits.min_groups, want)
    return want > 0 and not enough


def _floor(state: State, laws: Laws) -> bool:
    return laws.limits.size - charged(state, state.trainer.version) >= laws.limits.floor


def _search(state: State, laws: Laws) -> bool:
    limit = laws.limits.max_filtered
    return limit < 0 or pages.get(state.filtered, state.trainer.version, 0) <= limit


def _step_limit(state: State, laws: Laws) -> bool:
    return laws.limits.max_steps < 0 or state.trainer.version < laws.limits.max_steps


def _exhausted(state: State, laws: Laws) -> bool:
    tally = state.tally
    nothing = tally.queued == 0 and tally.in_flight == 0 and tally.spare < laws.limits.size
    return (state.source.status is _EXHAUSTED) == (nothing and state.source.status is not _PRODUCING)


def _ended(state: State, laws: Laws) -> bool:
    """At exhaustion a run that closes short is over, or trains."""
    if state.source.status is not _EXHAUSTED:
        return True
    return not laws.limits.closes_short and (state.step.selected > 0 or state.tally.ready > 0)


def _budgets(state: State, laws: Laws) -> bool:
    limits, budgets = laws.limits, state.budgets
    return budgets.consecutive_dropped <= limits.max_consecutive_dropped and budgets.skipped <= limits.max_skipped


MORE_ALWAYS: tuple[Always, ...] = (
    Always("gate", "the gate is open exactly while the next batch may be admitted", ("A1", "A3", "A6"),
           _unless_over(_gate)),
    Always("pool_status", "the pool says what it does", ("P1", "P2"), _unless_over(_pool_says_what_it_does)),
    Always("source_status", "the source says what is left", ("X1", "A5"), _unless_over(_source_says_what_is_left)),
    Always("reserve", "while data is left the pool has its reserve", ("P1", "A5"), _unless_over(_reserve)),
    Always("admitted", "a batch is queued, or none may be", ("A1", "P2"), _unless_over(_admitted)),
    Always("started", "nothing waits to start but for a sync", ("D2",), _unless_over(_started)),
    Always("dispatched", "nothing is queued that the limits let start", ("D1",), _unless_over(_dispatched)),
    Always("fresh", "nothing below the window runs, or is ready while the trainer assembles", ("E1",),
           _unless_over(_fresh)),
    Always("selected", "not enough is eligible for a chunk, and the step is not full", ("S1", "S2", "L5"),
           _while_assembling(_selected)),
    Always("floor", "no step below the floor is assembled", ("L6",), _while_assembling(_floor)),
    Always("search", "no step is assembled for which too many groups were filtered", ("L8",),
           _while_assembling(_search)),
    Always("step_limit", "no step beyond the limit is assembled", ("X3",), _while_assembling(_step_limit)),
    Always("exhausted", "exhausted is a source exactly when nothing can come", ("X1",), _unless_over(_exhausted)),
    Always("ended", "at exhaustion nothing is assembled but what a step still waits for", ("X1",),
           _while_assembling(_ended)),
    Always("budgets", "a run goes on within its drop budgets", ("L7",), _unless_over(_budgets)),
)  # fmt: skip
