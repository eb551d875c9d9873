"""Deadlines that follow from what is usual."""

from hypothesis import given
from hypothesis import strategies as st

from runtime.usual import LAST, UsualTime


def test_before_anything_is_known_the_floor_counts() -> None:
    assert UsualTime(600.0, 10.0).deadline_s == 600.0


def test_slow_work_gets_more_time_and_quick_work_the_floor() -> None:
    usual = UsualTime(600.0, 10.0)
    usual.took(1.0)
    assert usual.deadline_s == 600.0
    for _ in range(LAST):
        usual.took(120.0)
    assert usual.deadline_s == 1200.0
    assert usual.said == "1,200 s, usual 120.0 s"


def test_a_single_slow_one_changes_nothing() -> None:
    usual = UsualTime(1.0, 10.0)
    for _ in range(9):
        usual.took(2.0)
    usual.took(1e6)
    assert usual.deadline_s == 20.0


def test_a_configured_deadline_counts_alone() -> None:
    usual = UsualTime(600.0, 10.0, configured=5.0)
    usual.took(1e3)
    assert usual.deadline_s == 5.0


@given(st.lists(st.floats(0, 1e6), max_size=200))
def test_a_deadline_is_never_below_the_floor_nor_below_the_usual(durations: list[float]) -> None:
    usual = UsualTime(600.0, 10.0)
    for duration_s in durations:
        usual.took(duration_s)
    assert usual.deadline_s >= max(600.0, usual.median_s or 0.0)
    assert len(usual.last) <= LAST
