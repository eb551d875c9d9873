"""Properties of every transition: losses (L), steps, ends (X) and resumes (C); and what must happen in the end."""

from itertools import pairwise

from fsm.errors import BelowFloor, BudgetExceeded, SamplerError, SearchExceeded
from fsm.machines.prompt_group import BalanceSheet
from fsm.machines.source import SourceState
from fsm.machines.trainer import TrainerState
from fsm.rules import changes
from fsm.rules.laws import Laws
from fsm.state import NONE, GroupClass, State, assembling_step, charged, is_over, starting
from fsm.values import pages
from specs.properties.edges_of_groups import assembles, resumes_otherwise
from specs.properties.kinds import Transition, edge, eventually, sometimes
from specs.properties.sampler_facts import eligible_classes

_PULLED, _EVICTED, _REPLACED = (BalanceSheet._fields.index(column) for column in ("pulled", "evicted", "replaced"))


_STOPS_A_LOSS = (BudgetExceeded, SamplerError)


@edge("X4")
def sheet(transition: Transition, _: Laws) -> bool:
    """Every prompt pulled is in exactly one place.

    As before: a column that is the same object has not changed and is not read, which keeps the exploration fast.
    """
    excess = 0
    for column, (before, after) in enumerate(zip(transition.before.sheet, transition.after.sheet, strict=True)):
        if after is before:
            continue
        change = after - before
        if change < 0 and after < 0:
            return False
        if column == _PULLED:
            excess += change
        elif column != _REPLACED:  # no place: a replaced prompt is also filtered or dropped
            excess -= change
    return excess == 0


@edge("L5", "X1")
def even(transition: Transition, laws: Laws) -> bool:
    """A step closes with selected + charged = N, or short at exhaustion."""
    limits = laws.limits
    return all(
        change.selected + change.charged + change.short == limits.size
        and (change.short == 0 or limits.closes_short == 1)
        for change in transition.all_of(changes.StepClosed)
    )


@edge("C2", "L5")
def once(transition: Transition, _: Laws) -> bool:
    """No group is trained twice."""
    closed = transition.all_of(changes.StepClosed)
    if not closed:
        return transition.after.sheet.trained == transition.before.sheet.trained
    before, after = transition.before.sheet, transition.after.sheet
    return after.trained - before.trained == sum(change.selected for change in closed) == before.selected


@edge("L4", "S1", "S2")
def sampler(transition: Transition, _: Laws) -> bool:
    """No run is stopped by its sampler."""
    return not any(isinstance(change.error, SamplerError) for change in transition.all_of(changes.RunStopped))


@edge("C1", "C2")
def resumed(transition: Transition, _: Laws) -> bool:
    """After a crash nothing is lost, and charges, budgets and version stay.

    The core's own moves that follow at once may pull more prompts and evict. Columns are compared as in `sheet`.
    """
    if not transition.all_of(changes.RunResumed):
        return transition.answer.name != "crash"
    before, after = transition.before, transition.after
    pulled = after.sheet[_PULLED] - before.sheet[_PULLED]
    gone = sum(now - then for then, now in zip(before.sheet[6:11], after.sheet[6:11], strict=True) if now is not then)
    if after.sheet[_EVICTED] is not before.sheet[_EVICTED]:
        gone -= after.sheet[_EVICTED] - before.sheet[_EVICTED]
    moved = (after.source.epoch, after.source.offset) != (before.source.epoch, before.source.offset)
    return (
        gone == 0
        and (pulled > 0) == moved
        and pulled >= 0
        and after.trainer.version == before.trainer.version
        and after.budgets == before.budgets
        and _charges(before) == _charges(after)
    )


@edge("C2")
def idle(transition: Transition, _: Laws) -> bool:
    """After a crash the trainer has nothing unfinished."""
    given = {type(change) for change in transition.done}
    match transition.after.trainer.status:
        case TrainerState.TRAINING:
            is_new = changes.ChunkSelected in given
        case TrainerState.FINISHING:
            is_new = changes.StepFinishing in given
        case status:
            is_new = status is TrainerState.ASSEMBLING
    return is_new or transition.answer.name != "crash"


def _loss_due(transition: Transition, laws: Laws, group_class: GroupClass, replaceable: bool) -> changes.Change | None:
    """The change that L2 and L3 ask for when a group is filtered, dropped or unreadable; None if nothing is known."""
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


@edge("L2", "L3", "S5")
def losses(transition: Transition, laws: Laws) -> bool:
    """A loss is replaced, or charged where L3 says."""
    for change, following in pairwise(transition.done):
        if isinstance(change, changes.GroupFiltered | changes.GroupDropped | changes.ClaimFailed):
            expected = _loss_due(transition, laws, change.group_class, not isinstance(change, changes.ClaimFailed))
            stops = isinstance(following, changes.RunStopped) and isinstance(following.error, _STOPS_A_LOSS)
            if expected is not None and not stops and following != expected:
                return False
    return True


