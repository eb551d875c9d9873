"""Properties of every transition: what happens to groups on their way into a step.

Admission (A), the data and the pool (P), dispatch (D), selection (S) and eviction (E). Each property follows what it
needs of the state (the queue, the spares, the dispatch index) from change to change, so that it also sees a change
that a later one of the same transition hides.
"""

from fsm.machines.source import Source, SourceState
from fsm.machines.trainer import TrainerState
from fsm.rules import changes
from fsm.rules.laws import Laws
from fsm.samplers.promises import Eligible, SelectionOrder
from fsm.state import NONE, GroupClass, Limits, charged, starting
from fsm.values import pages
from specs.properties.kinds import Edge, Transition, edge
from specs.properties.sampler_facts import (
    bound_beyond_which_groups_go,
    eligible_classes,
    may_be_stamped,
    may_lead_to,
    oldest_bucket,
)


def assembles(transition: Transition) -> bool:
    """The trainer assembles when the core's own moves begin."""
    to_assembling = transition.answer.name in ("chunk_trained", "weights_synced", "crash")
    return to_assembling or transition.before.trainer.status is TrainerState.ASSEMBLING


def resumes_otherwise(transition: Transition) -> bool:
    """The run resumes under another sampler or size, or with other data (C3)."""
    return any(isinstance(change, changes.RunRegenerated | changes.DataReplaced) for change in transition.done)


@edge("A1", "A2", "A6", "D3")
def admission(transition: Transition, laws: Laws) -> bool:
    """A batch is admitted in its turn, with its sampler's stamp, when nothing is queued."""
    version, limits = transition.after.trainer.version, laws.limits
    again = resumes_otherwise(transition)
    index = version - 1 if again else transition.before.gate.dispatch_index
    queued = 0 if again else transition.before.queue.groups
    for change in transition.done:
        if isinstance(change, changes.QueueDispatched):
            queued -= change.groups
        elif isinstance(change, changes.BatchAdmitted):
            index += 1
            whole = change.groups == limits.size or (change.groups < limits.size and limits.closes_short == 1)
            in_turn = queued == 0 and whole and may_lead_to(laws, version, index)
            if not in_turn or not may_be_stamped(laws, version, index, change.target_step, change.bucket):
                return False
            queued = change.groups
    return laws.is_custom or index == transition.after.gate.dispatch_index


@edge("P2")
def spares_last(transition: Transition, laws: Laws) -> bool:
    """Spares are admitted when nothing else is left."""
    in_flight = transition.after.sheet.in_flight
    for change in reversed(transition.done):
        if isinstance(change, changes.QueueDispatched):
            in_flight -= change.groups
        elif isinstance(change, changes.BatchAdmitted) and change.from_spares:
            used_up = transition.after.source.status is not SourceState.PRODUCING
            if in_flight or not used_up or change.groups != laws.limits.size:
                return False
    return True


@edge("P1", "A5")
def held_back(transition: Transition, laws: Laws) -> bool:
    """A batch is diverted below the reserve alone, a trailing one at once."""
    limits = laws.limits
    spares = 0 if resumes_otherwise(transition) else transition.before.pool.spares
    for change in transition.done:
        if isinstance(change, changes.GroupReplaced):
            spares -= 1
        elif isinstance(change, changes.BatchAdmitted) and change.from_spares:
            spares -= change.groups
        elif isinstance(change, changes.PromptsHeldBack):
            due = spares < limits.reserve if change.groups == limits.size else change.groups < limits.size
            if not due or not limits.uses_pool:
                return False
            spares += change.groups
    return spares == transition.after.pool.spares


def _left(source: Source, limits: Limits) -> int:
    return source.requeued + (limits.epochs - source.epoch) * limits.prompts_per_epoch - source.offset


@edge("X4", "A5")
def data(transition: Transition, laws: Laws) -> bool:
    """What is pulled is gone from the data."""
    if resumes_otherwise(transition):
        return True
    before, after, limits = transition.before.source, transition.after.source, laws.limits
    pulled = sum(change.groups for change in transition.all_of(changes.PromptsHeldBack))
    pulled += sum(change.groups for change in transition.all_of(changes.BatchAdmitted) if not change.from_spares)
    passed_over = _left(before, limits) - _left(after, limits) - pulled
    trailing = (limits.size - 1) * (after.epoch - before.epoch) if limits.skips_trailing else 0
    return 0 <= passed_over <= trailing


@edge("D1", "D2", "D3")
def starts(transition: Transition, _: Laws) -> bool:
    """Attempts start under the version, with their batch's stamp, and never during a sync."""
    after, queue = transition.after, transition.before.queue
    stamp, has_dispatched = (queue.target_step, queue.bucket), False
    for change in transition.done:
        if isinstance(change, changes.BatchAdmitted):
            stamp = (change.target_step, change.bucket)
        elif isinstance(change, changes.QueueDispatched | changes.WaitingStarted):
            if isinstance(change, changes.QueueDispatched):
                as_due = change.group_class == GroupClass(*stamp, after.trainer.version)
                has_dispatched = True
            else:
                as_due = change.start_weight == after.trainer.version and not has_dispatched
            if not as_due or after.trainer.status is TrainerState.SYNCING:
                return False
    if not transition.all_of(changes.RunResumed):
        return True
    return all(group_class.start_weight == after.trainer.version for group_class, _ in pages.items(after.running))


