"""More that holds of every transition: what each move may do, said from the rules and not from the core's functions.

Each property goes through the moves of a transition in order and follows what it needs of the state (`queue`, spares,
the dispatch index), so that a move which another hides within the transition is seen.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from fsm.errors import BelowFloor, BudgetExceeded, SamplerError, SearchExceeded
from fsm.machines.source import Source, SourceState
from fsm.machines.trainer import TrainerState
from fsm.rules import changes
from fsm.rules.laws import Laws
from fsm.samplers.promises import Eligible, SelectionOrder, Stamp
from fsm.state import NONE, GroupClass, Limits, State, assembling_step, charged, starting
from fsm.values import pages
from specs.properties.kinds import Edge, Transition
from specs.properties.more_states import eligible, may_lead_to, oldest_bucket

_GROUP_IS_GONE = (changes.GroupFiltered, changes.GroupDropped, changes.ClaimFailed)
_STOPS_A_LOSS = (BudgetExceeded, SamplerError)


_TO_ASSEMBLING = ("chunk_trained", "weights_synced", "crash")


def _assembles(transition: Transition) -> bool:
    """The trainer assembles when the core's own moves begin."""
    return transition.answer.name in _TO_ASSEMBLING or transition.before.trainer.status is TrainerState.ASSEMBLING


def _resumes_otherwise(transition: Transition) -> bool:
    return any(isinstance(move, changes.RunRegenerated | changes.DataReplaced) for move in transition.done)


def _admissions_are_due(transition: Transition, laws: Laws) -> bool:
    """A1, A2, A6, D3: each batch in its turn, stamped as its sampler stamps, when nothing is queued."""
    version, limits, stamps = transition.after.trainer.version, laws.limits, laws.promises.batch_stamp
    again = _resumes_otherwise(transition)
    index = version - 1 if again else transition.before.gate.dispatch_index
    queued = 0 if again else transition.before.queue.groups
    for move in transition.done:
        if isinstance(move, changes.QueueDispatched):
            queued -= move.groups
        elif isinstance(move, changes.BatchAdmitted):
            index += 1
            target = index if stamps is Stamp.TARGET_STEP else NONE
            bucket = version if stamps is Stamp.BUCKET else NONE
            stamped = stamps is None or (move.target_step, move.bucket) == (target, bucket)
            whole = move.groups == limits.size or (move.groups < limits.size and limits.closes_short == 1)
            in_turn = queued == 0 and whole and may_lead_to(laws, version, index)
            if not in_turn or not stamped:
                return False
            queued = move.groups
    return laws.is_custom or index == transition.after.gate.dispatch_index


def _spares_are_admitted_last(transition: Transition, laws: Laws) -> bool:
    """P2: a batch of spares comes when the data is used up and nothing is in flight."""
    in_flight = transition.after.tally.in_flight
    for move in reversed(transition.done):
        if isinstance(move, changes.QueueDispatched):
            in_flight -= move.groups
        elif isinstance(move, changes.BatchAdmitted) and move.from_spares:
            used_up = transition.after.source.status is not SourceState.PRODUCING
            if in_flight or not used_up or move.groups != laws.limits.size:
                return False
    return True


def _pool_takes_what_is_due(transition: Transition, laws: Laws) -> bool:
    """P1, A5: a whole batch below the reserve, or a trailing batch."""
    limits = laws.limits
    spares = 0 if _resumes_otherwise(transition) else transition.before.pool.spares
    for move in transition.done:
        if isinstance(move, changes.GroupReplaced):
            spares -= 1
        elif isinstance(move, changes.BatchAdmitted) and move.from_spares:
            spares -= move.groups
        elif isinstance(move, changes.PromptsHeldBack):
            due = spares < limits.reserve if move.groups == limits.size else move.groups < limits.size
            if not due or not limits.uses_pool:
                return False
            spares += move.groups
    return spares == transition.after.pool.spares


def _left(source: Source, limits: Limits) -> int:
    return source.requeued + (limits.epochs - source.epoch) * limits.prompts_per_epoch - source.offset


def _data_is_pulled_once(transition: Transition, laws: Laws) -> bool:
    """A5, X4: what is pulled is gone from the data, and nothing else but trailing batches that are never pulled."""
    if _resumes_otherwise(transition):
        return True
    before, after, limits = transition.before.source, transition.after.source, laws.limits
    pulled = sum(
        move.groups
        for move in transition.done
        if isinstance(move, changes.PromptsHeldBack)
        or (isinstance(move, changes.BatchAdmitted) and not move.from_spares)
    )
    passed_over = _left(before, limits) - _left(after, limits) - pulled
    trailing = (limits.size - 1) * (after.epoch - before.epoch) if limits.skips_trailing else 0
    return 0 <= passed_over <= trailing


