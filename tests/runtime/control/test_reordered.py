"""Pumps, fleet, generation workers and reward workers on one loop: calls and replies in any order, and deaths.

All of them are the real ones. `actor_fakes.Post` does what Ray does, in an order drawn from a seed.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fsm.events import Attempt, GroupFailed
from runtime.actors import fleet as fleet_module
from runtime.actors.fleet import Fleet
from runtime.actors.policy_host import PolicyHost
from runtime.actors.reward_worker import RewardWorker
from runtime.naming import Names
from runtime.settings import Settings
from runtime.transport.answers import Answer, Order, Published, WorkerLost
from tests.runtime.control.fake_actors import (
    KeepingPlane,
    LocalActor,
    LocalMethod,
    Post,
    open_host,
    order,
    published,
    settings_of,
)
from tests.runtime.control.fakes import FakeTrainer, Run

N, STEPS = 4, 6
LIMIT_S = 300.0


class LocalCluster:
    """Starts and kills actors on this loop."""

    def __init__(self, post: Post) -> None:
        self.post = post
        self.workers: list[LocalActor] = []

    def start_actor(self, kind: type, options: dict[str, Any], *arguments: Any) -> LocalActor:
        self.workers.append(LocalActor(self.post, kind(*arguments)))
        return self.workers[-1]

    def kill(self, actor: LocalActor) -> None:
        actor.kill()

    async def kill_now_and_then(self, deaths: int) -> None:
        """Any worker that lives, open or not yet, at moments drawn from the post's random numbers."""
        for _ in range(deaths):
            for _ in range(self.post.random.randrange(300)):
                await asyncio.sleep(0)
            self.post.random.choice([worker for worker in self.workers if not worker.dead]).kill()


class Rewards:
    """A handle of a reward worker that Ray starts again when it dies: some calls are lost."""

    def __init__(self, actor: LocalActor, random: Random, losses: int) -> None:
        self._actor = actor
        self._random = random
        self._losses = losses
        self.score = self
        self.ping = LocalMethod(actor, "ping")

    def remote(self, *arguments: Any) -> asyncio.Future[Any]:
        if self._losses and self._random.random() < 0.3:
            self._losses -= 1
            lost = LocalActor(self._actor.post, None)
            lost.kill()
            return lost.call("score", arguments)
        return self._actor.call("score", arguments)


class PublishingTrainer(FakeTrainer):
    """Its publications are references."""

    async def publish(self, version: int) -> Published:
        return published(version)


@contextmanager
def local_fleet(
    post: Post, losses: int = 0, hangs: Container[int] = (), **overrides: Any
) -> Iterator[tuple[Settings, LocalCluster, Fleet]]:
    """A fleet on this loop. The post carries to and from its actors, and finishes what engines begin.

    `losses` calls of reward workers are lost; of the rollouts, counted as they begin, those in `hangs` never end.
    """
    begun = count()

    def begin(finish: Callable[[], None]) -> None:
        if next(begun) not in hangs:
            post.send(finish)

    configured, cluster = settings_of(**overrides), LocalCluster(post)
    rewards = Rewards(LocalActor(post, RewardWorker(configured.data, 1, 1, sets=configured.sets)), post.random, losses)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fleet_module, "start_actor", cluster.start_actor)
        patch.setattr(fleet_module.ray, "kill", cluster.kill)
        patch.setattr(fleet_module, "delay_s", lambda in_a_row: 0.0)
        patch.setattr(PolicyHost, "open", lambda settings, *arguments: open_host(settings, begin))
        yield (
            configured,
            cluster,
            Fleet(configured, Names("run", "tests"), Path(), KeepingPlane(), [rewards], {"validation": 2}, 0),
        )


async def run_reordered(
    seed: int, workers: int, deaths: int, losses: int, sampler: str = "{name: in_order, max_lookahead_versions: 1}"
) -> Run:
    post = Post(Random(seed))
    overrides = {
        "grpo.num_prompts_per_step": N,
        "data.num_prompts": N * STEPS,
        "cluster.num_generation_workers": workers,
        "async_rl.sampler": sampler,
        "async_rl.rollout_failure.backoff_base_s": 0.001,
        "async_rl.rollout_failure.max_backoff_s": 0.002,
        "async_rl.rollout_failure.max_infra_attempts_per_prompt": 100,
    }
    carrying = asyncio.create_task(post.carry())
    with local_fleet(post, losses, **overrides) as (configured, cluster, fleet):
        fleet.start()
        trainer = PublishingTrainer()
        await fleet.load(await trainer.publish(0))
        core_config = {name: getattr(configured, name).model_dump() for name in ("grpo", "async_rl")}
        run = Run(core_config, N * STEPS, fleet, trainer, validations={"validation": 1})
        killing = asyncio.create_task(cluster.kill_now_and_then(deaths))
        await run.go(LIMIT_S)
        killing.cancel()
        await asyncio.wait_for(run.pumps.generation.stop(), LIMIT_S)
    carrying.cancel()
    return run