@edge("D2", "D3")
def stamps(transition: Transition, _: Laws) -> bool:
    """A group keeps its stamp and start weight."""
    for change in transition.done:
        if isinstance(change, changes.GroupCommitted):
            if change.after != change.before._replace(replacements=0, label=change.after.label):
                return False
        elif isinstance(change, changes.RetryWaits) and change.after != starting(change.before, NONE):
            return False
    return True


@edge("D1")
def room(transition: Transition, laws: Laws) -> bool:
    """Dispatch keeps to max_inflight_prompts and max_buffered_rollouts."""
    limits, sheet = laws.limits, transition.after.sheet
    if not transition.all_of(changes.QueueDispatched):
        return True
    return sheet.in_flight <= limits.max_inflight and sheet.in_flight + sheet.ready <= limits.max_buffered


@edge("D2")
def late(transition: Transition, _: Laws) -> bool:
    """An answer for an attempt that is over changes nothing."""
    if transition.answer.name != "late":
        return True
    return not transition.done and transition.before.sheet == transition.after.sheet


@edge("S1", "X1")
def chunk(transition: Transition, laws: Laws) -> bool:
    """A chunk is of the streaming minimum or what the step wants."""
    limits, after = laws.limits, transition.after
    for change in transition.all_of(changes.ChunkSelected):
        groups = sum(taken for _, taken in change.picks)
        want = limits.size - (after.step.selected - groups) - charged(after, change.step)
        at_the_end = limits.closes_short and after.source.status is SourceState.EXHAUSTED
        if not (1 if at_the_end else min(limits.min_groups, want)) <= groups <= want:
            return False
    return True


@edge("S2")
def eligible(transition: Transition, laws: Laws) -> bool:
    """What is selected is eligible."""
    selects_from, bound = laws.promises.selects_from, laws.promises.staleness_bound
    oldest = oldest_bucket(transition.after)
    for change in transition.all_of(changes.ChunkSelected):
        for group_class, _ in change.picks:
            if selects_from is Eligible.STAMPED and group_class.target_step != change.step:
                return False
            if selects_from is Eligible.OLDEST_BUCKET and oldest is not None and oldest < group_class.bucket:
                return False
            age = change.step - group_class.start_weight
            if selects_from is Eligible.FRESH and bound is not None and not 0 <= age <= bound:
                return False
    return True


@edge("S3")
def order(transition: Transition, laws: Laws) -> bool:
    """Selection is in order of dispatch, or the freshest first."""
    selects_from, promised = laws.promises.selects_from, laws.promises.selection_order
    if promised is None:
        return True
    sign = -1 if promised is SelectionOrder.FRESHEST_FIRST else 1
    for change in transition.all_of(changes.ChunkSelected):
        taken = [sign * group_class.start_weight for group_class, _ in change.picks]
        left = [sign * c.start_weight for c, _ in eligible_classes(transition.after, laws, change.step)]
        if selects_from is Eligible.OLDEST_BUCKET:
            buckets = {group_class.bucket for group_class, _ in change.picks}
            left = [c.start_weight for c, _ in pages.items(transition.after.ready) if c.bucket in buckets]
        if taken != sorted(taken) or (left and taken[-1] > min(left)):
            return False
    return True


@edge("A2", "S2")
def target(transition: Transition, _: Laws) -> bool:
    """No group is trained for a step other than its target."""
    return all(
        group_class.target_step in (NONE, change.step)
        for change in transition.all_of(changes.ChunkSelected)
        for group_class, _ in change.picks
    )


def staleness(bound: int) -> Edge:
    """Staleness at selection is at most `bound`, which the sampler promises."""

    def holds(transition: Transition, _: Laws) -> bool:
        return all(
            change.step - group_class.start_weight <= bound
            for change in transition.all_of(changes.ChunkSelected)
            for group_class, _ in change.picks
        )

    return Edge("staleness", f"staleness at selection is at most {bound}", ("S2", "E1"), holds)


@edge("E1", "E2")
def stale(transition: Transition, laws: Laws) -> bool:
    """What is evicted or aborted is below the window."""
    version, bound = transition.after.trainer.version, bound_beyond_which_groups_go(laws)
    evicted = transition.all_of(changes.GroupsEvicted)
    aborted = transition.all_of(changes.GroupsAborted)
    gone = [group_class for picks, *_ in (*evicted, *aborted) for group_class, _ in picks]
    if bound is None:
        return laws.promises.evicts_stale is None or not gone
    at_the_limit = 0 <= laws.limits.max_steps <= version
    if evicted and (at_the_limit or not assembles(transition)):
        return False
    return all(group_class.start_weight < version - bound for group_class in gone)
