"""Why nothing can fill the step any more: the causes of deadlocks and livelocks, the likeliest to be told first."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from fsm.errors import EvenstepError, SamplerError
from fsm.events import ClaimUnreadable, GroupFailed, GroupFinished
from fsm.explain import class_name
from fsm.machines.admission_gate import GateState, within_step_limit
from fsm.machines.step_assembly import want
from fsm.rules import own_moves
from fsm.rules.changes import ClaimFailed, GroupDropped, GroupFiltered, GroupLost, GroupReplaced, Picks
from fsm.rules.own_moves import batch_is_left
from fsm.rules.sampler_calls import ask_admit
from fsm.state import NONE, GroupClass, Queue, State, charged, slots_accounted
from fsm.values import pages
from runtime.explain.situation import Situation, classes_in_hand, eligible
from runtime.explain.usual import seconds
from runtime.trace.choose import with_text
from runtime.trace.kinds import CODES
from runtime.trace.records import TransitionRecord

LOST_SHOWN = 5
VERSIONS_TRIED = 64
"""Versions at which the sampler is asked whether it would admit the next batch."""


class Cause(NamedTuple):
    """Why, from what the step waits for down to the root; and what to change."""

    chain: tuple[str, ...]
    advice: str


def cause_of(situation: Situation, state: State) -> Cause:
    """Why the step can't be filled from a state in which nothing can happen any more."""
    for find in _CAUSES:
        cause = find(situation, state)
        if cause is not None:
            return cause
    raise AssertionError("the last cause is always one")


def proof_of(situation: Situation, state: State) -> tuple[str, ...]:
    """Why no event can come and no move of the core applies: each count that has to be otherwise."""
    limits, tally = situation.limits, state.tally
    needed = want(limits.size, state.step.selected, charged(state, state.trainer.version))
    least, offered = min(limits.min_groups, needed), groups_of(eligible(state, situation.laws, needed))
    selection = (
        f"{offered} of {tally.ready} ready groups are eligible, {least} are needed at once"
        if offered < least
        else f"{situation.sampler} takes none of {tally.ready} ready groups when it is asked for {least} to {needed}"
    )
    return (
        f"no answer can come: in flight {tally.in_flight}, in training 0, nothing finishing, nothing syncing",
        f"nothing can be selected: {selection}",
        _no_dispatch(situation, state),
        _no_admission(situation, state),
    )


def _no_dispatch(situation: Situation, state: State) -> str:
    limits, tally = situation.limits, state.tally
    if not tally.queued:
        return "nothing can be dispatched: queued 0"
    return (
        f"nothing can be dispatched: queued {tally.queued}, buffer {tally.in_flight + tally.ready} of "
        f"{limits.max_buffered}, in flight {tally.in_flight} of {limits.max_inflight}"
    )


def _no_admission(situation: Situation, state: State) -> str:
    if state.queue.groups:
        return f"nothing can be admitted before the queue is empty: queued {state.queue.groups}"
    if not batch_is_left(state, situation.limits):
        return f"nothing can be admitted: the data is used up, and {state.pool.spares} spares are no whole batch"
    return f"nothing can be admitted: the gate is {state.gate.status.name.lower()} at dispatch index " + str(
        state.gate.dispatch_index
    )


def groups_of(picks: Picks) -> int:
    """How many groups are picked."""
    return sum(groups for _, groups in picks)


def _lost_group(situation: Situation, state: State) -> Cause | None:
    """X2 does not hold: a slot is gone that no step was charged for."""
    limits = situation.limits
    if limits.closes_short or slots_accounted(state, limits):
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
    """The last groups that were lost and charged to no step, in words; those for the step itself where there are."""
    codes = {kind: b'["' + CODES[kind].encode() + b'"' for kind in (GroupFiltered, GroupDropped, ClaimFailed)}
    replaced = b'["' + CODES[GroupReplaced].encode() + b'"'
    lost = b'["' + CODES[GroupLost].encode() + b'",'
    found: deque[tuple[int, str]] = deque(maxlen=1_000)
    for line in situation.lines(with_text(list(codes.values()))):
        if replaced in line or (lost in line and lost + b"-1]" not in line):
            continue
        record = situation.trace.parse(line)
        if isinstance(record, TransitionRecord):
            for move in record.transition.changes:
                if isinstance(move, GroupFiltered | GroupDropped | ClaimFailed):
                    found.append((move.group_class.target_step, _loss(situation, record, move.group_class)))
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


def _due_move(situation: Situation, state: State) -> Cause | None:
    """Nothing waits for a poll (A3): a move that applies and was not made."""
    try:
        made = own_moves.next_move(state, situation.laws)
    except (EvenstepError, ValueError) as error:
        return Cause(
            (f"the rules refuse this state: {type(error).__name__}: {error}",),
            "this is a defect of evenstep; please report it with this trace",
        )
    if made is None:
        return None
    move = type(made[1]).__name__
    return Cause(
        (f"the core did not make a move that was due: {move}, which today's rules make in this very state",),
        "another version of evenstep recorded this, or this is a defect of it: evenstep replay shows the difference",
    )


