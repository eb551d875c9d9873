"""Work on several processes: answers with their numbers, errors as they are, and an end when it is not wanted."""

from __future__ import annotations

import multiprocessing
import time

import pytest

from specs.pool import on_processes


def half(number: int) -> float:
    if number < 0:
        raise ValueError(f"{number} is negative")
    return number / 2


def sleep(seconds: float) -> None:
    time.sleep(seconds)


@pytest.mark.parametrize("jobs", [1, 2])
def test_every_answer_comes_with_the_number_of_its_item(jobs):
    assert sorted(on_processes(half, [4, 2, 8], jobs)) == [(0, 2.0), (1, 1.0), (2, 4.0)]


@pytest.mark.parametrize("jobs", [1, 2])
def test_what_the_work_raises_is_raised(jobs):
    with pytest.raises(ValueError, match="-1 is negative"):
        list(on_processes(half, [4, -1], jobs))


def test_work_that_is_not_wanted_any_more_ends_at_once():
    before = set(multiprocessing.active_children())
    answers = on_processes(sleep, [0.0, 600.0, 600.0], 2)
    next(answers)
    began_s = time.monotonic()
    answers.close()

    assert time.monotonic() - began_s < 10
    assert set(multiprocessing.active_children()) <= before
