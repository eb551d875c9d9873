"""Transitions are remembered by what they read, which gives the very states that the functions themselves give."""

from __future__ import annotations

import pytest
from small_runs import laws

from fsm.state import NONE, GroupClass, State
from specs.checker import explore
from specs.memo import Memo
from specs.model import CORE, World, after, canonical, initial
from specs.parts import Parts, Reading, noting_reads
from specs.properties import Properties


def reached_by_the_functions(run, world):
    """States and transitions, found one by one and remembered as they are."""
    states, todo, transitions = {initial(run)}, [initial(run)], 0
    while todo:
        state = todo.pop()
        for answer in CORE.possible(state, run, world):
            following = canonical(after(state, run, answer)[0])
            transitions += 1
            if following not in states:
                states.add(following)
                todo.append(following)
    return len(states), transitions


@pytest.mark.parametrize(
    ("sampler", "size", "minimum", "pool"),
    [("in_order", 2, 1, "replace"), ("ready_first", 2, 2, "shrink"), ("windowed", 2, 1, "shrink"),
     ("weight_fifo", 2, 1, "shrink")],
)  # fmt: skip
def test_states_and_transitions_are_those_of_the_functions_themselves(sampler, size, minimum, pool):
    run = laws(sampler, size, 1, minimum, pool, num_prompts=6)

    result = explore(run, World(), Properties())

    assert (result.states, result.transitions) == reached_by_the_functions(run, World())


def test_a_function_runs_again_only_where_it_would_read_something_else():
    parts, runs = Parts(), []
    reading = Reading(parts)

    def version(state):
        runs.append(state)
        return state.trainer.version

    memo = Memo(reading, version)
    first = State()
    other_queue = first._replace(queue=first.queue._replace(groups=3))
    other_version = first._replace(trainer=first.trainer._replace(version=7))

    with noting_reads():
        answers = [memo(parts.pack(state)) for state in (first, other_queue, other_version)]

    assert answers == [0, 0, 7]
    assert len(runs) == 2


def test_comparing_states_counts_as_reading_them():
    parts = Parts()
    reading = Reading(parts)
    first = State()
    memo = Memo(reading, lambda state: state == first)

    with noting_reads():
        answers = [memo(parts.pack(state)) for state in (first, first._replace(ready=(((GroupClass(NONE), 1),),)))]

    assert answers == [True, False]


def test_a_state_is_a_plain_one_again_afterwards():
    plain = State.ready
    with noting_reads():
        assert State.ready is not plain
    assert State.ready is plain
