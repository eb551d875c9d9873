"""Transitions are remembered by what they read, which gives the very states that the functions themselves give."""

import copy
import operator
import pickle

import numpy as np
import pytest

from fsm import state as state_module
from fsm.machines.prompt_group import TRANSFER, BalanceSheet
from fsm.rules import on_event, own_moves
from fsm.state import NONE, GroupClass, Queue, State, View
from fsm.values import pages
from specs.checker.explore import HOLDS, VIOLATED, explore
from specs.engine import lookup, search
from specs.engine.lookup import Lookup, of_state
from specs.engine.parts import CANONICAL, NAMES, PART, WORDS, Parts
from specs.engine.reading import SHEET_PARTS, Reading, second_of, written
from specs.engine.rows import rows_of
from specs.model import CORE, WorldOptions, after, canonical, initial
from specs.properties.catalog import properties_of
from specs.properties.kinds import Always, Edge, Properties
from tests.specs.checker.small_runs import laws


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

    result = explore(run, WorldOptions(), Properties())

    assert (result.states, result.transitions) == reached_by_the_functions(run, WorldOptions())


def looked_up(parts, function, states):
    """The function's results in these states, by what is remembered of it."""
    results = []
    remembered = Lookup(results.extend, lambda: None)
    number = remembered.function(of_state(Reading(parts), function))
    entries = remembered(np.full(len(states), number), rows_of([parts.pack(state) for state in states], WORDS))
    return [results[entry] for entry in entries]


@pytest.mark.parametrize("states", [1, 7], ids=["one by one", "by sevens"])
def test_states_may_be_gone_through_in_blocks_of_any_size(states, monkeypatch):
    run = laws("in_order", 2, 1, 1, "shrink", num_prompts=6)
    fault = CORE._replace(settle=lambda state, laws: (state, []) if state.trainer.version else CORE.settle(state, laws))
    whole = [explore(run, WorldOptions(), properties_of(run), model=model) for model in (CORE, fault)]

    monkeypatch.setattr(search, "_BLOCK", states)
    monkeypatch.setattr(lookup, "_FEW", 0)
    blocks = [explore(run, WorldOptions(), properties_of(run), model=model) for model in (CORE, fault)]

    assert [result.verdict for result in whole] == [HOLDS, VIOLATED]
    assert [result._replace(seconds=0.0) for result in blocks] == [result._replace(seconds=0.0) for result in whole]


@pytest.mark.parametrize("copies", [1, 100], ids=["one by one", "as arrays"])
def test_a_function_runs_again_only_where_it_would_read_something_else(copies):
    runs = []

    def version(state):
        runs.append(state)
        return state.trainer.version

    first = State()
    other_queue = first._replace(queue=first.queue._replace(groups=3))
    other_version = first._replace(trainer=first.trainer._replace(version=7))

    assert looked_up(Parts(), version, [first, other_queue, other_version] * copies) == [0, 0, 7] * copies
    assert len(runs) == 2


@pytest.mark.parametrize("copies", [1, 100], ids=["one by one", "as arrays"])
def test_a_function_may_read_now_these_parts_and_now_those(copies):
    def reads_on(state):
        return state.trainer.version or state.queue.groups or state.pool.spares

    first = State()._replace(pool=State().pool._replace(spares=9))
    versions = [first._replace(trainer=first.trainer._replace(version=version)) for version in range(3)]
    groups = [first._replace(queue=first.queue._replace(groups=count)) for count in range(3)]
    states = (versions + groups) * copies

    assert looked_up(Parts(), reads_on, states) == [reads_on(state) for state in states]


def test_comparing_states_counts_as_reading_them():
    first = State()
    other = first._replace(ready=(((GroupClass(NONE), 1),),))

    assert looked_up(Parts(), lambda state: state == first, [first, other]) == [True, False]


GROUP, OTHER = GroupClass(NONE), GroupClass(1)


