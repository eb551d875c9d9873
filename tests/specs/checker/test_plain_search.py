"""The plain search is the reference: `explore`, with all that it remembers, finds the same."""

from dataclasses import replace

import pytest

from fsm.errors import InvariantBroken
from fsm.machines.step_assembly import STEP_ASSEMBLY
from fsm.rules import on_event
from specs.checker.explore import HOLDS, VIOLATED, explore
from specs.checker.plain import search
from specs.evidence.mutants.faults import FAULTS
from specs.evidence.mutants.mutant import in_place, settle_or_refuse
from specs.model import CORE, CrashFrom, WorldOptions, with_tables
from specs.properties.catalog import all_properties_of, properties_of
from specs.properties.kinds import DEADLOCK, REFUSED, Properties, Sometimes
from tests.specs.checker.small_runs import laws

LAST_CHECKPOINT = WorldOptions(crash=CrashFrom.LAST_CHECKPOINT)


def assert_alike(run, world, properties, model=CORE):
    """Both find the same, which is given back."""
    plain = search(run, world, properties, model)
    explored = explore(run, world, properties._replace(eventually=()), model=model)

    assert explored.verdict == (HOLDS if plain.broken is None else VIOLATED)
    assert (explored.broken, len(explored.counterexample)) == (plain.broken, len(plain.counterexample))
    if plain.broken is None:
        assert (explored.states, explored.transitions) == (plain.states, plain.transitions)
    return plain


@pytest.mark.parametrize(
    ("sampler", "size", "minimum", "pool", "prompts", "world"),
    [
        ("in_order", 1, 1, "replace", 4, WorldOptions()),
        ("in_order", 2, 1, "shrink", 4, WorldOptions()),
        ("ready_first", 2, 2, "replace", 4, WorldOptions(late=False)),
        ("windowed", 2, 1, "shrink", 4, WorldOptions()),
        ("weight_fifo", 2, 1, "shrink", 6, WorldOptions(backs_off=False)),
        ("ready_first", 1, 1, "shrink", 2, LAST_CHECKPOINT),
    ],
)
def test_states_transitions_and_verdicts_are_those_of_the_plain_search(sampler, size, minimum, pool, prompts, world):
    run = laws(sampler, size, 1, minimum, pool, prompts)

    found = assert_alike(run, world, properties_of(run)._replace(sometimes=()))

    assert found.broken is None
    assert found.states > 100


def broken_by(**functions):
    run = laws("ready_first", 2, 1, 1, "shrink", 4)
    return assert_alike(run, WorldOptions(), properties_of(run), CORE._replace(**functions)).broken


def test_a_state_property_breaks_where_the_plain_search_finds_it_broken():
    def miscounts(state, run, given):
        moved, done = CORE.answer(state, run, given)
        sheet = moved.sheet
        return (moved._replace(sheet=sheet._replace(ready=sheet.ready + 1)) if sheet.ready == 2 else moved), done

    assert broken_by(answer=miscounts) is not None


def test_a_resume_that_loses_the_ready_groups_is_found_by_both():
    def loses(state, run):
        resumed, done = on_event.resume(state, run)
        return resumed._replace(ready=()), done

    assert broken_by(resume=loses) == "columns"


def test_a_refusal_is_found_by_both():
    def refuses(state, run, given):
        if given.name == "commit" and state.trainer.version == 1:
            raise InvariantBroken("no")
        return CORE.answer(state, run, given)

    assert broken_by(answer=refuses) == REFUSED


def test_a_deadlock_is_found_by_both():
    run = laws("windowed", 2, 1, 2, "shrink", 4, async_rl__max_buffered_rollouts=1)

    assert assert_alike(run, WorldOptions(fails=False), properties_of(run)).broken == DEADLOCK


def test_a_sometimes_that_never_happens_is_found_by_both():
    run = laws("in_order", 1, 0, 1, "shrink", 2)
    never = Sometimes("never", "ten steps", (), lambda transition, _: transition.after.trainer.version == 10)

    assert assert_alike(run, WorldOptions(), Properties(sometimes=(never,))).broken == "never"


def test_a_table_without_a_guard_is_found_broken_by_both():
    unguarded = tuple(
        replace(rule, guards=()) if rule.name == "select→assembling" else rule for rule in STEP_ASSEMBLY.rules
    )
    run = with_tables(laws("ready_first", 2, 1, 1, "shrink", 4), replace(STEP_ASSEMBLY, rules=unguarded))

    assert assert_alike(run, WorldOptions(), properties_of(run)).broken is not None


SOON_FOUND = [fault for fault in FAULTS if fault.events <= 6]


@pytest.mark.parametrize("fault", SOON_FOUND, ids=lambda fault: fault.mutant.name)
def test_planted_faults_are_found_by_both_with_counterexamples_of_the_same_length(fault):
    mutant, scope = fault.mutant, fault.scope
    with in_place(mutant):
        run = mutant.laws(scope.laws())
        model = mutant.model(scope.model._replace(settle=settle_or_refuse))
        found = assert_alike(run, scope.world, all_properties_of(run), model)
    assert found.broken is not None
