"""A judge tried on a few cases before a run, as the run will use it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from runtime.tasks.base import JudgedTask, VerdictFault
from runtime.tasks.verdicts.pool import PoolSize, VerdictPool

_SAY_AFTER_S = 1.5


@dataclass(frozen=True, slots=True)
class Trial:
    """A completion to try: item `index` of a task, and what was said."""

    task: JudgedTask
    index: int
    said: str


def try_judge(trials: Sequence[Trial], threads: int, tell: Callable[[str], None]) -> str | None:
    """What goes wrong with the first of these completions that has no verdict, with its remedy; None where all have.

    All trials are of one judge. `tell` is told when it takes long, and what a judge that fails has printed.
    """
    return asyncio.run(_try(trials, threads, tell))


async def _try(trials: Sequence[Trial], threads: int, tell: Callable[[str], None]) -> str | None:
    task = trials[0].task
    pool = VerdictPool(task.judge, PoolSize(1, threads), task.verdict_timeout_s)
    deadline = f"data.task.verdict_timeout_s is {task.verdict_timeout_s:g}"
    saying = asyncio.get_running_loop().call_later(
        _SAY_AFTER_S, tell, f"trying {task.judge.name} on {task.where(trials[0].index)}; {deadline}"
    )
    try:
        for trial in trials:
            answer = await pool.rate(trial.task.case(trial.index, [trial.said]))
            if isinstance(answer, VerdictFault):
                if printed := pool.take_printed():  # else the run says it
                    tell(printed)
                return trial.task.blame(trial.index, [trial.said], answer)
        return None
    finally:
        saying.cancel()
        await pool.close()
