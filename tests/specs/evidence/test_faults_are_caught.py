"""Faults that control loops of this kind are known to have: each is found, by the property that it breaks."""

import pytest

from fsm.errors import ConfigError
from specs.checker.explore import HOLDS, VIOLATED, explore
from specs.engine.search import Bounds
from specs.evidence.mutants.faults import FAULTS
from specs.evidence.mutants.mutant import hunt
from specs.properties.catalog import all_properties_of

BOUNDS = Bounds(states=20_000)
SOUND = [fault for fault in FAULTS if fault.refused_for is None]
UNSOUND = [fault for fault in FAULTS if fault.refused_for is not None]


def named(faults):
    return [pytest.param(fault, id=fault.mutant.name) for fault in faults]


@pytest.mark.parametrize("fault", named(FAULTS))
def test_the_property_that_a_known_fault_breaks_finds_it_by_the_shortest_story(fault):
    known = all_properties_of(fault.scope.laws())
    alone = known.without(*(prop.name for prop in known.all() if prop.name != fault.breaks))

    result = hunt(fault.mutant, fault.scope, alone, BOUNDS)

    assert (result.verdict, result.broken) == (VIOLATED, fault.breaks), result.why
    assert len(result.counterexample) == fault.events, [answer.name for answer in result.counterexample]


@pytest.mark.parametrize("fault", named(SOUND))
def test_the_core_holds_where_a_known_fault_is_found(fault):
    laws = fault.scope.laws()

    result = explore(laws, fault.scope.world, all_properties_of(laws), bounds=BOUNDS)

    assert (result.verdict, result.broken) == (HOLDS, None)


@pytest.mark.parametrize("fault", named(UNSOUND))
def test_setup_refuses_a_run_that_no_core_could_end(fault):
    with pytest.raises(ConfigError, match=fault.refused_for):
        fault.scope._replace(is_checked=True).laws()
