"""`checkpointing.max_wall_s` on a clock that the test moves: when a run must end, and what it says."""

import asyncio

import pytest

from runtime.control.wall_clock import OutOfTime, WallClock


class Timed:
    """A clock at 1000 s, when the command begins, and the errors that ended the run."""

    def __init__(self, limit_s: float | None, shutdown_s: float = 30.0) -> None:
        self.now_s = 1000.0
        self.save_s = 0.0
        self.ends: list[OutOfTime] = []
        self.clock = WallClock(
            limit_s, self.now_s, shutdown_s, lambda: self.save_s, self.ends.append, now_s=lambda: self.now_s
        )

    def steps(self, *took_s: float) -> int:
        """The number of steps that are done when the run ends, or all."""
        self.clock.on_step_done()
        for number, each in enumerate(took_s):
            if self.ends:
                return number
            self.now_s += each
            self.clock.on_step_done()
        return len(took_s)


def test_the_run_ends_after_the_last_step_that_leaves_time_for_the_end() -> None:
    timed = Timed(limit_s=330.0)
    assert timed.steps(*[60.0] * 20) == 5
    assert str(timed.ends[0]) == (
        "checkpointing.max_wall_s = 330 s is nearly over: a step takes up to 60.0 s, and its end must begin in 0.0 s"
    )
    timed.clock.on_step_done()
    assert len(timed.ends) == 1


def test_the_end_gets_three_times_the_longest_checkpoint_and_the_next_step_the_longest_of_the_last_ten() -> None:
    timed = Timed(limit_s=330.0)
    timed.save_s = 20.0
    assert timed.steps(*[60.0] * 20) == 4
    slow_once = Timed(limit_s=230.0)
    assert slow_once.steps(100.0, *[10.0] * 100) == 2
    forgotten = Timed(limit_s=330.0)
    assert forgotten.steps(100.0, *[10.0] * 100) == 1 + 20


def test_without_a_limit_a_run_takes_any_time() -> None:
    timed = Timed(limit_s=None)
    asyncio.run(timed.clock.watch())
    assert timed.steps(*[1e6] * 5) == 5
    assert timed.ends == []


@pytest.mark.parametrize("save_s", [0.0, 40.0])
def test_a_step_that_takes_longer_than_ever_is_cut_off_when_the_end_must_begin(
    save_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed = Timed(limit_s=330.0)
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        timed.now_s += seconds
        if timed.now_s > 1100.0:
            timed.save_s = save_s

    monkeypatch.setattr(asyncio, "sleep", sleep)
    asyncio.run(timed.clock.watch())
    [error] = timed.ends
    assert "the end must begin now" in str(error)
    assert timed.now_s == pytest.approx(1300.0 - 3 * save_s, abs=0.2)
    assert len(slept) < 30
