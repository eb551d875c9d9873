"""Try a judge on a few cases before a run, as the run will use it."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from runtime.tasks.base import Completion, JudgedTask, VerdictFault
from runtime.tasks.verdicts.handle import PoolSize
from runtime.tasks.verdicts.pool import VerdictPool

_SAY_AFTER_S = 1.5


@dataclass(frozen=True, slots=True)
class Trial:
    """A completion to try, for item `index` of a task."""

    task: JudgedTask
    index: int
    said: str


def try_judge(trials: Sequence[Trial], size: PoolSize, tell: Callable[[str], None]) -> str | None:
    """Why the first of these completions without a verdict has none, with a remedy; None if all have verdicts.

    All trials are of one judge, in a pool of this size. `tell` gets a line if the trial takes long, and
    the output of a judge that fails.
    """
    return asyncio.run(_try(trials, size, tell))


async def _try(trials: Sequence[Trial], size: PoolSize, tell: Callable[[str], None]) -> str | None:
    task = trials[0].task
    pool = VerdictPool(task.judge, size, task.verdict_timeout_s)
    deadline = f"data.task.verdict_timeout_s is {task.verdict_timeout_s:g}"
    saying = asyncio.get_running_loop().call_later(
        _SAY_AFTER_S, tell, f"trying {task.judge.name} on {task.where(trials[0].index)}; {deadline}"
    )
    try:
        for trial in trials:
            said = Completion((trial.said,), tokens=max(1, len(trial.said)), finish_reason="stop")
            answer = await pool.rate(trial.task.case(trial.index, said))
            if isinstance(answer, VerdictFault):
                while notice := pool.take_notice():  # otherwise the run reports it
                    tell(notice)
                return trial.task.blame(trial.index, said, answer)
        return None
    finally:
        saying.cancel()
        await pool.close()
