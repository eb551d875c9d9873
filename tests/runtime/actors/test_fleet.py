"""The fleet around real generation workers on a virtual clock: workers that freeze, hang, fail and do not start."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from fsm.events import FailureKind, GroupFailed
from runtime.actors.fleet import Fleet, FleetLost
from runtime.actors.policy_host import PolicyHost
from runtime.models.text import make_codec
from runtime.settings import Settings
from runtime.transport.answers import AttemptFinished, WorkerLost
from tests.runtime.control.fake_actors import TOKENIZER, FakeEngine, Post, open_host, order, published
from tests.runtime.control.fakes import Run
from tests.runtime.control.test_reordered import STEPS, LocalCluster, N, PublishingTrainer, check, local_fleet
from tests.runtime.control.virtual_time import run_virtually

LIMIT_S = 1e6
"""Of virtual time."""
Opening = Callable[[Settings, Callable[[Callable[[], None]], None]], Awaitable[PolicyHost]]


@dataclass
class World:
    """A fleet, its actors, and what it says of its workers."""

    settings: Settings
    cluster: LocalCluster
    fleet: Fleet
    opened: list[Opening] = field(default_factory=list)
    """How the next workers open their engines, in the order in which they start; then all open at once."""
    quarantined: list[tuple[str, str]] = field(default_factory=list)
    died: list[str] = field(default_factory=list)
    started: list[str] = field(default_factory=list)

    async def open(self, settings: Settings, begun: Callable[[Callable[[], None]], None]) -> PolicyHost:
        opening = self.opened.pop(0) if self.opened else open_host
        return await opening(settings, begun)

    async def run(self) -> Run:
        """A run to its end, which trains every prompt once."""
        trainer = PublishingTrainer()
        core_config = {name: getattr(self.settings, name).model_dump() for name in ("grpo", "async_rl")}
        run = Run(core_config, N * STEPS, self.fleet, trainer)
        run.pumps.generation.on_expired = self.fleet.expired
        await run.go(LIMIT_S)
        check(run)
        return run


@asynccontextmanager
async def world(workers: int = 2, seed: int = 1, **overrides: Any) -> AsyncIterator[World]:
    post = Post(Random(seed))
    carrying = asyncio.create_task(post.carry())
    given = {
        "grpo.num_prompts_per_step": N,
        "data.num_prompts": N * STEPS,
        "cluster.num_generation_workers": workers,
        "async_rl.sampler": "{name: in_order, max_lookahead_versions: 1}",
        "async_rl.rollout_failure.max_infra_attempts_per_prompt": 100,
        **{key.replace("__", "."): value for key, value in overrides.items()},
    }
    with local_fleet(post, **given) as (settings, cluster, fleet):
        made = World(settings, cluster, fleet)
        fleet.on_quarantine = lambda name, reason: made.quarantined.append((name, reason))
        fleet.on_death = lambda name, reason: made.died.append(name)
        fleet.on_start = made.started.append
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(PolicyHost, "open", lambda settings, *_: made.open(settings, post.send))
            fleet.start()
            yield made
    carrying.cancel()


async def never_opens(settings: Settings, begun: Any) -> PolicyHost:
    await asyncio.get_running_loop().create_future()
    raise AssertionError("unreachable")


async def stuck(settings: Settings, begun: Any) -> PolicyHost:
    """Its engine generates nothing."""
    return await open_host(settings, lambda finish: None)


class Exhausted(FakeEngine):
    """Runs out of memory with its third request."""

    def submit(self, requests: Any) -> Any:
        futures = super().submit(requests)
        for request in requests:
            if request.request_id.endswith("-2") and not futures[0].done():
                futures[0].set_exception(MemoryError("no room for the cache"))
        return futures


def test_a_frozen_worker_is_quarantined_and_its_attempts_go_to_the_other() -> None:
    async def scenario() -> tuple[World, Run]:
        async with world() as made:
            await made.fleet.load(published(0))
            made.cluster.workers[0].frozen = True
            return made, await made.run()

    made, run = run_virtually(scenario())
    ((name, reason),) = made.quarantined
    assert name == "generation-0"
    assert "has not answered for 60 s (cluster.probe_timeout_s)" in reason
    failed = [t.event for t in run.transitions if isinstance(t.event, GroupFailed)]
    assert failed
    assert all(event.kind is FailureKind.INFRA and "frozen or unreachable" in event.error for event in failed)
    assert made.died == ["generation-0"]


@given(seed=st.integers(0, 2**32), workers=st.integers(1, 3), faults=st.integers(0, 6))
@hypothesis_settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_nothing_is_lost_where_workers_freeze_or_die_at_any_moment(seed: int, workers: int, faults: int) -> None:
    async def scenario() -> None:
        async with world(workers=workers, seed=seed) as made:
            random = Random(seed)

            async def do_harm() -> None:
                for _ in range(faults):
                    for _ in range(random.randrange(300)):
                        await asyncio.sleep(0)
                    able = [worker for worker in made.cluster.workers if not worker.dead and not worker.frozen]
                    if able and random.random() < 0.7:
                        random.choice(able).frozen = True
                    elif able:
                        random.choice(able).kill()

            harming = asyncio.create_task(do_harm())
            await made.fleet.load(published(0))
            await made.run()
            harming.cancel()

    run_virtually(scenario())


def test_the_only_worker_that_freezes_is_replaced_and_the_run_goes_on() -> None:
    async def scenario() -> World:
        async with world(workers=1) as made:
            await made.fleet.load(published(0))
            made.cluster.workers[0].frozen = True
            await made.run()
            return made

    made = run_virtually(scenario())
    assert made.started == ["generation-0"] * 2
    sent = [method for method, _ in made.cluster.workers[1].sent if method != "ping"]
    assert sent[:4] == ["open", "load_weights", "prove", "exchange"], "it proves itself before it gets attempts"


def test_an_engine_that_runs_out_of_memory_costs_its_worker_and_no_group() -> None:
    async def exhausted(settings: Settings, begun: Any) -> PolicyHost:
        return PolicyHost(settings, Exhausted(begun), make_codec(TOKENIZER, settings.data), 0)

    async def scenario() -> World:
        async with world(workers=1) as made:
            made.opened = [exhausted]
            await made.fleet.load(published(0))
            await made.run()
            return made

    made = run_virtually(scenario())
    assert made.quarantined == [("generation-0", "its engine failed: MemoryError: no room for the cache")]
    assert made.died == ["generation-0"]


def test_rollouts_that_hang_on_one_worker_have_it_replaced() -> None:
    """Its process answers, its loop turns; only its engine generates nothing."""

    async def scenario() -> World:
        timeout = {"async_rl__rollout_failure__rollout_timeout_s": 100.0, "cluster__quarantine_after_failures": 2}
        async with world(**timeout) as made:
            made.opened = [stuck]
            await made.fleet.load(published(0))
            await made.run()
            return made

    made = run_virtually(scenario())
    ((name, reason),) = made.quarantined
    assert name == "generation-0"
    assert "attempts in a row failed (cluster.quarantine_after_failures), while those of other workers" in reason


def test_a_worker_that_does_not_start_in_time_is_started_again() -> None:
    async def scenario() -> World:
        async with world(cluster__start_timeout_s=100.0) as made:
            made.opened = [never_opens]
            await made.fleet.load(published(0))
            return made

    made = run_virtually(scenario())
    ((name, reason),) = made.quarantined
    assert name == "generation-0"
    assert reason == "it did not start within 100 s, usual 0.0 s (cluster.start_timeout_s)"
    assert sorted(made.started) == ["generation-0", "generation-1"]


def test_more_restarts_than_allowed_within_the_window_end_the_run_with_the_last_reason() -> None:
    async def scenario() -> None:
        async with world(cluster__start_timeout_s=100.0, cluster__max_worker_restarts=2) as made:
            made.opened = [never_opens] * 9
            await made.fleet.load(published(0))

    with pytest.raises(
        FleetLost, match=r"3 times within 3600 s .*max_worker_restarts allows 2\. .*did not start within"
    ):
        run_virtually(scenario())


def test_a_worker_that_does_not_load_a_version_in_time_is_replaced_and_holds_up_no_later_sync() -> None:
    class Slow(FakeEngine):
        async def load_weights(self, weights: Any, version: int) -> int:
            if version == 1:
                await asyncio.get_running_loop().create_future()
            return await super().load_weights(weights, version)

    async def slow(settings: Settings, begun: Any) -> PolicyHost:
        return PolicyHost(settings, Slow(begun), make_codec(TOKENIZER, settings.data), 0)

    async def scenario() -> World:
        async with world(cluster__sync_timeout_s=50.0) as made:
            made.opened = [slow]
            for version in range(3):
                await made.fleet.load(published(version))
            return made

    made = run_virtually(scenario())
    ((name, reason),) = made.quarantined
    assert name == "generation-0"
    assert reason == "it did not load the weights within 50 s, usual 0.0 s (cluster.sync_timeout_s)"


def test_nothing_waits_for_a_worker_that_is_restarted_and_it_comes_back_with_the_newest_weights() -> None:
    async def scenario() -> None:
        gate = asyncio.get_running_loop().create_future()

        async def gated(settings: Settings, begun: Any) -> PolicyHost:
            await gate
            return await open_host(settings, begun)

        async with world() as made:
            fleet = made.fleet
            await fleet.load(published(0))
            assert fleet.workers == ("generation-0", "generation-1")
            made.opened = [gated]
            made.cluster.workers[0].kill()
            with pytest.raises(WorkerLost) as lost:
                await fleet.exchange("generation-0", [order(0, 0)])
            assert lost.value.lost == (order(0, 0).attempt,)
            await fleet.load(published(1))
            assert fleet.workers == ("generation-1",)
            with pytest.raises(WorkerLost):
                await fleet.exchange("generation-0", [order(1, 1)])
            await fleet.abort("generation-0", [order(1, 1).attempt])
            (answer,) = await fleet.exchange("generation-1", [order(1, 1)])
            assert isinstance(answer, AttemptFinished)
            gate.set_result(None)
            while len(fleet.workers) < 2:
                await asyncio.sleep(1.0)
            assert made.cluster.workers[2]._made._host.version == 1
            (answer,) = await fleet.exchange("generation-0", [order(2, 1)])
            assert isinstance(answer, AttemptFinished)

    run_virtually(asyncio.wait_for(scenario(), LIMIT_S))


def test_the_parts_of_an_evaluation_go_on_elsewhere_where_a_worker_freezes() -> None:
    async def scenario() -> int:
        async with world() as made:
            await made.fleet.load(published(0))
            made.cluster.workers[0].frozen = True
            made.opened = [never_opens]
            evaluation = await made.fleet.evaluate("validation", "validation", lambda: None)
            return len(evaluation.prompts)

    assert run_virtually(asyncio.wait_for(scenario(), LIMIT_S)) == 2


def test_too_few_healthy_workers_for_too_long_end_the_run_though_others_work() -> None:
    async def scenario() -> float:
        async with world(cluster__min_healthy_workers=2, cluster__start_timeout_s=500.0) as made:
            made.opened = [stuck] * 2
            await made.fleet.load(published(0))
            made.opened = [never_opens] * 9
            made.cluster.workers[0].kill()
            with pytest.raises(FleetLost, match=r"1 generation worker is healthy, and .*min_healthy_workers is 2"):
                await made.fleet.exchange("generation-1", [order(0, 0)])
            return asyncio.get_running_loop().time()

    assert 1000.0 <= run_virtually(scenario()) <= 1100.0
