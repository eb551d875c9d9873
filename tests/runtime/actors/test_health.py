"""Probes, streaks, restarts and seats: who is quarantined, and when. On a virtual clock."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError

from runtime.actors.calls import LoopWatch
from runtime.actors.health import Streaks, watch_number
from runtime.actors.probing import ProbeTimes, Stopwatch, keep_alive, unhealthy
from runtime.actors.restarts import LONGEST_DELAY_S, Restarts, delay_s
from runtime.actors.seat import SeatedWorker
from runtime.usual import UsualTime
from tests.runtime.control.virtual_time import run_virtually

TIMES = ProbeTimes(interval_s=5.0, timeout_s=60.0)
HANG_S = 300.0


class Probed:
    """An actor that answers until a moment, and how its answers change."""

    def __init__(self, answer: Callable[[float], float | Exception | None]) -> None:
        """answer: by time, what it replies; None for no reply at all."""
        self._answer = answer
        self.asked = 0

    async def ping(self) -> float:
        self.asked += 1
        answer = self._answer(asyncio.get_running_loop().time())
        if answer is None:
            await asyncio.get_running_loop().create_future()
        if isinstance(answer, Exception):
            raise answer
        return answer or 0.0


def until(silent_from_s: float) -> Callable[[float], float | None]:
    return lambda now_s: 0.0 if now_s < silent_from_s else None


def test_a_worker_that_falls_silent_is_unhealthy_after_the_timeout() -> None:
    async def scenario() -> tuple[str, float]:
        reason = await unhealthy(Probed(until(100.0)).ping, TIMES, HANG_S)
        return reason, asyncio.get_running_loop().time()

    reason, now_s = run_virtually(scenario())
    assert reason == "its process has not answered for 60 s (cluster.probe_timeout_s): it is frozen or unreachable"
    assert 160.0 <= now_s <= 170.0


def test_a_worker_whose_loop_stands_is_unhealthy_once_that_is_longer_than_it_may() -> None:
    standing = Probed(lambda now_s: max(0.0, now_s - 1000.0))
    reason = run_virtually(unhealthy(standing.ping, TIMES, HANG_S))
    assert "its event loop has stood still for 30" in reason
    assert "(cluster.hang_timeout_s): its engine hangs" in reason


def test_a_busy_worker_is_healthy_for_as_long_as_it_answers() -> None:
    async def scenario() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(unhealthy(Probed(lambda now_s: 299.0).ping, TIMES, HANG_S), 86400.0)

    run_virtually(scenario())


def test_a_worker_that_starts_is_waited_for_without_limit() -> None:
    """It may wait for a node. Its start has a deadline of its own."""

    async def scenario() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(unhealthy(Probed(until(0.0)).ping, TIMES, HANG_S), 86400.0)

    run_virtually(scenario())


def test_a_pause_of_the_process_that_asks_counts_little() -> None:
    async def scenario() -> float:
        loop: Any = asyncio.get_running_loop()
        watch = Stopwatch(most_s=10.0)
        for _ in range(3):
            await asyncio.sleep(5.0)
            watch.look()
        loop._now_s += 3600.0  # stopped, and continued
        return watch.look()

    assert run_virtually(scenario()) == 25.0


def test_an_actor_that_ray_restarts_is_killed_once_each_time_that_it_falls_silent() -> None:
    killed: list[float] = []
    lost: list[str] = []

    def answer(now_s: float) -> float | Exception | None:
        """Silent from 100 s until it is killed, and from 1000 s on; 20 s long it is being restarted."""
        if 100.0 <= now_s < 1000.0 and not killed:
            return None
        if killed and now_s < killed[-1] + 20.0:
            return ActorUnavailableError("restarting", None)
        return None if now_s >= 1000.0 and len(killed) < 2 else 0.0

    async def scenario() -> None:
        def kill() -> None:
            killed.append(asyncio.get_running_loop().time())

        with pytest.raises(TimeoutError):
            await asyncio.wait_for(keep_alive(Probed(answer).ping, kill, TIMES, lost.append), 5000.0)

    run_virtually(scenario())
    assert len(killed) == 2
    assert lost == ["it has not answered for 60 s (cluster.probe_timeout_s)"] * 2


@pytest.mark.parametrize("from_s", [0.0, 100.0])
def test_an_actor_that_ray_cannot_connect_to_is_killed_also_before_it_has_ever_answered(from_s: float) -> None:
    """A process that froze at its start: Ray's calls fail, and it holds the actor to be alive."""
    killed: list[float] = []
    lost: list[str] = []

    def answer(now_s: float) -> float | Exception:
        if now_s < from_s or killed:
            return 0.0
        return ActorUnavailableError("RpcError: failed to connect to all addresses rpc_code: 14", None)

    async def scenario() -> None:
        def kill() -> None:
            killed.append(asyncio.get_running_loop().time())

        with pytest.raises(TimeoutError):
            await asyncio.wait_for(keep_alive(Probed(answer).ping, kill, TIMES, lost.append), 5000.0)

    run_virtually(scenario())
    assert len(killed) == 1
    assert from_s + TIMES.timeout_s < killed[0] < from_s + 2.0 * TIMES.timeout_s
    assert lost[-1] == "Ray could not connect to it for 60 s (cluster.probe_timeout_s)"


