"""The reward worker: a CPU process with the task's verifier. It loads no model.

A verifier that raises is a data failure of its prompt, told as a value; a worker that dies is an infra failure,
which Ray raises at whoever waits. Ray starts a dead one again, since it has no state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from runtime.tasks.base import Verdict
from runtime.tasks.config import DataConfig, JsonlTaskConfig
from runtime.tasks.load import load_task

Verdicts = tuple[tuple[float, bool], ...] | str
"""Reward and correctness a sibling, or why the verifier refused."""

THREADS_FOR_WAITING = 128


def verdict_threads(data: DataConfig, configured: int | None) -> int:
    """How many verdicts are made at the same time (`cluster.reward_threads`)."""
    if configured is not None:
        return configured
    may_wait = data.delay is not None or isinstance(data.task, JsonlTaskConfig)
    return THREADS_FOR_WAITING if may_wait else 1


class RewardWorker:
    """Rates groups, with one thread in its own event loop: verdicts that never wait cost least that way.

    With more threads, siblings and groups are rated side by side.
    """

    def __init__(self, data: DataConfig, threads: int) -> None:
        self._task = load_task(data, "training")
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="verdict") if threads > 1 else None

    async def score(self, groups: Sequence[tuple[int, Sequence[tuple[str, ...]]]]) -> list[Verdicts]:
        """Rate every sibling of each group; a group is an item of the task, and what each sibling said in its turns."""
        return [_verdicts(await self._judge_group(index, turns)) for index, turns in groups]

    async def _judge_group(self, index: int, turns: Sequence[tuple[str, ...]]) -> Sequence[Verdict | str]:
        if self._threads is None:
            return [self._judge(index, said, sibling) for sibling, said in enumerate(turns)]
        loop = asyncio.get_running_loop()
        return await asyncio.gather(
            *(
                loop.run_in_executor(self._threads, self._judge, index, said, sibling)
                for sibling, said in enumerate(turns)
            )
        )

    def _judge(self, index: int, turns: tuple[str, ...], sibling: int) -> Verdict | str:
        """A verifier is somebody else's code: whatever it raises is a data failure of this prompt (L7)."""
        try:
            return self._task.verify(index, turns, sibling)
        except Exception as error:
            return f"item {index}: {type(error).__name__}: {error}"


def _verdicts(judged: Sequence[Verdict | str]) -> Verdicts:
    """The verdicts of a group, or the first refusal among them."""
    verdicts: list[tuple[float, bool]] = []
    for verdict in judged:
        if isinstance(verdict, str):
            return verdict
        verdicts.append((verdict.reward, verdict.correct))
    return tuple(verdicts)