def _charges(state: State) -> dict[int, int]:
    return {step: ledger.charged for step, ledger in pages.items(state.ledgers)}


@edge("L3", "L5")
def ledgers(transition: Transition, _: Laws) -> bool:
    """Ledgers count the losses charged to them."""
    expected = {} if resumes_otherwise(transition) else _charges(transition.before)
    for change in transition.done:
        if isinstance(change, changes.GroupLost) and change.charged_step != NONE:
            expected[change.charged_step] = expected.get(change.charged_step, 0) + 1
        elif isinstance(change, changes.StepClosed) and change.charged != expected.pop(change.step, 0):
            return False
    return expected == _charges(transition.after)


@edge("L7", "S5")
def drops(transition: Transition, laws: Laws) -> bool:
    """Budgets count the prompts given up on."""
    (row, skipped), limits, after = transition.before.budgets, laws.limits, transition.after.budgets
    name = transition.answer.name
    if name in ("commit", "filter") or resumes_otherwise(transition):
        row = 0
    elif name in ("drop", "claim_failed"):
        row += 1
    elif name == "skip":
        skipped += 1
    stopped = any(isinstance(change.error, BudgetExceeded) for change in transition.all_of(changes.RunStopped))
    exceeded = row > limits.max_consecutive_dropped or skipped > limits.max_skipped
    return after == (row, skipped) and stopped == exceeded


@edge("L8")
def filtered(transition: Transition, laws: Laws) -> bool:
    """Filtered groups count for their step."""
    before, limits = transition.before, laws.limits
    expected = {} if resumes_otherwise(transition) else dict(pages.items(before.filtered))
    for change in transition.done:
        if isinstance(change, changes.GroupFiltered) and limits.max_filtered >= 0:
            target = change.group_class.target_step
            step = assembling_step(before, limits) if target == NONE else target
            expected[step] = expected.get(step, 0) + 1
        elif isinstance(change, changes.StepClosed):
            expected.pop(change.step, None)
    return expected == dict(pages.items(transition.after.filtered))


@edge("L6", "L8")
def stops(transition: Transition, laws: Laws) -> bool:
    """A run is stopped for a reason it has."""
    after, limits = transition.after, laws.limits
    step = after.trainer.version
    for change in transition.all_of(changes.RunStopped):
        below = limits.size - charged(after, step) < limits.floor
        beyond = 0 <= limits.max_filtered < pages.get(after.filtered, step, 0)
        if isinstance(change.error, BelowFloor) and not (below and assembles(transition)):
            return False
        if isinstance(change.error, SearchExceeded) and (below or not beyond or not assembles(transition)):
            return False
    return True


@edge("L5", "X1")
def finishes(transition: Transition, laws: Laws) -> bool:
    """A step is finished when it is full, or short when that is due."""
    limits, after = laws.limits, transition.after
    for change in transition.all_of(changes.StepFinishing):
        even = change.selected + change.charged + change.short == limits.size and change.selected == after.step.selected
        exhausted = after.source.status is SourceState.EXHAUSTED and limits.closes_short == 1
        short_is_due = exhausted and change.selected >= max(limits.floor, 1) and after.sheet.ready == 0
        found = pages.get(after.filtered, change.step, 0)
        if limits.size - change.charged < limits.floor or 0 <= limits.max_filtered < found:
            return False
        if not even or after.chunk or change.short < 0 or (change.short and not short_is_due):
            return False
    return True


@edge("X1", "X3")
def ends_when_due(transition: Transition, laws: Laws) -> bool:
    """A run completes when nothing can come that a step could train on."""
    after, limits = transition.after, laws.limits
    if not transition.all_of(changes.RunCompleted):
        return True
    if 0 <= limits.max_steps <= after.trainer.version:
        return after.trainer.status is TrainerState.ASSEMBLING
    sheet, can_come = after.sheet, after.source.status is SourceState.PRODUCING
    if can_come or sheet.queued or sheet.in_flight or sheet.spare >= limits.size:
        return False
    groups = sum(groups for _, groups in eligible_classes(after, laws, after.trainer.version))
    want = limits.size - after.step.selected - charged(after, after.trainer.version)
    too_few = groups < min(limits.min_groups, want) and after.step.selected + groups < limits.floor
    return (after.step.selected == 0 and sheet.ready == 0) or (limits.closes_short == 1 and too_few)


@sometimes("L5")
def closes_a_step(transition: Transition, _: Laws) -> bool:
    """A step closes."""
    return bool(transition.all_of(changes.StepClosed))


@sometimes("X1", "X3")
def completes(transition: Transition, _: Laws) -> bool:
    """The run is completed."""
    return bool(transition.all_of(changes.RunCompleted))


@eventually("L5", "X1")
def steps_close(transition: Transition, _: Laws) -> bool:
    """Every step that is opened closes, or the run ends."""
    return bool(transition.all_of(changes.StepClosed))


@eventually("X1", "X2", "X3")
def ends(transition: Transition, _: Laws) -> bool:
    """Every run ends."""
    return is_over(transition.after)
