"""Each kind of property is found broken where it is broken, by the shortest way, and holds where it holds."""

from dataclasses import replace

import pytest

from fsm.errors import InvariantBroken
from fsm.machines.spare_pool import SparePool
from fsm.machines.step_assembly import STEP_ASSEMBLY
from fsm.values import pages
from specs.checker.explore import EXIT, HOLDS, VIOLATED, explore
from specs.counterexample import Unconfirmed
from specs.model import CORE, WorldOptions, with_tables
from specs.properties.catalog import properties_of
from specs.properties.kinds import DEADLOCK, REFUSED, Always, Edge, Sometimes
from tests.specs.checker.small_runs import laws
from tests.specs.checker.toy_models import END, find, toy

DETOUR = {(0, "long"): 1, (1, "on"): 2, (0, "short"): 2, (2, "on"): 3, (3, "end"): END}


def place(state):
    return state.trainer.version


def names(result):
    return [answer.name for answer in result.counterexample]


def test_a_state_that_breaks_an_always_is_found_by_the_shortest_way():
    below = Always("below", "stays below 3", (), lambda state, _: state.trainer.version in (0, 1, 2, END))

    result = find(toy(DETOUR), below)

    assert (result.verdict, result.broken, names(result)) == (VIOLATED, "below", ["short", "on"])


def test_a_transition_that_breaks_an_edge_is_found_though_both_its_states_are_fine():
    next_to_it = Edge("steps", "no place is skipped", (), lambda t, _: place(t.after) - place(t.before) in (1, END - 3))

    result = find(toy(DETOUR), next_to_it)

    assert (result.verdict, result.broken, names(result)) == (VIOLATED, "steps", ["short"])


def test_a_state_without_a_way_out_is_a_deadlock_and_the_end_is_none():
    assert find(toy({(0, "on"): 1})).broken == DEADLOCK
    assert find(toy({(0, "on"): END})).verdict == HOLDS


def test_what_never_happens_breaks_a_sometimes():
    passes_seven = Sometimes("seven", "place 7 is passed", (), lambda t, _: place(t.after) == 7)
    passes_three = Sometimes("three", "place 3 is passed", (), lambda t, _: place(t.after) == 3)

    assert find(toy(DETOUR), passes_three).verdict == HOLDS
    assert find(toy(DETOUR), passes_three, passes_seven).broken == "seven"


def test_a_rule_that_another_asks_for_and_that_refuses_is_a_violation_with_its_words():
    def refuses(state, laws, given):
        if state.trainer.version == 2:
            raise InvariantBroken("StepAssembly refuses this")
        return toy(DETOUR).answer(state, laws, given)

    result = find(toy(DETOUR)._replace(answer=refuses))

    assert (result.verdict, result.broken, result.why) == (VIOLATED, REFUSED, "StepAssembly refuses this")
    assert names(result) == ["short", "on"]


def test_a_run_that_cannot_even_begin_is_a_violation_with_an_empty_story():
    def refuses(state, laws):
        raise InvariantBroken("the Source refuses to begin")

    result = find(toy(DETOUR)._replace(settle=refuses))

    assert (result.verdict, result.broken, result.why) == (VIOLATED, REFUSED, "the Source refuses to begin")
    assert names(result) == []


def test_of_several_state_properties_the_first_that_breaks_is_named():
    below = Always("below", "stays below 3", (), lambda state, _: state.trainer.version in (0, 1, 2, END))
    odd = Always("odd", "is never at 3", (), lambda state, _: state.trainer.version != 3)

    assert find(toy(DETOUR), below, odd).broken == "below"
    assert find(toy(DETOUR), odd, below).broken == "odd"


def test_a_model_that_is_not_a_function_of_its_state_is_not_believed():
    calls = []

    def moody(state, laws, given):
        calls.append(given)
        leads_to = 1 if len(calls) == 1 else END
        return toy({(0, "on"): leads_to}).answer(state, laws, given)

    with pytest.raises(Unconfirmed):
        find(toy({(0, "on"): 1})._replace(answer=moody))


def test_verdicts_have_the_exit_codes_of_the_command():
    assert EXIT == {"holds": 0, "violated": 2, "undetermined": 3}


def test_an_answer_that_comes_too_late_and_is_applied_breaks_a_property():
    run = laws("ready_first", 1, 1, 1, "replace", 3)

    def applies_late_answers(state, under, given):
        if given.name != "late":
            return CORE.answer(state, under, given)
        as_if_running = state._replace(running=pages.add(state.running, given.group_class, 1))
        return CORE.answer(as_if_running, under, given._replace(name="commit"))

    result = explore(run, WorldOptions(), properties_of(run), model=CORE._replace(answer=applies_late_answers))

    assert (result.verdict, result.counterexample[-1].name) == (VIOLATED, "late")


def test_a_checkpoint_that_forgets_the_pool_breaks_what_a_resume_keeps():
    run = laws("ready_first", 1, 1, 1, "replace", 3)

    def forgets(state, under):
        sheet = state.sheet
        forgotten = sheet._replace(spare=0, pulled=sheet.pulled - sheet.spare)
        return CORE.resume(state._replace(pool=SparePool(), sheet=forgotten), under)

    result = explore(run, WorldOptions(), properties_of(run), model=CORE._replace(resume=forgets))

    assert (result.verdict, result.broken) == (VIOLATED, "resumed")
    assert names(result) == ["crash"]


def test_a_table_with_a_guard_dropped_is_explored_in_place_of_the_real_one():
    run = laws("ready_first", 2, 1, 1, "shrink", 4)
    assert explore(run, WorldOptions(), properties_of(run)).verdict == HOLDS
    unguarded = tuple(
        replace(rule, guards=()) if rule.name == "select→assembling" else rule for rule in STEP_ASSEMBLY.rules
    )

    result = explore(with_tables(run, replace(STEP_ASSEMBLY, rules=unguarded)), WorldOptions(), properties_of(run))

    assert result.verdict == VIOLATED
