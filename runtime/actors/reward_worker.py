"""The reward worker: a CPU process where rewards are computed. It loads no model, and runs no code of users itself.

Verdicts of the package's own tasks are made here, at once. Verdicts of users' code are made in its pool of processes
(`runtime.tasks.verdicts`): any failure there is a data failure of one rollout, returned as a value. A worker that dies
is an infra failure, which Ray raises in the caller. Ray restarts it, since it has no state.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Sequence

from runtime.checkpoints.origin import refuse_changed_data
from runtime.tasks.base import Completion, JudgedTask, OwnTask, Rated, Scored, VerdictFault
from runtime.tasks.config import DataConfig, DelayConfig, JsonlTaskConfig
from runtime.tasks.data import load_task
from runtime.tasks.split import Split, derive_seed
from runtime.tasks.verdicts.pool import PoolSize, VerdictPool

THREADS_FOR_WAITING = 128


def verdict_threads(data: DataConfig, configured: int | None, processes: int) -> int:
    """How many verdicts are made at the same time (`cluster.reward_threads`)."""
    if configured is not None:
        return configured
    if data.delay is not None or isinstance(data.task, JsonlTaskConfig):
        return THREADS_FOR_WAITING
    return processes


def pool_size(threads: int, processes: int) -> PoolSize:
    """Threads spread over the processes, at least one each."""
    used = min(threads, processes)
    return PoolSize(used, -(-threads // used))


class RewardWorker:
    """Rates groups. `threads` verdicts at a time are made, or held back by `data.delay`."""

    def __init__(self, data: DataConfig, threads: int, processes: int, began_with: str | None = None) -> None:
        """began_with: `Origin.prompts`; data that has changed by the time that this worker restarts is refused."""
        self._data = data
        self._tasks: dict[Split, OwnTask | JudgedTask] = {"training": load_task(data, "training")}
        if data.validation_size:
            self._tasks["validation"] = load_task(data, "validation")
        task = self._tasks["training"]
        refuse_changed_data(task, began_with)
        self._pool: VerdictPool | None = None
        if isinstance(task, JudgedTask):
            self._pool = VerdictPool(task.judge, pool_size(threads, processes), task.verdict_timeout_s)
        self._delayed = asyncio.Semaphore(threads)

    async def score(self, groups: Sequence[tuple[int, Sequence[Completion]]], split: Split = "training") -> Scored:
        """Rate every sibling of each group: the index of its item in the split, and each sibling's completion.

        Only verdicts of training are delayed: validation measures accuracy, not waiting.
        """
        task = self._tasks[split]
        rated: list[tuple[Rated, ...]]
        if isinstance(task, OwnTask) and (self._data.delay is None or split == "validation"):
            rated = [
                tuple(task.verify(index, said, sibling) for sibling, said in enumerate(completions))
                for index, completions in groups
            ]
        else:
            rated = await asyncio.gather(*(self._group(task, split, *group) for group in groups))
        return Scored(rated, None if self._pool is None else self._pool.take_printed())

    async def close(self) -> None:
        """End the processes of the pool; they would end with this one anyway."""
        if self._pool is not None:
            await self._pool.close()

    async def _group(
        self, task: OwnTask | JudgedTask, split: Split, index: int, completions: Sequence[Completion]
    ) -> tuple[Rated, ...]:
        rated = (self._rollout(task, split, index, said, sibling) for sibling, said in enumerate(completions))
        return tuple(await asyncio.gather(*rated))

    async def _rollout(
        self, task: OwnTask | JudgedTask, split: Split, index: int, said: Completion, sibling: int
    ) -> Rated:
        if self._data.delay is not None and split == "training":
            async with self._delayed:
                await asyncio.sleep(delay_s(self._data.delay, self._data.seed, index, sibling))
        if isinstance(task, OwnTask):
            return task.verify(index, said, sibling)
        assert self._pool is not None, "both splits are of one task"
        answer = await self._pool.rate(task.case(index, said))
        return task.blame(index, said, answer) if isinstance(answer, VerdictFault) else answer


def delay_s(delay: DelayConfig, seed: int, index: int, sibling: int) -> float:
    """Seconds for which the verdict on this rollout is held back: the same in every run with this seed."""
    deviate = random.Random(derive_seed(seed, "delay", index, sibling)).gauss()
    return min(delay.max_s, max(delay.min_s, delay.median_s * math.exp(delay.sigma * deviate)))
