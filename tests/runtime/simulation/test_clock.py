"""The loop whose time is simulated."""

import asyncio
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from runtime.simulation.clock import NothingScheduled, TimeIsUp, VirtualLoop

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T], *, turns: int = 10_000, until_s: float = float("inf")) -> tuple[T, float]:
    """What the work returns, and the virtual time then."""
    loop = VirtualLoop(0.0, turns)
    loop.end_at(until_s)
    try:
        return loop.run_until_complete(work), loop.time()
    finally:
        loop.no_bounds()
        for task in asyncio.all_tasks(loop):
            task.cancel()
            loop.run_until_complete(asyncio.wait([task]))
        loop.close()


def test_a_year_of_sleep_takes_no_time_and_timers_fire_in_the_order_of_their_times() -> None:
    async def scenario() -> list[int]:
        fired: list[int] = []
        for day in (3, 1, 2):
            asyncio.get_running_loop().call_later(86_400.0 * day, fired.append, day)
        await asyncio.sleep(365 * 86_400.0)
        return fired

    began_s = time.monotonic()
    fired, now_s = run(scenario())
    assert fired == [1, 2, 3]
    assert now_s == pytest.approx(365 * 86_400.0)
    assert time.monotonic() - began_s < 60.0


def test_a_task_that_waits_for_what_nobody_will_do_is_a_hang_at_once() -> None:
    async def scenario() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(NothingScheduled):
        run(scenario())


@pytest.mark.parametrize("interval_s", [0.0, 1.0])
def test_a_loop_that_never_ends_is_stopped_at_its_bound(interval_s: float) -> None:
    async def scenario() -> None:
        while True:
            await asyncio.sleep(interval_s)

    with pytest.raises(TimeIsUp):
        run(scenario(), until_s=600.0)


def test_a_sleep_that_rounding_makes_too_short_to_move_the_clock_ends() -> None:
    """The watchdog sleeps for what is left of its interval, which may be less than the clock's resolution."""

    async def scenario() -> float:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(1e6)
        until_s = loop.time() + 1e-10
        while loop.time() < until_s:
            await asyncio.sleep(until_s - loop.time())
        return loop.time()

    assert run(scenario())[0] == pytest.approx(1e6)
