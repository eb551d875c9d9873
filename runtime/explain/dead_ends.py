"""Why a step can never be filled: the causes of deadlocks and livelocks. The first that applies is reported."""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from fsm.errors import EvenstepError, SamplerError
from fsm.events import ClaimUnreadable, GroupFailed, GroupFinished
from fsm.explain import class_name
from fsm.machines.admission_gate import GateState, within_step_limit
from fsm.rules import own_moves
from fsm.rules.changes import ClaimFailed, GroupDropped, GroupFiltered, GroupLost, GroupReplaced, Picks
from fsm.rules.own_moves import batch_is_left
from fsm.rules.sampler_calls import ask_admit
from fsm.state import NONE, GroupClass, Queue, State, slots_accounted
from fsm.values import pages
from runtime.explain.finding import seconds
from runtime.explain.situation import Situation, classes_in_hand
from runtime.trace.choose import with_text
from runtime.trace.kinds import mark_of
from runtime.trace.records import TransitionRecord
from runtime.wording import counted

LOST_SHOWN = 5
VERSIONS_TRIED = 64
"""How many later versions the sampler is asked about: would it admit the next batch then?"""


class Cause(NamedTuple):
    """What waits for what, down to the root; and what to do."""

    chain: tuple[str, ...]
    advice: str


def cause_of(situation: Situation) -> Cause:
    """Why the step cannot be filled, in a state in which no event can come."""
    return next(cause for find in _CAUSES if (cause := find(situation)) is not None)  # the last one always applies


def proof_of(situation: Situation) -> tuple[str, ...]:
    """Why no event can come and no own move applies: the count that rules out each."""
    sheet, needed, least = situation.state.sheet, situation.want, situation.least
    offered = _groups_of(situation.eligible)
    selection = (
        f"{offered} of {sheet.ready} ready groups are eligible, {least} are needed at once"
        if offered < least
        else f"{situation.sampler} takes none of {sheet.ready} ready groups when it is asked for {least} to {needed}"
    )
    return (
        f"no answer can come: in flight {sheet.in_flight}, in training 0, nothing finishing, nothing syncing",
        f"nothing can be selected: {selection}",
        _no_dispatch(situation),
        _no_admission(situation),
    )


def _no_dispatch(situation: Situation) -> str:
    limits, sheet = situation.limits, situation.state.sheet
    if not sheet.queued:
        return "nothing can be dispatched: queued 0"
    return (
        f"nothing can be dispatched: queued {sheet.queued}, buffer {sheet.in_flight + sheet.ready} of "
        f"{limits.max_buffered}, in flight {sheet.in_flight} of {limits.max_inflight}"
    )


def _no_admission(situation: Situation) -> str:
    state = situation.state
    if state.queue.groups:
        return f"nothing can be admitted before the queue is empty: queued {state.queue.groups}"
    if not batch_is_left(state, situation.limits):
        return f"nothing can be admitted: the data is used up, and {state.pool.spares} spares are no whole batch"
    gate = state.gate
    return f"nothing can be admitted: the gate is {gate.status.name.lower()} at dispatch index {gate.dispatch_index}"


def _groups_of(picks: Picks) -> int:
    return sum(groups for _, groups in picks)


def _lost_group(situation: Situation) -> Cause | None:
    """X2 is violated: a slot is gone and no step was charged for it."""
    limits = situation.limits
    if limits.closes_short or slots_accounted(situation.state, limits):
        return None
    lost = _lost_uncharged(situation)
    said = " and ".join(lost) if lost else "the record of its loss is not in this trace"
    return Cause(
        (
            "a slot that was admitted is neither queued, in flight, ready, selected nor charged to any step (X2)",
            f"the step waits for a group that was lost: {said}",
        ),
        "a loss that no step is charged for leaves its step one short for ever: correct what charges losses "
        "(charge_step_for_lost_group of a custom sampler; otherwise this is a defect of evenstep: please report it "
        "with the trace), and resume from a checkpoint before the loss",
    )


