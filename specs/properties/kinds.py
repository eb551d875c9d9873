"""What must hold of every run, as named public objects: a kind, a sentence, the rules it comes from, a predicate.

Four kinds: `Always` holds of every state; `Edge` of every transition ("this step closes" cannot be said of a state);
`Sometimes` of some transition, against properties that hold because nothing happens; and `Eventually`: from
every state, under fairness, a transition that reaches it comes, or the run is over. `properties_of` has all that a
run under given laws must keep. The checker adds two of its own, which need no predicate: `DEADLOCK` and `REFUSED`.

Predicates are deterministic, and raise nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from fsm.errors import InvariantBroken, SamplerError
from fsm.groups.invariants import check
from fsm.machines.prompt_group import Tally
from fsm.machines.shortfall_ledger import LedgerContext, ledger_holds
from fsm.rules import own_moves
from fsm.rules.changes import Change, ChunkSelected, RunCompleted, RunResumed, RunStopped, StepClosed
from fsm.rules.laws import Laws
from fsm.state import NONE, State, is_over, slots_accounted
from fsm.values import pages
from specs.model import Answer


class Transition(NamedTuple):
    """One answer and all that followed from it."""

    before: State
    """Under `crash` the state that was saved."""
    answer: Answer
    done: Sequence[Change]
    """The moves of the answer and the core's own, in order."""
    after: State


class Always(NamedTuple):
    """Holds of every state."""

    name: str
    sentence: str
    rules: tuple[str, ...]
    holds: Callable[[State, Laws], bool]


class Edge(NamedTuple):
    """Holds of every transition."""

    name: str
    sentence: str
    rules: tuple[str, ...]
    holds: Callable[[Transition, Laws], bool]


class Sometimes(NamedTuple):
    """Happens in some transition."""

    name: str
    sentence: str
    rules: tuple[str, ...]
    happens: Callable[[Transition, Laws], bool]


class Eventually(NamedTuple):
    """From every state, under fairness, a transition that reaches it comes, unless the run is over before."""

    name: str
    sentence: str
    rules: tuple[str, ...]
    reached: Callable[[Transition, Laws], bool]


class Properties(NamedTuple):
    """What an exploration looks for."""

    always: tuple[Always, ...] = ()
    edges: tuple[Edge, ...] = ()
    sometimes: tuple[Sometimes, ...] = ()
    eventually: tuple[Eventually, ...] = ()

    def without(self, *names: str) -> Properties:
        """All but these; `always`, `edges` and so on in their order. What is violated first hides what comes later."""
        return Properties(
            tuple(prop for prop in self.always if prop.name not in names),
            tuple(prop for prop in self.edges if prop.name not in names),
            tuple(prop for prop in self.sometimes if prop.name not in names),
            tuple(prop for prop in self.eventually if prop.name not in names),
        )


DEADLOCK = "deadlock"
"""No state but the end is one from which nothing can happen; the checker looks for it in every exploration."""
REFUSED = "refused"
"""No rule refuses what another asks of it (InvariantBroken, X2 among them); looked for in every exploration too."""


def _balanced(state: State, laws: Laws) -> bool:
    try:
        check(state, laws.limits)
    except InvariantBroken:
        return False
    return True


def _columns_agree(state: State, laws: Laws) -> bool:
    del laws
    tally = state.tally
    selected = pages.total(state.chunk) + pages.total(state.accumulated)
    return tally.ready == pages.total(state.ready) and tally.selected == selected


def _permits_agree(state: State, laws: Laws) -> bool:
    del laws
    in_flight = pages.total(state.running) + pages.total(state.waiting) + pages.total(state.backing_off)
    return state.tally.in_flight == in_flight


def _pool_is_not_negative(state: State, laws: Laws) -> bool:
    del laws
    return state.pool.spares >= 0


def _slots_are_accounted(state: State, laws: Laws) -> bool:
    return bool(laws.limits.closes_short) or is_over(state) or slots_accounted(state, laws.limits)


def _nothing_is_left_undone(state: State, laws: Laws) -> bool:
    try:
        return own_moves.next_move(state, laws) is None
    except InvariantBroken:
        return False


def _replacements_are_bounded(state: State, laws: Laws) -> bool:
    most = laws.limits.max_replacements
    in_flight = (state.running, state.waiting, state.backing_off)
    return all(group_class.replacements <= most for counts in in_flight for group_class, _ in pages.items(counts))


def _charges_fit(state: State, laws: Laws) -> bool:
    limits, version = laws.limits, state.trainer.version
    for step, ledger in pages.items(state.ledgers):
        selected = state.step.selected if step == version else 0
        context = LedgerContext(limits.size, limits.floor, selected)
        if step < version or selected + ledger.charged > limits.size or not ledger_holds(ledger, context):
            return False
    return True


ALWAYS: tuple[Always, ...] = (
    Always("balance", "the machines agree with the balance sheet, and no step exceeds N", ("X4", "L5"), _balanced),
    Always("columns", "the balance sheet counts the ready and selected groups there are", ("X4",), _columns_agree),
    Always("permits", "the permits taken are those of the groups in flight", ("D1", "X4"), _permits_agree),
    Always("pool", "the spare pool is never negative", ("L2", "P1"), _pool_is_not_negative),
    Always("slots", "every admitted slot is in hand, selected or charged", ("X2",), _slots_are_accounted),
    Always("charges", "charges go to open steps and never beyond N", ("L3", "L4"), _charges_fit),
    Always("replacements", "a slot has at most max_replacement_attempts", ("L2",), _replacements_are_bounded),
    Always("no_poll", "what can be done is done", ("A3",), _nothing_is_left_undone),
)


_PULLED, _EVICTED, _REPLACED = (Tally._fields.index(column) for column in ("pulled", "evicted", "replaced"))


