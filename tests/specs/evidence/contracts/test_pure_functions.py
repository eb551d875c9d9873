"""Pure functions under Hypothesis with CrossHair choosing the examples, which finds what chance does not."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fsm.machines.admission_gate import within_window
from fsm.machines.prompt_group import BalanceSheet
from fsm.machines.spare_pool import PoolState, status_of
from fsm.machines.step_assembly import want
from specs.evidence.contracts.functions import adds_up

symbolic = settings(
    backend="crosshair",
    max_examples=20,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
whole = st.integers(-(10**9), 10**9)


@symbolic
@given(whole, whole, whole)
def test_a_step_with_all_that_it_wants_comes_out_even(size: int, selected: int, charged: int) -> None:
    """S1, L5."""
    assert selected + charged + want(size, selected, charged) == size


@symbolic
@given(whole, whole, whole)
def test_a_batch_is_admitted_exactly_while_it_leads_by_at_most_the_window(
    index: int, version: int, window: int
) -> None:
    """A1."""
    assert within_window(index, version, window) == (index + 1 - version <= window)


@symbolic
@given(whole, whole, st.integers(0, 1))
def test_a_pool_is_refilled_exactly_below_its_reserve(spares: int, reserve: int, data_left: int) -> None:
    """P1."""
    assert (status_of(spares, reserve, data_left) is PoolState.LOW) == (data_left == 1 and spares < reserve)


@settings(max_examples=300)
@given(st.lists(st.integers(-1, 4), min_size=12, max_size=12), st.booleans())
def test_the_balance_that_is_proven_is_the_one_that_the_core_asserts(columns: list[int], is_even: bool) -> None:
    """X4."""
    sheet = BalanceSheet(*columns)
    if is_even:
        sheet = sheet._replace(pulled=sum(columns[1:11]))
    assert adds_up(sheet) == sheet.balanced


@pytest.mark.parametrize("wanted", [123_456_789, -987_654_321])
def test_the_backend_finds_a_single_wrong_value_among_two_billion(wanted: int) -> None:
    """Else the tests above would say no more than chance does."""

    @symbolic
    @given(whole)
    def wrong_somewhere(size: int) -> None:
        assert want(size, 0, 0) != wanted

    with pytest.raises(AssertionError):
        wrong_somewhere()