def _lost_uncharged(situation: Situation) -> list[str]:
    """The last groups that were lost and charged to no step, in words: those of the step itself, if there are any."""
    losses = [mark_of(kind) for kind in (GroupFiltered, GroupDropped, ClaimFailed)]
    replaced, lost = mark_of(GroupReplaced), mark_of(GroupLost) + b","
    found: deque[tuple[int, str]] = deque(maxlen=1_000)
    for line in situation.lines(with_text(losses)):
        if replaced in line or (lost in line and lost + b"-1]" not in line):
            continue
        record = situation.trace.parse(line)
        if isinstance(record, TransitionRecord):
            for change in record.transition.changes:
                if isinstance(change, GroupFiltered | GroupDropped | ClaimFailed):
                    found.append((change.group_class.target_step, _loss(situation, record, change.group_class)))
    own = [said for target, said in found if target == situation.step]
    return (own or [said for _, said in found])[-LOST_SHOWN:]


def _loss(situation: Situation, record: TransitionRecord, group_class: GroupClass) -> str:
    match record.transition.event:
        case GroupFinished(attempt, _, known):
            who = f"prompt {attempt.prompt} (dispatch {attempt.dispatch}"
            rewards = "" if known is None else f", all rewards {known.reward_mean:.4g}"
            why = f"filtered{rewards}"
        case GroupFailed(attempt, kind, error):
            who = f"prompt {attempt.prompt} (dispatch {attempt.dispatch}"
            why = f"given up on after {kind} failures: {error}"
        case ClaimUnreadable(prompt, error):
            who, why = f"prompt {prompt} (in training", f"unreadable: {error}"
        case _:
            who, why = "a group (", "lost"
    ago = seconds(situation.age_s(record.monotonic_s))
    return f"{who}, {class_name(group_class)}), record {record.seq}, {ago} ago, {why}; charged to no step"


def _due_move(situation: Situation) -> Cause | None:
    """An own move applies and was not made, though nothing waits for a poll (A3)."""
    try:
        made = own_moves.next_move(situation.state, situation.laws)
    except (EvenstepError, ValueError) as error:
        return Cause(
            (f"the rules refuse this state: {type(error).__name__}: {error}",),
            "this is a defect of evenstep; please report it with this trace",
        )
    if made is None:
        return None
    move = type(made[1]).__name__
    return Cause(
        (f"the core did not make a move that was due: {move}, which today's rules make in this state",),
        "another version of evenstep recorded this, or evenstep has a defect: evenstep replay shows the difference",
    )


def _small_buffer(situation: Situation) -> Cause | None:
    """With a larger buffer and nothing else changed, the step would close."""
    limits, sheet, needed = situation.limits, situation.state.sheet, situation.least
    held = sheet.in_flight + sheet.ready
    if held < limits.max_buffered:
        return None
    roomy = limits._replace(
        max_buffered=limits.max_buffered + 2 * limits.size, max_inflight=limits.max_inflight + 2 * limits.size
    )
    if situation.look(situation.state, situation.laws._replace(limits=roomy), {}, 1).closes is not True:
        return None
    return Cause(
        (
            f"{situation.sampler} needs {needed} eligible groups at once, and there can never be more than the buffer "
            f"holds, since {sheet.queued} queued prompts wait for a place in it",
            f"the buffer is full, below what selection needs: max_buffered_rollouts is {limits.max_buffered}, all "
            f"{held} places are taken, {needed} eligible groups are needed (min_groups_for_streaming_train "
            f"{limits.min_groups})",
        ),
        f"set async_rl.max_buffered_rollouts to null, or to at least what the sampler requires (A4); or "
        f"min_groups_for_streaming_train to {max(1, limits.max_buffered)} or less",
    )


def _partial_stamp(situation: Situation) -> Cause | None:
    """The sampler selects only groups of one bucket or step, and nothing can fill that."""
    state, needed, picks = situation.state, situation.want, situation.eligible
    stamps = {(group_class.target_step, group_class.bucket) for group_class, _ in picks}
    if len(stamps) != 1 or stamps == {(NONE, NONE)}:
        return None
    target, bucket = stamps.pop()
    have, ready = _groups_of(picks), state.sheet.ready
    what = f"the oldest bucket, {bucket}," if bucket != NONE else f"the batch stamped for step {target}"
    others = f"the other {ready - have} of {ready} ready groups belong to others: {_listed(state, picks)}"
    return Cause(
        (
            f"{situation.sampler} selects only groups of {what} and needs {situation.least} of them at once; {others}",
            f"{what} cannot be filled any more: {have} of {needed}, nothing queued or in flight for it",
        ),
        "its groups were lost, or got another stamp with a later attempt: every attempt must keep the "
        "stamp of its batch (D3), and under weight_fifo no group may be lost (no dynamic sampling, no drop budgets). "
        "Resume from a checkpoint before that under ready_first, or with what lost them turned off",
    )