def test_an_actor_that_dies_is_told_once_and_not_killed() -> None:
    lost: list[str] = []

    def answer(now_s: float) -> float | Exception:
        return ActorDiedError() if 100.0 <= now_s < 200.0 else 0.0

    async def scenario() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(keep_alive(Probed(answer).ping, pytest.fail, TIMES, lost.append), 1000.0)

    run_virtually(scenario())
    assert len(lost) == 1
    assert lost[0].startswith("it died: ")


def test_an_actor_that_ray_restarts_between_two_probes_is_told_once() -> None:
    lost: list[str] = []

    async def scenario() -> None:
        lives = Probed(lambda now_s: 1.0 if now_s < 102.0 else 2.0)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(keep_alive(lives.ping, pytest.fail, TIMES, lost.append), 1000.0)

    run_virtually(scenario())
    assert lost == ["it died"]


def test_a_loop_that_turns_is_told_from_one_that_stands() -> None:
    watch = LoopWatch()

    def look_again() -> float:
        watch.look()
        time.sleep(0.05)
        return watch.look()

    async def scenario() -> float:
        assert watch.look() == 0.0, "nothing is watched yet"
        watch.watch()
        for _ in range(3):
            assert await asyncio.to_thread(watch.look) == 0.0
        with ThreadPoolExecutor() as pool:
            stood_s = pool.submit(look_again).result()  # meanwhile this loop stands
        await asyncio.sleep(0)
        assert watch.look() == 0.0
        return stood_s

    assert asyncio.run(scenario()) >= 0.05


class Workers:
    """Streaks of two workers."""

    def __init__(self, most: int | None = 4) -> None:
        self.streaks = Streaks(most)
        self.good, self.bad = SeatedWorker(None), SeatedWorker(None)  # type: ignore[arg-type]

    def fail(self, times: int) -> list[str]:
        told = [self.streaks.failed(self.bad, "the engine is stuck") for _ in range(times)]
        return [reason for reason in told if reason is not None]


def test_a_streak_of_failures_while_others_finish_is_the_worker_s_fault() -> None:
    workers = Workers()
    assert workers.fail(3) == []
    workers.streaks.finished(workers.good)
    (reason,) = workers.fail(1)
    assert reason.startswith("4 of its attempts in a row failed (cluster.quarantine_after_failures)")
    assert reason.endswith("the engine is stuck")


def test_where_nobody_finishes_no_worker_is_to_blame() -> None:
    workers = Workers()
    workers.streaks.finished(workers.good)
    assert workers.fail(100) == []


def test_a_group_that_the_worker_finishes_ends_its_streak() -> None:
    workers = Workers()
    workers.fail(3)
    workers.streaks.finished(workers.bad)
    workers.streaks.finished(workers.good)
    assert workers.fail(3) == []


def test_without_a_number_no_streak_is_too_long() -> None:
    workers = Workers(None)
    workers.fail(50)
    workers.streaks.finished(workers.good)
    assert workers.fail(50) == []


def test_restarts_are_counted_within_the_window() -> None:
    restarts = Restarts(allowed=2, window_s=100.0)
    assert [restarts.count(now_s) for now_s in (0.0, 50.0, 101.0, 102.0)] == [True, True, True, False]
    assert str(restarts) == "3 times within 100 s (cluster.restart_window_s)"


def test_restarts_are_counted_over_the_whole_run_without_a_window() -> None:
    restarts = Restarts(allowed=1, window_s=None)
    assert [restarts.count(now_s) for now_s in (0.0, 1e9)] == [True, False]
    assert str(restarts) == "2 times in this run"


def test_one_bad_seat_cannot_use_up_the_restarts_of_an_hour() -> None:
    now_s, restarts = 0.0, Restarts(allowed=16, window_s=3600.0)
    for in_a_row in range(1, 100):
        now_s += delay_s(in_a_row)
        assert restarts.count(now_s)
    assert delay_s(1) == 0.0
    assert delay_s(99) == LONGEST_DELAY_S


def test_too_few_workers_are_told_after_twice_the_deadline_of_a_start() -> None:
    told: list[tuple[float, str]] = []

    async def scenario() -> None:
        loop = asyncio.get_running_loop()

        def serving() -> int:
            return 1 if loop.time() < 1000.0 else 0 if loop.time() < 1100.0 or loop.time() > 2000.0 else 1

        starts = UsualTime(1.0, 1.0, configured=100.0)
        await watch_number(serving, 1, starts, TIMES, lambda why: told.append((loop.time(), why)))

    run_virtually(scenario())
    ((when_s, why),) = told
    assert 2200.0 <= when_s <= 2215.0, "a dip that is shorter is none"
    assert "0 generation workers are healthy, and cluster.min_healthy_workers is 1" in why