LOOKS = [
    len, list, bool, repr, pages.total, lambda running: running[0], lambda running: running == (), copy.deepcopy,
    lambda running: pages.get(running, OTHER, 0), lambda running: pages.add(running, OTHER, -1),
]  # fmt: skip


@pytest.mark.parametrize("look", LOOKS)
def test_whoever_looks_at_the_groups_that_run_has_read_all_of_them(look):
    parts = Parts()
    reading = Reading(parts)
    running = pages.of([(OTHER, 2)])

    assert look(reading.open(parts.pack(State(running=running))).running) == look(running)
    assert reading.mask == PART[NAMES.index("running")]


def test_groups_that_run_may_be_put_in_another_place():
    parts = Parts()
    reading = Reading(parts)
    running = pages.of([(OTHER, 2)])
    key = parts.pack(State(running=running))
    state = reading.open(key)
    kept, bits = written(state._replace(ready=pages.add(state.running, GROUP, 1)), reading)

    assert parts.unpack(key & kept | bits) == State(running=running, ready=pages.add(running, GROUP, 1))


HANDS = BalanceSheet(pulled=9, spare=1, queued=2, in_flight=3, ready=2, selected=1)


def columns_read(reading):
    return {name.removeprefix("sheet.") for name, part in zip(NAMES, PART, strict=True) if reading.mask & part}


def changed(change):
    """What is read of the sheet HANDS by a change of it, and the sheet that its key becomes."""
    parts = Parts()
    reading = Reading(parts)
    key = parts.pack(State(sheet=HANDS))
    state = reading.open(key)
    kept, bits = written(state._replace(sheet=change(state.sheet)), reading)
    return columns_read(reading), parts.unpack(key & kept | bits).sheet


def test_a_move_on_the_balance_sheet_reads_and_writes_its_two_columns_alone():
    read, sheet = changed(lambda sheet: TRANSFER["commit"](sheet, 2))

    assert read == {"in_flight", "ready"}
    assert sheet == HANDS._replace(in_flight=1, ready=4)


def test_prompts_are_pulled_without_a_look_at_how_many_were():
    read, sheet = changed(lambda sheet: TRANSFER["hold_back"](TRANSFER["admit"](sheet, 4), 3))

    assert read == {"queued", "spare"}
    assert sheet == HANDS._replace(pulled=16, queued=6, spare=4)


@pytest.mark.parametrize("column", BalanceSheet._fields)
def test_a_column_that_is_changed_alone_is_what_it_is_changed_to(column):
    _, sheet = changed(lambda sheet: sheet._replace(**{column: 5}))

    assert sheet == HANDS._replace(**{column: 5})


AFTER = HANDS._replace(in_flight=1, ready=4)


def looked_at_both(look):
    """What is read of a sheet and of one after it, in which two columns changed, and what that gives."""
    parts = Parts()
    first, second = Reading(parts), Reading(parts)
    before, after = (parts.pack(State(sheet=sheet)) for sheet in (HANDS, AFTER))
    changed = sum(1 << bit for bit, part in enumerate(SHEET_PARTS) if (before ^ after) & PART[part])
    state = second_of(first, second, changed)
    second.open(after)
    seen = look(first.open(before).sheet, state.sheet)
    return columns_read(first), columns_read(second), seen


def test_of_two_sheets_only_what_changed_is_read():
    def changes(before, after):
        return [now - then for then, now in zip(before, after, strict=True) if now is not then]

    assert looked_at_both(changes) == ({"in_flight", "ready"}, {"in_flight", "ready"}, [0, -2, 2])


@pytest.mark.parametrize(
    "look",
    [lambda before, after: after == before, lambda before, after: after.ready - before.selected,
     lambda before, after: after[0] - before[0], lambda before, after: after.pulled - before.pulled,
     lambda before, after: (after[0] + 2) - before[0], lambda before, after: before[0] - after[0],
     lambda before, after: sum(after[1:6]) - sum(before[1:6]), lambda before, after: after.trained, lambda *_: 0],
)  # fmt: skip
def test_two_sheets_are_what_they_are_however_they_are_looked_at(look):
    assert looked_at_both(look)[2] == look(HANDS, AFTER)


