"""Coverage says which rules fired and which guards mattered, and changes nothing of what is found."""

from specs.checker.explore import explore
from specs.model import CrashFrom, WorldOptions
from specs.properties.catalog import properties_of
from tests.specs.checker.rule_coverage import ALL_RULES, GuardSeen, RuleCoverage, RuleSeen
from tests.specs.checker.small_runs import laws


def test_rules_that_fired_and_guards_that_were_the_only_false_one_are_told_apart_from_the_others():
    run = laws("in_order", 2, 1, 1, "shrink", 4)
    seen = RuleCoverage()
    world = WorldOptions(crash=CrashFrom.NOTHING)

    watched = explore(seen.watch(run), world, seen.add_to(properties_of(run)))
    plain = explore(run, world, properties_of(run))

    assert (watched.verdict, watched.states, watched.transitions) == (plain.verdict, plain.states, plain.transitions)
    assert RuleSeen("StepAssembly", "select→full") in seen.fired
    assert RuleSeen("StepAssembly", "close_short→short") in seen.never_fired, "only windowed closes short"
    assert RuleSeen("SparePool", "stock→low") in seen.never_fired, "no pool is used"
    assert GuardSeen("StepAssembly", "select→assembling", "_leaves_room") in seen.alone_false


def test_the_small_scopes_together_fire_nearly_every_rule():
    seen = RuleCoverage()
    for sampler, size, pool in (("in_order", 2, "replace"), ("ready_first", 1, "replace"), ("windowed", 2, "shrink")):
        run = laws(sampler, size, 1, 1, pool, 5)
        explore(seen.watch(run), WorldOptions(), seen.add_to(properties_of(run)))

    assert len(seen.never_fired) <= len(ALL_RULES) // 4, seen.never_fired