def _listed(state: State, but: Picks) -> str:
    taken = dict(but)
    listed = [
        f"{groups - taken.get(group_class, 0)} {class_name(group_class)}"
        for group_class, groups in pages.items(state.ready)
        if groups > taken.get(group_class, 0)
    ]
    return "; ".join(listed[:6]) + ("; …" if len(listed) > 6 else "") if listed else "none"


def _idle_sampler(situation: Situation) -> Cause | None:
    """The sampler selects none of the ready groups, though it could take enough."""
    state, offered = situation.state, _groups_of(situation.eligible)
    if not state.sheet.ready or 0 < offered < situation.least:
        return None
    name = situation.sampler
    return Cause(
        (
            f"{counted(state.sheet.ready, 'group')} are ready, and the sampler is asked for {situation.least} to "
            f"{situation.want} of them",
            f"sampler {name} selects none of the {counted(state.sheet.ready, 'group')} that are ready "
            f"({_listed(state, ())}), though nothing else can come",
        ),
        f"correct select of {name}: when nothing is in flight and nothing can be dispatched, it must take what is "
        f"ready",
    )


def _closed_gate(situation: Situation) -> Cause | None:
    """The gate holds back the next batch until a version that this step would have to make."""
    state = situation.state
    if state.gate.status is not GateState.CLOSED or state.queue.groups or not batch_is_left(state, situation.limits):
        return None
    index, version, limits = state.gate.dispatch_index, state.trainer.version, situation.limits
    needs = _version_needed(situation)
    if needs is None:
        opens = f"{situation.sampler} admits no further batch at any version up to {version + VERSIONS_TRIED}"
    else:
        opens = f"it needs version {needs}, and the version is {version}"
    if not within_step_limit(index, limits.max_steps):
        opens = f"max_num_steps is {limits.max_steps}, and as many batches are admitted (A6)"
    return Cause(
        (
            f"nothing is queued or in flight, so the groups that are missing must come from the batch after dispatch "
            f"index {index}",
            f"the gate is closed at dispatch index {index}: {opens}; the version moves when step {version} closes, "
            f"which waits for that batch",
        ),
        f"widen the window, or correct admit of {situation.sampler}: the batches up to the step being trained, "
        f"{version}, must always be admitted (dispatch index < version + window, with a window of at least 1 beyond "
        f"what is held back)",
    )


def _version_needed(situation: Situation) -> int | None:
    """The next version at which the sampler admits a batch; None if there is none among VERSIONS_TRIED."""
    now = situation.state.trainer
    for version in range(now.version + 1, now.version + 1 + VERSIONS_TRIED):
        later = situation.state._replace(trainer=now._replace(version=version), queue=Queue())
        try:
            if ask_admit(later, situation.laws) is not None:
                return version
        except SamplerError as error:
            # With a cause the sampler raised; without one it admits, but stamps a step that is closed by then.
            return version if error.__cause__ is None else None
    return None


def _otherwise(situation: Situation) -> Cause:
    hand = ", ".join(class_name(group_class) for group_class in classes_in_hand(situation.state)[:6]) or "nothing"
    data = "data is left" if batch_is_left(situation.state, situation.limits) else "no data is left"
    return Cause(
        (f"{data}, and what is in hand does not make up step {situation.step}: {hand}",),
        "this is a defect of evenstep or of a custom sampler; evenstep replay tells which rule was broken first",
    )


_CAUSES: tuple[Callable[[Situation], Cause | None], ...] = (
    _lost_group, _due_move, _small_buffer, _partial_stamp, _idle_sampler, _closed_gate, _otherwise
)  # fmt: skip
