"""What the rules say of a sampler, from what it promises."""

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
    """Whether the sampler may have admitted that many batches at the version (A1, A6); True if it doesn't say."""
    lead, limit = laws.promises.max_lead_versions, laws.limits.max_steps
    if lead is None or lead == NO_LIMIT:
        return True
    return dispatch_index <= version + lead and (limit < 0 or dispatch_index + 1 <= limit)


def may_be_stamped(laws: Laws, version: int, dispatch_index: int, target_step: int, bucket: int) -> bool:
    """Whether that may be the stamp of a batch that is admitted now (A2, D3); True if the sampler doesn't say."""
    stamp = laws.promises.batch_stamp
    target = dispatch_index if stamp is Stamp.TARGET_STEP else NONE
    return stamp is None or (target_step, bucket) == (target, version if stamp is Stamp.BUCKET else NONE)


def bound_beyond_which_groups_go(laws: Laws) -> int | None:
    """The staleness bound of a sampler that evicts and aborts exactly what is beyond it (E1); else None."""
    return laws.promises.staleness_bound if laws.promises.evicts_stale else None
