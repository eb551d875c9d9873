"""C1, C2: a checkpoint at every event and a crash at every later one."""

import pytest

from runtime.simulation.crash_points import crash_points, reference_plan
from runtime.simulation.plan import SAMPLERS
from runtime.simulation.runs import simulate
from specs.evidence.mutants.mutant import Mutant, edited, in_place


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_resume_from_a_checkpoint_at_any_event_loses_and_repeats_nothing(sampler: str) -> None:
    events = simulate(reference_plan(sampler)).events
    assert 40 <= events <= 80
    assert crash_points(sampler, every_crash=False) == 2 * (events - 1) - 1


def test_a_checkpoint_without_the_data_of_what_is_accumulated_is_found() -> None:
    edits = edited({"runtime.checkpoints.checkpoint:prompts_with_data": {'"chunk", "accumulated")': '"chunk")'}})
    forgets = Mutant("the data of accumulated groups is forgotten", "", "", edits=edits)
    with in_place(forgets), pytest.raises(AssertionError, match=r"a checkpoint after event \d+, and a crash after"):
        crash_points("in_order", every_crash=False)