def test_the_canonical_bits_are_the_canonical_state():
    parts = Parts()
    state = State(sheet=HANDS._replace(pulled=21, trained=7, dropped=5, replaced=4))

    assert parts.pack(state) & CANONICAL == parts.pack(canonical(state))


def test_a_value_that_nobody_has_looked_at_cannot_be_kept():
    parts = Parts()
    reading = Reading(parts)
    reading.open(parts.pack(State(sheet=HANDS)))
    unread = reading.state.sheet[BalanceSheet._fields.index("ready")]

    with pytest.raises(TypeError, match="unhashable"):
        parts.bits(0, unread)


def test_a_column_may_be_put_in_the_place_of_another():
    read, sheet = changed(lambda sheet: sheet._replace(ready=sheet[BalanceSheet._fields.index("queued")]))

    assert "queued" in read
    assert sheet == HANDS._replace(ready=HANDS.queued)


WHOLE = State(running=pages.of([(OTHER, 2)]), sheet=HANDS)


@pytest.mark.parametrize(
    "look",
    [lambda state: state, tuple, list, hash, repr, str, copy.copy, copy.deepcopy, State._asdict,
     lambda state: pickle.loads(pickle.dumps(state)), lambda state: state == WHOLE, lambda state: state != WHOLE,
     lambda state: operator.eq(WHOLE, state), lambda state: (*state,), lambda state: state[:],
     lambda state: operator.add(state, (1,)),
     lambda state: Queue() in state, lambda state: state.index(Queue()), lambda state: state.count(()),
     lambda state: state < WHOLE, lambda state: {state: 1}[WHOLE], lambda state: f"{state}", lambda state: state[-1]],
)  # fmt: skip
def test_a_traced_state_is_the_state_however_it_is_looked_at(look):
    parts = Parts()
    reading = Reading(parts)

    assert look(reading.open(parts.pack(WHOLE))) == look(WHOLE)
    assert reading.mask


def test_what_a_look_at_a_whole_state_reads_is_all_of_it():
    parts = Parts()
    reading = Reading(parts)

    hash(reading.open(parts.pack(WHOLE)))

    assert reading.mask == sum(PART)


def test_a_traced_state_stays_one_through_updates_and_knows_what_was_left_alone():
    parts = Parts()
    reading = Reading(parts)
    key = parts.pack(WHOLE)

    state = reading.open(key)._replace(queue=Queue(groups=3))
    state = state._replace(sheet=state.sheet._replace(selected=4), ready=WHOLE.running)

    assert state.queue.groups == 3
    assert not reading.mask
    kept, bits = written(state, reading)
    expected = WHOLE._replace(queue=Queue(groups=3), sheet=HANDS._replace(selected=4), ready=WHOLE.running)
    assert parts.unpack(key & kept | bits) == expected


def test_a_plain_state_may_take_the_place_of_a_traced_one():
    parts = Parts()
    reading = Reading(parts)
    reading.open(parts.pack(WHOLE))
    other = State(queue=Queue(groups=2), sheet=BalanceSheet(pulled=2, queued=2))

    kept, bits = written(other, reading)

    assert parts.unpack(parts.pack(WHOLE) & kept | bits) == other


def test_nothing_of_the_core_is_replaced_while_it_is_explored():
    owners = [
        vars(owner) for owner in (State, BalanceSheet, View, GroupClass, pages, on_event, own_moves, state_module)
    ]
    plain = [dict(owner) for owner in owners]

    def same(*_):
        return all(dict(owner) == before for owner, before in zip(owners, plain, strict=True))

    run = laws("in_order", 1, 1, 1, "shrink", 2)
    watched = Properties((Always("same", "", (), same),), (Edge("same", "", (), same),))

    assert explore(run, WorldOptions(), watched).verdict == HOLDS
