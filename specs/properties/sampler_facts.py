"""What the rules say of a run's batches and groups, by what its sampler promises (`fsm.samplers.promises`)."""

from __future__ import annotations

from collections.abc import Iterator

from fsm.rules.laws import Laws
from fsm.samplers.promises import NO_LIMIT, Eligible, Stamp
from fsm.state import NONE, GroupClass, State
from fsm.values import pages

_ANY, _STAMPED, _OLDEST_BUCKET = Eligible.ANY, Eligible.STAMPED, Eligible.OLDEST_BUCKET


def eligible_classes(state: State, laws: Laws, step: int) -> Iterator[tuple[GroupClass, int]]:
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


def stamp_of(laws: Laws, version: int, dispatch_index: int) -> tuple[int, int] | None:
    """The target step and the bucket of a batch that is admitted now (A2, D3); None if the sampler doesn't say."""
    stamps = laws.promises.batch_stamp
    if stamps is None:
        return None
    return dispatch_index if stamps is Stamp.TARGET_STEP else NONE, version if stamps is Stamp.BUCKET else NONE


def oldest_kept(laws: Laws, version: int) -> int | None:
    """The start weight below which groups are evicted and aborted (E1); None if the sampler doesn't promise that."""
    bound = laws.promises.staleness_bound
    return version - bound if laws.promises.evicts_stale and bound is not None else None
