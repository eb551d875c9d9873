"""W2: the watchdog acts at once on a run that can never go on, around a real core."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from fsm.errors import Deadlocked
from fsm.events import DeadEndReached
from fsm.explain import status
from fsm.samplers.builtin import InOrder
from fsm.samplers.protocol import Admission
from fsm.state import GroupClass, View
from runtime.control.pumps.clock import watch
from runtime.transport.answers import Order
from tests.runtime.control.fakes import FakeFleet, Run


class ChargesNone(InOrder):
    """In order, and no step is charged for what is lost."""

    def charge_step_for_lost_group(self, target_step: int | None, assembling_version: int) -> int | None:
        return None


class AdmitsNothing(InOrder):
    """In order, and the gate never opens."""

    def admit(self, view: View) -> Admission | None:
        return None


class SelectsNothing(InOrder):
    """In order, and nothing is ever good enough."""

    def select(self, view: View, min_groups: int, max_groups: int) -> Sequence[tuple[GroupClass, int]]:
        return ()


def config(sampler: str, window: int = 0, **watchdog: Any) -> dict[str, Any]:
    """Two groups a step, of which any may be lost at its first failure; a stall is far off unless it is given."""
    target = f"{__name__}:{sampler}"
    failure = {"max_infra_attempts_per_prompt": 1, "max_consecutive_dropped_prompts": 9, "min_step_batch_fraction": 0.5}
    return {
        "grpo": {"num_prompts_per_step": 2, "num_generations_per_prompt": 2},
        "async_rl": {
            "sampler": {"name": "custom", "target": target, "max_lookahead_versions": window},
            "rollout_failure": failure,
            "stall_watchdog": {"stall_timeout_s": 3_600.0, **watchdog},
        },
    }


def loses_the_first(order: Order, tried: int) -> str:
    return "infra" if order.attempt.prompt == 0 else "good"


def loses_the_first_and_hangs(order: Order, tried: int) -> str:
    return {0: "infra", 1: "hang"}.get(order.attempt.prompt, "good")


async def watched(given: dict[str, Any], prompts: int, fleet: FakeFleet, *, warned_s: float | None = None) -> Run:
    """A run with its watchdog on, to its end; one that is only warned of is interrupted after that time."""
    run = Run(given, prompts, fleet)
    going = asyncio.create_task(run.go(60.0))
    await asyncio.sleep(0)
    watchdog = run.core.setup.config.async_rl.stall_watchdog
    watching = asyncio.create_task(watch(watchdog, lambda: run.control.progress_s, run.pumps.clock.stalled))
    if warned_s is not None:
        while not run.recorder.dead_ends:
            await asyncio.sleep(0.01)
        await asyncio.sleep(warned_s)
        assert not run.control.over, "it goes on waiting"
        run.control.interrupt()
    await going
    watching.cancel()
    return run


@pytest.mark.parametrize(
    ("sampler", "window", "prompts", "play", "method"),
    [
        ("ChargesNone", 0, 2, loses_the_first, "charge_step_for_lost_group"),
        ("ChargesNone", 1, 4, loses_the_first_and_hangs, "charge_step_for_lost_group"),
        ("AdmitsNothing", 0, 4, lambda order, tried: "good", "admit"),
        ("SelectsNothing", 0, 2, lambda order, tried: "good", "select"),
        ("SelectsNothing", 0, 40, lambda order, tried: "good", "select"),
    ],
)
def test_what_can_never_go_on_is_stopped_at_once_by_an_error_that_names_the_sampler(
    sampler: str, window: int, prompts: int, play: Any, method: str
) -> None:
    run = asyncio.run(watched(config(sampler, window), prompts, FakeFleet(play)))
    assert isinstance(run.core.error, Deadlocked)
    assert status(run.core.state) == "stopped"
    said = str(run.core.error)
    assert f"Sampler custom {__name__}:{sampler} led here by what it decided in {method}" in said
    assert "step 0 has 0 selected and 0 charged of 2" in said
    assert [type(each.event) for each in run.transitions].count(DeadEndReached) == 1
    assert run.recorder.dead_ends == []


@pytest.mark.parametrize("action", ["warn", "abort"])
def test_warn_tells_once_and_keeps_the_run_whatever_the_stall_watchdog_would_do(action: str) -> None:
    given = config("ChargesNone", 1, on_deadlock="warn", stall_action=action, stall_timeout_s=0.05, interval_s=0.05)
    run = asyncio.run(watched(given, 4, FakeFleet(loses_the_first), warned_s=0.3))
    assert run.core.error is None
    [said] = run.recorder.dead_ends
    assert "charge_step_for_lost_group" in said
    assert run.control.interrupted
    assert run.recorder.stalls == [], "what was told of is not told of again as a stall"


def test_a_run_that_goes_on_is_not_looked_at_twice() -> None:
    run = asyncio.run(watched(config("ChargesNone"), 6, FakeFleet()))
    assert status(run.core.state) == "completed"
    assert run.core.error is None
    assert DeadEndReached not in [type(each.event) for each in run.transitions]
