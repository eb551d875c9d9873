"""`fsm.groups.dispatch_order`: things come out by dispatch number, however they came in (S3)."""

from hypothesis import given
from hypothesis import strategies as st

from fsm.groups.dispatch_order import DispatchOrder

NUMBERS = st.lists(st.integers(0, 2_000), unique=True, max_size=60)


def filled(numbers: list[int]) -> DispatchOrder[str]:
    order: DispatchOrder[str] = DispatchOrder()
    for number in numbers:
        order.add(number, str(number))
    return order


@given(NUMBERS, st.integers(0, 70), NUMBERS)
def test_s3_what_is_taken_is_the_smallest_there_are_at_that_moment(first: list[int], most: int, later: list[int]):
    order = filled(first)
    assert order.take(most) == [str(number) for number in sorted(first)[:most]]
    left = sorted(first)[most:]
    later = [number for number in later if number not in first]
    for number in later:
        order.add(number, str(number))
    expected = [str(number) for number in sorted(left + later)]
    assert (list(order), len(order), bool(order)) == (expected, len(expected), bool(expected))
    assert order.take(len(expected)) == expected
    assert not order