def _starts_are_stamped(transition: Transition, laws: Laws) -> bool:
    """D1, D2, D3: under the version, with their batch's stamp, never during a sync, and what waited first."""
    del laws
    after, queue = transition.after, transition.before.queue
    stamp, has_dispatched = (queue.target_step, queue.bucket), False
    for move in transition.done:
        if isinstance(move, changes.BatchAdmitted):
            stamp = (move.target_step, move.bucket)
        elif isinstance(move, changes.QueueDispatched | changes.WaitingStarted):
            if isinstance(move, changes.QueueDispatched):
                as_due = move.group_class == GroupClass(*stamp, after.trainer.version)
                has_dispatched = True
            else:
                as_due = move.start_weight == after.trainer.version and not has_dispatched
            if not as_due or after.trainer.status is TrainerState.SYNCING:
                return False
    resumed = any(isinstance(move, changes.RunResumed) for move in transition.done)
    return not resumed or all(c.start_weight == after.trainer.version for c, _ in pages.items(after.running))


def _trainer_resumes_idle(transition: Transition, laws: Laws) -> bool:
    """C2: what was unfinished is taken back, a sync is over; the trainer has what the core's moves give it anew."""
    del laws
    given = {type(move) for move in transition.done}
    match transition.after.trainer.status:
        case TrainerState.TRAINING:
            is_anew = changes.ChunkSelected in given
        case TrainerState.FINISHING:
            is_anew = changes.StepFinishing in given
        case status:
            is_anew = status is TrainerState.ASSEMBLING
    return is_anew or transition.answer.name != "crash"


def _stamps_stay(transition: Transition, laws: Laws) -> bool:
    """D2, D3: a group keeps its stamp and its attempt's start weight; a retry has yet to start."""
    del laws
    for move in transition.done:
        if isinstance(move, changes.GroupCommitted):
            if move.after != move.before._replace(replacements=0, label=move.after.label):
                return False
        elif isinstance(move, changes.RetryWaits) and move.after != starting(move.before, NONE):
            return False
    return True


def _dispatch_keeps_to_the_limits(transition: Transition, laws: Laws) -> bool:
    limits, tally = laws.limits, transition.after.tally
    if not any(isinstance(move, changes.QueueDispatched) for move in transition.done):
        return True
    return tally.in_flight <= limits.max_inflight and tally.in_flight + tally.ready <= limits.max_buffered


def _chunks(transition: Transition) -> Iterator[changes.ChunkSelected]:
    return (move for move in transition.done if isinstance(move, changes.ChunkSelected))


def _chunks_are_of_their_size(transition: Transition, laws: Laws) -> bool:
    """S1, X1: from the streaming minimum to what the step wants; fewer at exhaustion."""
    limits, after = laws.limits, transition.after
    for move in _chunks(transition):
        groups = sum(taken for _, taken in move.picks)
        want = limits.size - (after.step.selected - groups) - charged(after, move.step)
        at_the_end = limits.closes_short and after.source.status is SourceState.EXHAUSTED
        if not (1 if at_the_end else min(limits.min_groups, want)) <= groups <= want:
            return False
    return True


def _chunks_are_eligible(transition: Transition, laws: Laws) -> bool:
    """S2: for their step, within the window, of the oldest bucket."""
    selects_from, bound = laws.promises.selects_from, laws.promises.staleness_bound
    oldest = oldest_bucket(transition.after)
    for move in _chunks(transition):
        for group_class, _ in move.picks:
            if selects_from is Eligible.STAMPED and group_class.target_step != move.step:
                return False
            if selects_from is Eligible.OLDEST_BUCKET and oldest is not None and oldest < group_class.bucket:
                return False
            staleness = move.step - group_class.start_weight
            if selects_from is Eligible.FRESH and bound is not None and not 0 <= staleness <= bound:
                return False
    return True


def _chunks_are_in_order(transition: Transition, laws: Laws) -> bool:
    """S3: no eligible group is left ready that comes before one that is taken."""
    selects_from, order = laws.promises.selects_from, laws.promises.selection_order
    if order is None:
        return True
    sign = -1 if order is SelectionOrder.FRESHEST_FIRST else 1
    for move in _chunks(transition):
        taken = [sign * group_class.start_weight for group_class, _ in move.picks]
        left = [sign * group_class.start_weight for group_class, _ in eligible(transition.after, laws, move.step)]
        if selects_from is Eligible.OLDEST_BUCKET:
            buckets = {group_class.bucket for group_class, _ in move.picks}
            left = [c.start_weight for c, _ in pages.items(transition.after.ready) if c.bucket in buckets]
        if taken != sorted(taken) or (left and taken[-1] > min(left)):
            return False
    return True


