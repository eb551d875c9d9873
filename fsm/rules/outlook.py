"""Dead ends: states from which a run can never go on, and which decision of the sampler led there (W2).

In a deadlock nothing is in flight, in training or being synced, so no event can come. In a livelock events still come,
but the step being trained needs more groups than can ever be selected into it or charged to it. The counts alone show
both, and no event ends them. A sampler that keeps the rules leads to neither.
"""

from collections.abc import Mapping
from typing import NamedTuple

from fsm.machines.admission_gate import GateState, within_step_limit
from fsm.machines.run import RunState
from fsm.machines.source import SourceState
from fsm.machines.step_assembly import want
from fsm.machines.trainer import TrainerState
from fsm.rules.laws import Laws
from fsm.state import NONE, Limits, State, charged, slots_accounted
from fsm.values import pages

_RUNNING, _ASSEMBLING = RunState.RUNNING, TrainerState.ASSEMBLING  # an enum's members are slow to look up

CHARGE, SELECT, ADMIT, EVICT, ABORT, CAPACITY = (
    "charge_step_for_lost_group", "select", "admit", "evict", "should_abort_inflight", "required_buffer_capacity"
)  # fmt: skip
"""Methods of a sampler whose decisions can lead to a dead end."""

WHAT_LED_HERE: Mapping[str, str] = {
    CHARGE: "a group was lost, and its own step was not charged for it",
    SELECT: "it takes none of the ready groups, though enough are ready and nothing else can come",
    ADMIT: "the step being trained needs a batch that is not admitted, or was stamped for another step",
    EVICT: "it evicted groups that no further batch makes up for",
    ABORT: "it aborted groups that no further batch makes up for",
    CAPACITY: "the buffer that it asks for is full of groups for other steps than the one being trained",
}


class DeadEnd(NamedTuple):
    """Why a run can never go on."""

    why: str
    methods: tuple[str, ...]
    """Methods of the sampler, one of which decided what led here; empty where none did."""


def deadlocked(state: State) -> bool:
    """The run is not over, and nothing can ever happen again.

    Holds for a state in which the core has made all its own moves: nothing is left then that an event could come from.
    """
    return state.run.status is _RUNNING and state.trainer.status is _ASSEMBLING and not state.sheet.in_flight


def livelocked(state: State, limits: Limits) -> bool:
    """The run is not over, and the step being trained can never close, whichever events still come.

    No batch can be admitted any more, and the step needs more groups than may still be selected into it or charged to
    it. A run whose slots are all accounted for (X2) is not livelocked: its last step closes.
    """
    if limits.closes_short or state.run.status is not _RUNNING or _batch_may_come(state, limits):
        return False
    version = state.trainer.version
    if 0 <= limits.max_steps <= version or slots_accounted(state, limits):
        return False
    needed = want(limits.size, state.step.selected, charged(state, version))
    return needed > state.sheet.queued + state.sheet.in_flight + _ready_for(state, version)


def is_dead_end(state: State, laws: Laws) -> bool:
    """The run can never go on. Cheap enough to ask after every event."""
    return deadlocked(state) or (laws.is_custom and livelocked(state, laws.limits))


def dead_end(state: State, limits: Limits, sampler_name: str) -> DeadEnd | None:
    """Why the run can never go on; None where it may."""
    if deadlocked(state):
        why = f"deadlocked, nothing can ever happen: {'; '.join(_reasons(state, limits, sampler_name))}"
        return DeadEnd(why, _methods(state, limits))
    if livelocked(state, limits):
        return DeadEnd(_why_livelocked(state, limits), _methods(state, limits))
    return None


def who_led_here(found: DeadEnd, laws: Laws) -> str:
    """Whose doing a dead end is, and what to do about it, in one or two sentences."""
    if not laws.is_custom:
        return "No sampler from outside is to blame: please report it with the trace"
    led = " or ".join(f"{method}: {WHAT_LED_HERE[method]}" for method in found.methods)
    return (
        f"Sampler {laws.sampler_name} led here by what it decided in {led}. Correct it (evenstep check --sampler finds "
        f"the shortest way to such a state), and resume from a checkpoint before that decision"
    )


def _batch_may_come(state: State, limits: Limits) -> bool:
    """A batch of data or of spares may still be admitted (A1, A6, P2)."""
    supply = state.source.status is SourceState.PRODUCING or state.sheet.spare >= limits.size
    return supply and within_step_limit(state.gate.dispatch_index, limits.max_steps)


def _ready_for(state: State, step: int) -> int:
    """Ready groups that may be selected into a step: those stamped for it, and the unstamped ones."""
    return sum(groups for group_class, groups in pages.items(state.ready) if group_class.target_step in (NONE, step))


def _reasons(state: State, limits: Limits, sampler_name: str) -> list[str]:
    """Why nothing can happen in a deadlock."""
    sheet = state.sheet
    reasons = []
    if sheet.ready:
        reasons.append(f"{sampler_name} selects none of the {sheet.ready} ready groups")
    if sheet.queued and sheet.in_flight + sheet.ready >= limits.max_buffered:
        reasons.append(
            f"{sheet.queued} prompts are queued and the buffer is full: max_buffered_rollouts is {limits.max_buffered}"
        )
    if not limits.closes_short and not slots_accounted(state, limits):
        reasons.append("slots are missing that are neither in hand nor charged to any step")
    closed = state.gate.status is GateState.CLOSED
    supply = state.source.status is SourceState.PRODUCING or sheet.spare >= limits.size
    if closed and supply:
        reasons.append(
            f"the gate is closed at dispatch index {state.gate.dispatch_index} and opens when the version, now "
            f"{state.trainer.version}, moves, which needs this step"
        )
    if not supply and not sheet.queued:
        reasons.append("the data is used up and no whole batch of spares is left")
    return reasons


def _why_livelocked(state: State, limits: Limits) -> str:
    version, sheet = state.trainer.version, state.sheet
    needed = want(limits.size, state.step.selected, charged(state, version))
    supply = state.source.status is SourceState.PRODUCING or sheet.spare >= limits.size
    no_batch = f"max_num_steps is {limits.max_steps} (A6)" if supply else "the data is used up"
    return (
        f"livelocked, step {version} can never close: it needs {needed} more groups, and at most "
        f"{sheet.queued} queued, {sheet.in_flight} in flight and {_ready_for(state, version)} ready ones can still be "
        f"selected into it or charged to it; no further batch is admitted: {no_batch}"
    )


def _methods(state: State, limits: Limits) -> tuple[str, ...]:
    """The methods of the sampler one of which led to this dead end, if the sampler is custom."""
    sheet, version = state.sheet, state.trainer.version
    lost = sheet.filtered + sheet.dropped - sheet.replaced
    losing = tuple(
        method for method, groups in ((CHARGE, lost), (EVICT, sheet.evicted), (ABORT, sheet.aborted)) if groups
    )
    slots_missing = not limits.closes_short and not slots_accounted(state, limits)
    needed = want(limits.size, state.step.selected, charged(state, version))
    if deadlocked(state) and _ready_for(state, version) >= min(limits.min_groups, needed):
        return (SELECT, *(losing if slots_missing else ()))
    if slots_missing:
        return losing
    if sheet.queued:
        return (CAPACITY,)
    return (ADMIT,) if _batch_may_come(state, limits) else (*losing, ADMIT)