def _small_buffer(situation: Situation, state: State) -> Cause | None:
    """With a larger buffer, and nothing else changed, the step would close."""
    limits, tally = situation.limits, state.tally
    held = tally.in_flight + tally.ready
    if held < limits.max_buffered:
        return None
    roomy = limits._replace(
        max_buffered=limits.max_buffered + 2 * limits.size, max_inflight=limits.max_inflight + 2 * limits.size
    )
    if situation.look(state, situation.laws._replace(limits=roomy), {}, 1).closes is not True:
        return None
    needed = min(limits.min_groups, want(limits.size, state.step.selected, charged(state, state.trainer.version)))
    return Cause(
        (
            f"{situation.sampler} needs {needed} eligible groups at once, and there can never be more than the buffer "
            f"holds, since {tally.queued} queued prompts wait for a place in it",
            f"the buffer is full, below what selection needs: max_buffered_rollouts is {limits.max_buffered}, all "
            f"{held} places are taken, {needed} eligible groups are needed (min_groups_for_streaming_train "
            f"{limits.min_groups})",
        ),
        f"set async_rl.max_buffered_rollouts to null, or to at least what the sampler requires (A4); or "
        f"min_groups_for_streaming_train to {max(1, limits.max_buffered)} or less",
    )


def _partial_stamp(situation: Situation, state: State) -> Cause | None:
    """The sampler is bound to one bucket or step, which nothing can fill any more."""
    limits = situation.limits
    needed = want(limits.size, state.step.selected, charged(state, state.trainer.version))
    picks = eligible(state, situation.laws, needed)
    stamps = {(group_class.target_step, group_class.bucket) for group_class, _ in picks}
    if len(stamps) != 1 or stamps == {(NONE, NONE)}:
        return None
    target, bucket = stamps.pop()
    have, ready = groups_of(picks), state.tally.ready
    what = f"the oldest bucket, {bucket}," if bucket != NONE else f"the batch stamped for step {target}"
    others = f"the other {ready - have} of {ready} ready groups are of others: {_listed(state, picks)}"
    return Cause(
        (
            f"{situation.sampler} selects of {what} alone, {min(limits.min_groups, needed)} groups at once; {others}",
            f"{what} can't be filled any more: {have} of {needed}, nothing queued or in flight for it",
        ),
        "its groups were lost, or were given another stamp when they were attempted again: every attempt must keep the "
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


def _idle_sampler(situation: Situation, state: State) -> Cause | None:
    """There are ready groups, and the sampler takes none: not even one, or none although it would take enough."""
    needed = want(situation.limits.size, state.step.selected, charged(state, state.trainer.version))
    offered = groups_of(eligible(state, situation.laws, needed))
    if not state.tally.ready or 0 < offered < min(situation.limits.min_groups, needed):
        return None
    name = situation.sampler
    return Cause(
        (
            f"{state.tally.ready} groups are ready, and the sampler is asked for {min(situation.least, needed)} to "
            f"{needed} of them",
            f"sampler {name} selects none of the {state.tally.ready} groups that are ready ({_listed(state, ())}), "
            f"though nothing else can come",
        ),
        f"correct select of {name}: when nothing is in flight and nothing can be dispatched, it must take what is "
        f"ready",
    )


def _closed_gate(situation: Situation, state: State) -> Cause | None:
    """The next batch is held back, for a version that this step would have to make."""
    if state.gate.status is not GateState.CLOSED or state.queue.groups or not batch_is_left(state, situation.limits):
        return None
    index, version, limits = state.gate.dispatch_index, state.trainer.version, situation.limits
    needs = _version_needed(situation, state)
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


def _version_needed(situation: Situation, state: State) -> int | None:
    """The first version at which the sampler admits the next batch; None where it is at none of the next ones."""
    now = state.trainer
    for version in range(now.version + 1, now.version + 1 + VERSIONS_TRIED):
        later = state._replace(trainer=now._replace(version=version), queue=Queue())
        try:
            if ask_admit(later, situation.laws) is not None:
                return version
        except SamplerError as error:
            # With a cause the sampler raised; without one it admits, but stamps a step that is closed by then.
            return version if error.__cause__ is None else None
    return None


def _otherwise(situation: Situation, state: State) -> Cause:
    hand = ", ".join(class_name(group_class) for group_class in classes_in_hand(state)[:6]) or "nothing"
    return Cause(
        (f"no data is left, and what is in hand does not make up step {situation.step}: {hand}",),
        "this is a defect of evenstep or of a custom sampler; evenstep replay tells which rule was broken first",
    )


_CAUSES: tuple[Callable[[Situation, State], Cause | None], ...] = (
    _lost_group, _due_move, _small_buffer, _partial_stamp, _idle_sampler, _closed_gate, _otherwise
)  # fmt: skip