def _what_goes_is_stale(transition: Transition, laws: Laws) -> bool:
    """E1, E2: what is staler than the bound goes, from the buffer while the trainer assembles; or nothing goes."""
    version = transition.after.trainer.version
    gone = [
        group_class
        for move in transition.done
        if isinstance(move, changes.GroupsEvicted | changes.GroupsAborted)
        for group_class, _ in move.picks
    ]
    evicts_stale, bound = laws.promises.evicts_stale, laws.promises.staleness_bound
    if not evicts_stale or bound is None:
        return evicts_stale is None or not gone
    at_the_limit = 0 <= laws.limits.max_steps <= version
    evicted = any(isinstance(move, changes.GroupsEvicted) for move in transition.done)
    if evicted and (at_the_limit or not _assembles(transition)):
        return False
    return all(group_class.start_weight < version - bound for group_class in gone)


def _becomes_of(
    transition: Transition, laws: Laws, group_class: GroupClass, replaceable: bool
) -> changes.Change | None:
    """L2, L3: how a group that is filtered, dropped or unreadable is made up for; None if the sampler doesn't say."""
    before, limits, charges = transition.before, laws.limits, laws.promises.charges_losses
    if charges is None:
        return None
    if replaceable and group_class.replacements < limits.max_replacements and before.pool.spares:
        spare = starting(group_class, NONE)
        return changes.GroupReplaced(spare._replace(replacements=spare.replacements + 1))
    if not charges:
        return changes.GroupLost(NONE)
    if group_class.target_step != NONE:
        return changes.GroupLost(group_class.target_step)
    # An unreadable group leaves a place in the step being trained.
    return changes.GroupLost(assembling_step(before, limits) if replaceable else before.trainer.version)


def _losses_are_replaced_or_charged(transition: Transition, laws: Laws) -> bool:
    """L2, L3, S5: by the first of these that applies, unless a budget or the sampler stops the run."""
    for move, following in pairwise(transition.done):
        if isinstance(move, _GROUP_IS_GONE):
            expected = _becomes_of(transition, laws, move.group_class, not isinstance(move, changes.ClaimFailed))
            stops = isinstance(following, changes.RunStopped) and isinstance(following.error, _STOPS_A_LOSS)
            if expected is not None and not stops and following != expected:
                return False
    return True


def _charges(state: State) -> dict[int, int]:
    return {step: ledger.charged for step, ledger in pages.items(state.ledgers)}


def _ledgers_count_the_losses(transition: Transition, laws: Laws) -> bool:
    """L3, L5: one charge a loss, to its step; a step that closes takes its charges along."""
    del laws
    expected = {} if _resumes_otherwise(transition) else _charges(transition.before)
    for move in transition.done:
        if isinstance(move, changes.GroupLost) and move.charged_step != NONE:
            expected[move.charged_step] = expected.get(move.charged_step, 0) + 1
        elif isinstance(move, changes.StepClosed) and move.charged != expected.pop(move.step, 0):
            return False
    return expected == _charges(transition.after)


def _budgets_count_the_drops(transition: Transition, laws: Laws) -> bool:
    """L7, S5: and the run stops on one more than the budget, at no other time."""
    (row, skipped), limits, after = transition.before.budgets, laws.limits, transition.after.budgets
    name = transition.answer.name
    if name in ("commit", "filter") or _resumes_otherwise(transition):
        row = 0
    elif name in ("drop", "claim_failed"):
        row += 1
    elif name == "skip":
        skipped += 1
    stopped = any(isinstance(m, changes.RunStopped) and isinstance(m.error, BudgetExceeded) for m in transition.done)
    exceeded = row > limits.max_consecutive_dropped or skipped > limits.max_skipped
    return after == (row, skipped) and stopped == exceeded


def _filtered_are_counted(transition: Transition, laws: Laws) -> bool:
    """L8: for the target step, or for the step being assembled at that moment."""
    before, limits = transition.before, laws.limits
    expected = {} if _resumes_otherwise(transition) else dict(pages.items(before.filtered))
    for move in transition.done:
        if isinstance(move, changes.GroupFiltered) and limits.max_filtered >= 0:
            target = move.group_class.target_step
            step = assembling_step(before, limits) if target == NONE else target
            expected[step] = expected.get(step, 0) + 1
        elif isinstance(move, changes.StepClosed):
            expected.pop(move.step, None)
    return expected == dict(pages.items(transition.after.filtered))


