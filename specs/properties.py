"""What must hold of every run, as named public objects: a kind, a sentence, a predicate, the rule it comes from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from fsm import own_moves, pages
from fsm.errors import InvariantBroken
from fsm.invariants import check
from fsm.laws import Laws
from fsm.moves import ChunkSelected, Move, StepClosed
from fsm.state import NONE, State, is_over, slots_accounted


class Always(NamedTuple):
    """Holds of every state."""

    name: str
    sentence: str
    rules: tuple[str, ...]
    holds: Callable[[State, Laws], bool]


class Edge(NamedTuple):
    """Holds of every transition: the state before, what was done, the state after."""

    name: str
    sentence: str
    rules: tuple[str, ...]
    holds: Callable[[State, Sequence[Move], State, Laws], bool]


def _invariants_hold(state: State, laws: Laws) -> bool:
    try:
        check(state, laws.limits)
    except InvariantBroken:
        return False
    return True


def _slots_are_accounted(state: State, laws: Laws) -> bool:
    return bool(laws.limits.closes_short) or is_over(state) or slots_accounted(state, laws.limits)


def _nothing_is_left_undone(state: State, laws: Laws) -> bool:
    return own_moves.next_move(state, laws) is None


def _replacements_are_bounded(state: State, laws: Laws) -> bool:
    most = laws.limits.max_replacements
    in_flight = (state.running, state.waiting, state.backing_off)
    return all(group_class.replacements <= most for counts in in_flight for group_class, _ in pages.items(counts))


def _steps_come_out_even(before: State, done: Sequence[Move], after: State, laws: Laws) -> bool:
    del before, after
    limits = laws.limits
    return all(
        move.selected + move.charged + move.short == limits.size and (move.short == 0 or limits.closes_short == 1)
        for move in done
        if isinstance(move, StepClosed)
    )


def _groups_train_in_their_step(before: State, done: Sequence[Move], after: State, laws: Laws) -> bool:
    del before, after, laws
    return all(
        group_class.target_step in (NONE, move.step)
        for move in done
        if isinstance(move, ChunkSelected)
        for group_class, _ in move.picks
    )


def _never_untrained(before: State, done: Sequence[Move], after: State, laws: Laws) -> bool:
    """Trained groups leave the hands for good: what is trained only grows, and only by what was selected."""
    del laws
    grown = after.tally.trained - before.tally.trained
    return grown == sum(move.selected for move in done if isinstance(move, StepClosed))


ALWAYS: tuple[Always, ...] = (
    Always("balance", "every prompt pulled is in one place, and no step exceeds N", ("X4", "L5"), _invariants_hold),
    Always("slots", "every admitted slot is in hand, selected or charged", ("X2",), _slots_are_accounted),
    Always("no_poll", "what can be done is done", ("A3",), _nothing_is_left_undone),
    Always("replacements", "a slot has at most max_replacement_attempts", ("L2",), _replacements_are_bounded),
)

EDGES: tuple[Edge, ...] = (
    Edge(
        "even", "a step closes with selected + charged = N, or short at exhaustion", ("L5", "X1"), _steps_come_out_even
    ),
    Edge("target", "no group is trained for a step other than its target", ("A2", "S2"), _groups_train_in_their_step),
    Edge("once", "no group is trained twice", ("C2", "L5"), _never_untrained),
)


def staleness(bound: int) -> Edge:
    """Staleness at selection is at most `bound`: windowed's window, the lookahead of in_order and weight_fifo."""

    def holds(before: State, done: Sequence[Move], after: State, laws: Laws) -> bool:
        del before, after, laws
        return all(
            move.step - group_class.start_weight <= bound
            for move in done
            if isinstance(move, ChunkSelected)
            for group_class, _ in move.picks
        )

    return Edge("staleness", f"staleness at selection is at most {bound}", ("S2", "E1"), holds)
