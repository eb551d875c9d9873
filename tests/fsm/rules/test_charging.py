"""L3, L4, S5: the acceptance checks of shared/scenarios/accounting/two_losses_during_a_chunk.yaml.

For every N from 2 to 6, every streaming minimum and any order of commits and losses, no step closes with
selected + charged other than N, none is shrunk below what it has selected, and all losses are charged; and with the
charge rule put back to "always the assembling step until the trainer moves on" that is violated at once.
"""

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from fsm.errors import InvariantBroken
from tests.fsm.helpers import examples
from tests.fsm.rules.charging import SHAPES, Charging, Unguarded, as_it_was, every_order, tried

SETTINGS = settings(
    max_examples=examples(2_000),
    stateful_step_count=16,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def test_no_order_of_commits_and_losses_makes_a_step_uneven() -> None:
    """2,000 random runs of real events, with every N from 2 to 6 and every streaming minimum."""
    run_state_machine_as_test(Charging, settings=SETTINGS)
    assert tried >= set(SHAPES)


@pytest.mark.parametrize(("size", "streaming"), SHAPES)
def test_not_one_of_all_orders_of_two_batches_makes_a_step_uneven(size: int, streaming: int) -> None:
    assert every_order(size, streaming, window=1, batches=2) > 20


def _runs_to_the_first_violation(machine: type[RuleBasedStateMachine], violation: type[Exception], says: str) -> int:
    runs = 0

    class Counted(machine):
        def __init__(self) -> None:
            nonlocal runs
            super().__init__()
            runs += 1

    quick = settings(SETTINGS, phases=[Phase.generate], database=None, derandomize=True)
    with pytest.raises(violation, match=says):
        run_state_machine_as_test(Counted, settings=quick)
    return runs


def test_the_charge_rule_put_back_is_caught_at_once_by_the_core_s_own_guard() -> None:
    """L4: the ledger refuses a charge that would make selected + charged exceed N."""
    with as_it_was(guarded=True):
        assert _runs_to_the_first_violation(Charging, InvariantBroken, "ShortfallLedger refuses charge") <= 50
        with pytest.raises(InvariantBroken, match="ShortfallLedger refuses charge"):
            every_order(4, 3, window=1, batches=2)


def test_the_charge_rule_put_back_is_caught_at_once_by_the_property_where_no_guard_stands_in_the_way() -> None:
    """L3: a step is shrunk below what it has selected, as the review found."""
    with as_it_was(guarded=False):
        assert _runs_to_the_first_violation(Unguarded, AssertionError, "is shrunk to") <= 50


def test_where_no_guard_stands_in_the_way_the_rule_of_the_design_still_keeps_every_step_even() -> None:
    """The charge rule itself is right: the guards only watch over it."""
    run_state_machine_as_test(Unguarded, settings=settings(SETTINGS, max_examples=examples(100)))