def _stops_have_their_reason(transition: Transition, laws: Laws) -> bool:
    """L6, L8: below the floor, or else beyond the search limit, with the trainer assembling."""
    after, limits = transition.after, laws.limits
    step = after.trainer.version
    for move in transition.done:
        if not isinstance(move, changes.RunStopped):
            continue
        below = limits.size - charged(after, step) < limits.floor
        beyond = 0 <= limits.max_filtered < pages.get(after.filtered, step, 0)
        if isinstance(move.error, BelowFloor) and not (below and _assembles(transition)):
            return False
        if isinstance(move.error, SearchExceeded) and (below or not beyond or not _assembles(transition)):
            return False
    return True


def _steps_finish_when_due(transition: Transition, laws: Laws) -> bool:
    """L5, X1: full, or short at exhaustion on no fewer groups than the floor."""
    limits, after = laws.limits, transition.after
    for move in transition.done:
        if not isinstance(move, changes.StepFinishing):
            continue
        even = move.selected + move.charged + move.short == limits.size and move.selected == after.step.selected
        exhausted = after.source.status is SourceState.EXHAUSTED and limits.closes_short == 1
        short_is_due = exhausted and move.selected >= max(limits.floor, 1) and after.tally.ready == 0
        filtered = pages.get(after.filtered, move.step, 0)
        if limits.size - move.charged < limits.floor or 0 <= limits.max_filtered < filtered:
            return False
        if not even or after.chunk or move.short < 0 or (move.short and not short_is_due):
            return False
    return True


def _runs_complete_when_due(transition: Transition, laws: Laws) -> bool:
    """X1, X3: at the step limit, or at exhaustion with nothing that a step could train on."""
    after, limits = transition.after, laws.limits
    if not any(isinstance(move, changes.RunCompleted) for move in transition.done):
        return True
    if 0 <= limits.max_steps <= after.trainer.version:
        return after.trainer.status is TrainerState.ASSEMBLING
    tally, can_come = after.tally, after.source.status is SourceState.PRODUCING
    if can_come or tally.queued or tally.in_flight or tally.spare >= limits.size:
        return False
    groups = sum(groups for _, groups in eligible(after, laws, after.trainer.version))
    want = limits.size - after.step.selected - charged(after, after.trainer.version)
    too_few = groups < min(limits.min_groups, want) and after.step.selected + groups < limits.floor
    return (after.step.selected == 0 and tally.ready == 0) or (limits.closes_short == 1 and too_few)


MORE_EDGES: tuple[Edge, ...] = (
    Edge("admission", "a batch is admitted in its turn, with its sampler's stamp, when nothing is queued",
         ("A1", "A2", "A6", "D3"), _admissions_are_due),
    Edge("spares_last", "spares are admitted when nothing else is left", ("P2",), _spares_are_admitted_last),
    Edge("held_back", "a batch is diverted below the reserve alone, a trailing one at once", ("P1", "A5"),
         _pool_takes_what_is_due),
    Edge("data", "what is pulled is gone from the data", ("X4", "A5"), _data_is_pulled_once),
    Edge("starts", "attempts start under the version, with their batch's stamp, and never during a sync",
         ("D1", "D2", "D3"), _starts_are_stamped),
    Edge("idle", "after a crash the trainer has nothing unfinished", ("C2",), _trainer_resumes_idle),
    Edge("stamps", "a group keeps its stamp and start weight", ("D2", "D3"), _stamps_stay),
    Edge("room", "dispatch keeps to max_inflight_prompts and max_buffered_rollouts", ("D1",),
         _dispatch_keeps_to_the_limits),
    Edge("chunk", "a chunk is of the streaming minimum or what the step wants", ("S1", "X1"),
         _chunks_are_of_their_size),
    Edge("eligible", "what is selected is eligible", ("S2",), _chunks_are_eligible),
    Edge("order", "selection is in order of dispatch, or the freshest first", ("S3",), _chunks_are_in_order),
    Edge("stale", "what is evicted or aborted is below the window", ("E1", "E2"), _what_goes_is_stale),
    Edge("losses", "a loss is replaced, or charged where L3 says", ("L2", "L3", "S5"),
         _losses_are_replaced_or_charged),
    Edge("ledgers", "ledgers count the losses charged to them", ("L3", "L5"), _ledgers_count_the_losses),
    Edge("drops", "budgets count the prompts given up on", ("L7", "S5"), _budgets_count_the_drops),
    Edge("filtered", "filtered groups count for their step", ("L8",), _filtered_are_counted),
    Edge("stops", "a run is stopped for a reason it has", ("L6", "L8"), _stops_have_their_reason),
    Edge("finishes", "a step is finished when it is full, or short when that is due", ("L5", "X1"),
         _steps_finish_when_due),
    Edge("ends_when_due", "a run completes when nothing can come that a step could train on", ("X1", "X3"),
         _runs_complete_when_due),
)  # fmt: skip
