"""All reward workers of a run, from their start to their end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import ray
from ray.actor import ActorHandle

from runtime.actors.reward_worker import RewardWorker, verdict_threads
from runtime.naming import Names, start_actor
from runtime.settings import Settings


def start_reward_workers(settings: Settings, names: Names, began_with: str) -> list[ActorHandle[Any]]:
    """As many as configured; Ray starts one that dies again. `began_with` is `Origin.prompts`."""
    cluster = settings.cluster
    threads = verdict_threads(settings.data, cluster.reward_threads, cluster.reward_processes)
    return [
        start_actor(
            RewardWorker,
            {**names.options(f"reward-{number}"), "num_cpus": 0, "max_restarts": -1},
            settings.data,
            threads,
            cluster.reward_processes,
            began_with,
        )
        for number in range(cluster.num_reward_workers)
    ]


async def close_reward_workers(workers: Sequence[ActorHandle[Any]], timeout_s: float) -> None:
    """End them, which may take `timeout_s` seconds.

    A worker that is killed takes its verifiers' processes along, but not what these have started.
    """
    closing: list[asyncio.Future[None]] = [asyncio.ensure_future(worker.close.remote()) for worker in workers]
    closed, _ = await asyncio.wait(closing, timeout=timeout_s)
    for call in closed:
        call.exception()  # one that is dead has nothing left to close
    for worker in workers:
        ray.kill(worker)
