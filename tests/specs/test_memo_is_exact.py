"""Transitions are remembered by what they read, which gives the very states that the functions themselves give."""

from __future__ import annotations

import pytest
from small_runs import laws

from fsm.prompt_group import MOVE, Tally
from fsm.state import NONE, GroupClass, State
from specs.checker import explore
from specs.memo import of_state
from specs.model import CORE, World, after, canonical, initial
from specs.parts import CANONICAL, NAMES, PART, Parts
from specs.properties import Properties
from specs.reading import Elsewhere, NotHere, Reading, noting_reads, written


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
     ("weight_fifo", 2, 1, "shrink"), ("ready_first", 2, 1, "replace")],
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

    memo = of_state(reading, version)
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
    memo = of_state(reading, lambda state: state == first)

    with noting_reads():
        answers = [memo(parts.pack(state)) for state in (first, first._replace(ready=(((GroupClass(NONE), 1),),)))]

    assert answers == [True, False]


HANDS = Tally(pulled=9, spare=1, queued=2, in_flight=3, ready=2, selected=1)


def columns_read(reading):
    return {name.removeprefix("tally.") for name, part in zip(NAMES, PART, strict=True) if reading.mask & part}


def changed(change):
    """What is read of the sheet HANDS by a change of it, and the sheet that its key becomes."""
    parts = Parts()
    reading = Reading(parts)
    key = parts.pack(State(tally=HANDS))
    with noting_reads():
        state = reading.open(key)
        kept, bits, _ = written(state._replace(tally=change(state.tally)), reading)
    return columns_read(reading), parts.unpack(key & kept | bits).tally


def test_a_move_on_the_balance_sheet_reads_and_writes_its_two_columns_alone():
    read, sheet = changed(lambda tally: MOVE["commit"](tally, 2))

    assert read == {"in_flight", "ready"}
    assert sheet == HANDS._replace(in_flight=1, ready=4)


def test_prompts_are_pulled_without_a_look_at_how_many_were():
    read, sheet = changed(lambda tally: MOVE["hold_back"](MOVE["admit"](tally, 4), 3))

    assert read == {"queued", "spare"}
    assert sheet == HANDS._replace(pulled=16, queued=6, spare=4)


@pytest.mark.parametrize("column", Tally._fields)
def test_a_column_that_is_changed_alone_is_what_it_is_changed_to(column):
    _, sheet = changed(lambda tally: tally._replace(**{column: 5}))

    assert sheet == HANDS._replace(**{column: 5})


def test_the_canonical_bits_are_the_canonical_state():
    parts = Parts()
    state = State(tally=HANDS._replace(pulled=21, trained=7, dropped=5, replaced=4))

    assert parts.pack(state) & CANONICAL == parts.pack(canonical(state))


def test_a_value_that_nobody_has_looked_at_cannot_be_kept():
    parts = Parts()
    reading = Reading(parts)
    reading.open(parts.pack(State(tally=HANDS)))
    unread = tuple.__getitem__(reading.state.tally, Tally._fields.index("ready"))

    with pytest.raises(TypeError, match="unhashable"):
        parts.bits(0, unread)


def test_a_part_that_is_elsewhere_cannot_be_looked_at():
    reading = Reading(Parts())
    with noting_reads(), pytest.raises(NotHere, match="running"):
        reading.state._replace(running=Elsewhere()).running  # noqa: B018  (looks)


def test_a_state_is_a_plain_one_again_afterwards():
    plain = State.ready
    with noting_reads():
        assert State.ready is not plain
    assert State.ready is plain