def check(run: Run) -> None:
    trained = [prompt for _, prompts in run.trainer.chunks for prompt in prompts]
    assert Counter(trained) == Counter(range(N * STEPS))
    assert run.core.state.sheet.balanced


@given(seed=st.integers(0, 2**32), workers=st.integers(1, 2))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_run_whose_calls_are_reordered_trains_every_prompt_once(seed: int, workers: int) -> None:
    run = asyncio.run(run_reordered(seed, workers, deaths=0, losses=0))
    check(run)
    assert not [t for t in run.transitions if isinstance(t.event, GroupFailed)]
    assert run.control.late_answers == 0


@given(seed=st.integers(0, 2**32), workers=st.integers(1, 2), deaths=st.integers(0, 5), losses=st.integers(0, 20))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_nothing_is_lost_where_workers_die_among_reordered_calls(
    seed: int, workers: int, deaths: int, losses: int
) -> None:
    check(asyncio.run(run_reordered(seed, workers, deaths, losses)))


@given(seed=st.integers(0, 2**32), deaths=st.integers(0, 3))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_rollouts_that_are_aborted_among_reordered_calls_end_and_nothing_is_trained_twice(
    seed: int, deaths: int
) -> None:
    run = asyncio.run(run_reordered(seed, 2, deaths, 0, "{name: windowed, max_staleness_versions: 0}"))
    trained = [prompt for _, prompts in run.trainer.chunks for prompt in prompts]
    assert len(trained) == len(set(trained))
    assert run.core.state.sheet.balanced


def test_calls_that_have_waited_for_a_worker_are_sent_before_those_that_find_it_there() -> None:
    """Or an exchange that waited while its worker was made anew would be sent after a newer one, and relieve it."""

    async def scenario() -> list[Attempt]:
        post = Post(Random(0))
        carrying = asyncio.create_task(post.carry())
        with local_fleet(post) as (_, cluster, fleet):
            fleet.start()
            loading = asyncio.create_task(fleet.load(published(0)))
            exchanges = []
            for prompt in range(60):
                exchanges.append(asyncio.create_task(fleet.exchange("generation-0", [order(prompt, 0)])))
                await asyncio.sleep(0)
            await asyncio.wait_for(asyncio.gather(loading, *exchanges), LIMIT_S)
        carrying.cancel()
        return [sent[1][0].attempt for method, sent in cluster.workers[0].sent if method == "exchange"]

    assert asyncio.run(scenario()) == [order(prompt, 0).attempt for prompt in range(60)]


@pytest.mark.parametrize("orders", [[], [order(2, 0)]], ids=["asking", "ordering"])
def test_what_a_worker_had_that_died_between_two_exchanges_is_told_by_the_next(orders: list[Order]) -> None:
    """An abort, a load or an evaluation may be the first to hear of a death."""

    async def scenario() -> list[Answer | Attempt]:
        post = Post(Random(0))
        carrying = asyncio.create_task(post.carry())
        with local_fleet(post, hangs=[1]) as (_, cluster, fleet):
            fleet.start()
            await fleet.load(published(0))
            told: list[Answer | Attempt] = [*await fleet.exchange("generation-0", [order(0, 0), order(1, 0)])]
            assert len(told) == 1
            cluster.workers[0].kill()
            await fleet.abort("generation-0", [])
            try:
                told += await fleet.exchange("generation-0", orders)
            except WorkerLost as death:
                told += death.lost
        carrying.cancel()
        return told

    told = asyncio.run(asyncio.wait_for(scenario(), LIMIT_S))
    attempts = [one if isinstance(one, Attempt) else one.attempt for one in told]
    assert sorted(attempt.prompt for attempt in attempts) == [0, 1, *(order.attempt.prompt for order in orders)]
