"""Every faulty pump is noticed."""

from runtime.simulation.mutants import hunt_each


def test_every_faulty_pump_is_noticed_within_a_few_hundred_runs() -> None:
    caught = list(hunt_each())
    assert [each.mutant.name for each in caught if each.seed is None] == []
    assert len(caught) >= 40
