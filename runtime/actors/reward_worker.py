"""The reward worker: a process on the CPU that rates completions. It loads no model, and runs no code of users itself.

Verdicts of the package's own tasks are made here, at once. Verdicts of users' code are made in its pool of processes
(`runtime.tasks.verdicts`): any failure there is a data failure of one rollout, returned as a value. A worker that dies
is an infra failure, which Ray raises in the caller. Ray restarts it, since it has no state.
"""

import asyncio
import math
import os
import random
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from runtime.checkpoints.origin import refuse_changed_data, refuse_changed_set
from runtime.evaluation.config import TRAINING
from runtime.evaluation.sets import EvaluationSet
from runtime.tasks.base import (
    Completion,
    DataFailure,
    InfraFault,
    JudgedTask,
    OwnTask,
    Rated,
    Scored,
    Task,
    VerdictFault,
)
from runtime.tasks.config import DataConfig, DelayConfig
from runtime.tasks.data import load_task
from runtime.tasks.environments.task import EnvironmentTask
from runtime.tasks.rewards import RatedByFunctions
from runtime.tasks.split import derive_seed
from runtime.tasks.verdicts.handle import PoolSize
from runtime.tasks.verdicts.pool import VerdictPool

THREADS_FOR_WAITING = 128


def verdict_threads(data: DataConfig, configured: int | None, processes: int) -> int:
    """How many verdicts are made at the same time (`cluster.reward_threads`)."""
    if configured is not None:
        return configured
    if data.delay is not None or isinstance(data.task, RatedByFunctions):
        return THREADS_FOR_WAITING
    return processes


def pool_size(threads: int, processes: int, memory_mib: int) -> PoolSize:
    """Threads spread over the processes, at least one each."""
    used = min(threads, processes)
    return PoolSize(used, -(-threads // used), memory_mib)


class RewardWorker:
    """Rates groups. `threads` verdicts at a time are made, or held back by `data.delay`."""

    def __init__(
        self,
        data: DataConfig | None,
        threads: int,
        processes: int,
        began_with: Mapping[str, str] = MappingProxyType({}),
        sets: Sequence[EvaluationSet] = (),
        memory_mib: int = 4096,
    ) -> None:
        """What it rates: `data`, unless nothing is trained (None), and evaluation sets.

        began_with: `Start.began_with`; data that has changed by the time that this worker restarts is refused.
        memory_mib: `cluster.reward_memory_mib`.
        """
        self._delay = None if data is None else data.delay
        self._seed = 0 if data is None else data.seed
        self._tasks: dict[str, OwnTask | JudgedTask | EnvironmentTask] = {}
        if data is not None:
            self._tasks[TRAINING] = load_task(data, "training")
            refuse_changed_data(self._tasks[TRAINING], began_with.get(TRAINING))
        for each in sets:
            self._tasks[each.name] = load_task(each.data, "validation")
            refuse_changed_set(each.name, self._tasks[each.name], began_with.get(each.name))
        self._pools = _make_pools(self._tasks, pool_size(threads, processes, memory_mib))
        self._delayed = asyncio.Semaphore(threads)

    async def score(self, groups: Sequence[tuple[int, Sequence[Completion]]], of: str = TRAINING) -> Scored:
        """Rate every sibling of each group: the index of its item, and each sibling's completion.

        `of` is TRAINING or the name of a set. Only verdicts of training are delayed: a set measures no waiting.
        """
        task, pool = self._tasks[of], self._pools.get(of)
        assert not isinstance(task, EnvironmentTask), "an environment rates its own rollouts"
        rated: list[tuple[Rated, ...]]
        if isinstance(task, OwnTask) and (self._delay is None or of != TRAINING):
            rated = [
                tuple(task.verify(index, said, sibling) for sibling, said in enumerate(completions))
                for index, completions in groups
            ]
        else:
            rated = await asyncio.gather(*(self._group(task, of, *group) for group in groups))
        return Scored(rated, None if pool is None else pool.take_notice())

    async def ping(self) -> int:
        """Show that the process answers, and which one it is; in a thread of its own (`runtime.naming.PROBED`)."""
        return os.getpid()

    async def close(self) -> None:
        """End the processes of the pools; they would end with this one anyway."""
        await asyncio.gather(*(pool.close() for pool in set(self._pools.values())))

    async def _group(
        self, task: OwnTask | JudgedTask, of: str, index: int, completions: Sequence[Completion]
    ) -> tuple[Rated, ...]:
        rated = (self._rollout(task, of, index, said, sibling) for sibling, said in enumerate(completions))
        return tuple(await asyncio.gather(*rated))

    async def _rollout(self, task: OwnTask | JudgedTask, of: str, index: int, said: Completion, sibling: int) -> Rated:
        if self._delay is not None and of == TRAINING:
            async with self._delayed:
                await asyncio.sleep(delay_s(self._delay, self._seed, index, sibling))
        if isinstance(task, OwnTask):
            return task.verify(index, said, sibling)
        try:
            case = task.case(index, said)
        except DataFailure as error:  # such as a file that was changed
            return str(error)
        answer = await self._pools[of].rate(case)
        if not isinstance(answer, VerdictFault):
            return answer
        why = task.blame(index, said, answer)
        return InfraFault(why) if answer.infra else why


def _make_pools(tasks: Mapping[str, Task], size: PoolSize) -> dict[str, VerdictPool]:
    """A pool for each judge and deadline, by the names of the tasks that it rates."""
    made: list[tuple[JudgedTask, VerdictPool]] = []
    pools: dict[str, VerdictPool] = {}
    for name, task in tasks.items():
        if not isinstance(task, JudgedTask):
            continue
        wanted = (task.judge, task.verdict_timeout_s)
        pool = next((pool for other, pool in made if (other.judge, other.verdict_timeout_s) == wanted), None)
        if pool is None:
            pool = VerdictPool(task.judge, size, task.verdict_timeout_s)
            made.append((task, pool))
        pools[name] = pool
    return pools


def delay_s(delay: DelayConfig, seed: int, index: int, sibling: int) -> float:
    """Seconds for which the verdict on this rollout is held back: the same in every run with this seed."""
    deviate = random.Random(derive_seed(seed, "delay", index, sibling)).gauss()
    return min(delay.max_s, max(delay.min_s, delay.median_s * math.exp(delay.sigma * deviate)))
