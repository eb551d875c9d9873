"""Looks for a counterexample: breadth-first over the real rules, so the first one found is the shortest.

There is no second model: states are the core's own, transitions its own functions, rules fired from the same tables
(`fsm.table.fire`).
"""

from __future__ import annotations

from typing import NamedTuple

from fsm.laws import Laws
from fsm.state import State
from specs.model import Answer, World, after, deadlocked, initial, key, possible
from specs.properties import ALWAYS, EDGES, Always, Edge

HOLDS, VIOLATED, UNDETERMINED = "holds", "violated", "undetermined"


class Result(NamedTuple):
    """What an exploration found."""

    verdict: str
    """holds, violated, or undetermined (the bound on states was hit): never a pass."""
    broken: str | None
    """The property that is violated, or "deadlock"."""
    states: int
    transitions: int
    counterexample: tuple[Answer, ...]
    """The shortest list of answers that leads to the violation; () where there is none."""


def explore(
    laws: Laws,
    world: World,
    *,
    always: tuple[Always, ...] = ALWAYS,
    edges: tuple[Edge, ...] = EDGES,
    max_states: int = 1_000_000,
) -> Result:
    """Go through every state that the world can lead to."""
    first = initial(laws)
    reached: dict[State, tuple[State, Answer] | None] = {key(first): None}
    frontier, transitions = [first], 0
    while frontier:
        found: list[State] = []
        for state in frontier:
            broken = _broken_in(state, laws, always)
            if broken is not None:
                return Result(VIOLATED, broken, len(reached), transitions, _path(reached, key(state)))
            for answer in possible(state, laws, world):
                following, done = after(state, laws, answer)
                transitions += 1
                for edge in edges:
                    if not edge.holds(state, done, following, laws):
                        path = (*_path(reached, key(state)), answer)
                        return Result(VIOLATED, edge.name, len(reached), transitions, path)
                known = key(following)
                if known not in reached:
                    reached[known] = (key(state), answer)
                    found.append(following)
        if len(reached) > max_states:
            return Result(UNDETERMINED, None, len(reached), transitions, ())
        frontier = found
    return Result(HOLDS, None, len(reached), transitions, ())


def _broken_in(state: State, laws: Laws, always: tuple[Always, ...]) -> str | None:
    for prop in always:
        if not prop.holds(state, laws):
            return prop.name
    return "deadlock" if deadlocked(state) else None


def _path(reached: dict[State, tuple[State, Answer] | None], state: State) -> tuple[Answer, ...]:
    answers: list[Answer] = []
    while (step := reached[state]) is not None:
        state, answer = step
        answers.append(answer)
    return tuple(reversed(answers))
