"""Work on several processes: answers with their numbers, errors as they are, and an end when it is not wanted."""

import multiprocessing
import os
import signal
import threading
import time

import pytest

from specs.processes.pool import ProcessLost, WorkInterrupted, apart, interrupt, on_processes


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


def test_work_done_apart_answers_with_its_number_and_changes_nothing_here():
    changed: list[int] = []

    def work() -> int:
        changed.append(os.getpid())
        return 7

    assert apart(work) == 7
    assert changed == []


@pytest.mark.parametrize(
    ("end", "code"),
    [
        (lambda: os._exit(0), 0),
        (lambda: os._exit(3), 3),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), -signal.SIGKILL),
        (lambda: os.kill(os.getpid(), signal.SIGTERM), -signal.SIGTERM),
    ],
)
def test_work_done_apart_that_ends_its_process_is_lost_with_the_code(end, code):
    with pytest.raises(ProcessLost) as lost:
        apart(end)
    assert lost.value.code == code


def test_work_done_apart_ends_at_once_where_it_is_not_wanted_any_more():
    def never() -> int:
        while True:
            time.sleep(600)

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 2.0)  # later than the fork on a busy machine, which would swallow it
        began_s = time.monotonic()
        with pytest.raises(WorkInterrupted):
            apart(never)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert time.monotonic() - began_s < 60
    assert not multiprocessing.active_children()


def test_a_thread_that_work_done_apart_leaves_does_not_keep_the_answer():
    def work() -> int:
        threading.Thread(target=threading.Event().wait).start()
        return 1

    assert apart(work) == 1