def _adds_up(transition: Transition, laws: Laws) -> bool:
    """As before: only what changed, which identity tells, is looked at, so that the rest need not be read."""
    del laws
    excess = 0
    for column, (before, after) in enumerate(zip(transition.before.tally, transition.after.tally, strict=True)):
        if after is before:
            continue
        change = after - before
        if change < 0 and after < 0:
            return False
        if column == _PULLED:
            excess += change
        elif column != _REPLACED:  # which is no place of its own
            excess -= change
    return excess == 0


def _steps_come_out_even(transition: Transition, laws: Laws) -> bool:
    limits = laws.limits
    return all(
        move.selected + move.charged + move.short == limits.size and (move.short == 0 or limits.closes_short == 1)
        for move in transition.done
        if isinstance(move, StepClosed)
    )


def _groups_train_in_their_step(transition: Transition, laws: Laws) -> bool:
    del laws
    return all(
        group_class.target_step in (NONE, move.step)
        for move in transition.done
        if isinstance(move, ChunkSelected)
        for group_class, _ in move.picks
    )


def _trains_once(transition: Transition, laws: Laws) -> bool:
    """What is trained only grows, by what was selected into the step that closes, and leaves the hands for good."""
    del laws
    closed = [move for move in transition.done if isinstance(move, StepClosed)]
    if not closed:
        return transition.after.tally.trained == transition.before.tally.trained
    before, after = transition.before.tally, transition.after.tally
    return after.trained - before.trained == sum(move.selected for move in closed) == before.selected


def _changes_nothing(transition: Transition, laws: Laws) -> bool:
    del laws
    if transition.answer.name != "late":
        return True
    return not transition.done and transition.before.tally == transition.after.tally


def _is_not_to_blame(transition: Transition, laws: Laws) -> bool:
    del laws
    return not any(isinstance(move, RunStopped) and isinstance(move.error, SamplerError) for move in transition.done)


def _loses_nothing(transition: Transition, laws: Laws) -> bool:
    """C2, up to the core's own moves that follow at once: nothing is lost, charges and budgets stay."""
    del laws
    if not any(isinstance(move, RunResumed) for move in transition.done):
        return transition.answer.name != "crash"
    before, after = transition.before, transition.after
    pulled = after.tally[_PULLED] - before.tally[_PULLED]  # of the items themselves, as in `_adds_up`
    gone = sum(now - then for then, now in zip(before.tally[6:11], after.tally[6:11], strict=True) if now is not then)
    if after.tally[_EVICTED] is not before.tally[_EVICTED]:
        gone -= after.tally[_EVICTED] - before.tally[_EVICTED]
    moved = (after.source.epoch, after.source.offset) != (before.source.epoch, before.source.offset)
    return (
        gone == 0
        and (pulled > 0) == moved
        and pulled >= 0
        and after.trainer.version == before.trainer.version
        and after.budgets == before.budgets
        and [(step, ledger.charged) for step, ledger in pages.items(before.ledgers)]
        == [(step, ledger.charged) for step, ledger in pages.items(after.ledgers)]
    )


EDGES: tuple[Edge, ...] = (
    Edge("sheet", "every prompt pulled is in exactly one place", ("X4",), _adds_up),
    Edge("even", "a step closes with selected + charged = N, or short at exhaustion", ("L5", "X1"),
         _steps_come_out_even),
    Edge("target", "no group is trained for a step other than its target", ("A2", "S2"), _groups_train_in_their_step),
    Edge("once", "no group is trained twice", ("C2", "L5"), _trains_once),
    Edge("late", "an answer for an attempt that is over changes nothing", ("D2",), _changes_nothing),
    Edge("sampler", "no run is stopped by its sampler", ("L4", "S1", "S2"), _is_not_to_blame),
    Edge("resumed", "after a crash nothing is lost, and charges, budgets and version stay", ("C1", "C2"),
         _loses_nothing),
)  # fmt: skip


def staleness(bound: int) -> Edge:
    """Staleness at selection is at most `bound`, which the sampler promises."""

    def holds(transition: Transition, laws: Laws) -> bool:
        del laws
        return all(
            move.step - group_class.start_weight <= bound
            for move in transition.done
            if isinstance(move, ChunkSelected)
            for group_class, _ in move.picks
        )

    return Edge("staleness", f"staleness at selection is at most {bound}", ("S2", "E1"), holds)


def _a_step_closes(transition: Transition, laws: Laws) -> bool:
    del laws
    return any(isinstance(move, StepClosed) for move in transition.done)


def _the_run_completes(transition: Transition, laws: Laws) -> bool:
    del laws
    return any(isinstance(move, RunCompleted) for move in transition.done)


CLOSES_A_STEP = Sometimes("closes_a_step", "a step closes", ("L5",), _a_step_closes)
COMPLETES = Sometimes("completes", "the run is completed", ("X1", "X3"), _the_run_completes)


def _is_over_now(transition: Transition, laws: Laws) -> bool:
    del laws
    return is_over(transition.after)


EVENTUALLY: tuple[Eventually, ...] = (
    Eventually("steps_close", "every step that is opened closes, or the run ends", ("L5", "X1"), _a_step_closes),
    Eventually("ends", "every run ends", ("X1", "X2", "X3"), _is_over_now),
)


def properties_of(laws: Laws) -> Properties:
    """All that a run under these laws must keep."""
    limits, bound = laws.limits, laws.promises.staleness_bound
    edges = EDGES if bound is None else (*EDGES, staleness(bound))
    trains = limits.prompts_per_epoch >= limits.size + limits.reserve and limits.max_steps != 0
    return Properties(ALWAYS, edges, (COMPLETES, CLOSES_A_STEP) if trains else (COMPLETES,), EVENTUALLY)
