"""The task of the `data:` block whose episodes are users' code.

What it must know of the environment before any rollout it asks in a process that ends at once.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from functools import cached_property, lru_cache, partial
from typing import TypeVar

from runtime.tasks.base import Chat, Completion, DataFailure, Task, TaskError
from runtime.tasks.config import CustomTaskConfig, DataConfig
from runtime.tasks.environments.code import EnvironmentCode
from runtime.tasks.environments.host import EnvironmentLost
from runtime.tasks.environments.pool import EnvironmentPool, HostedEpisode, TurnTooLong
from runtime.tasks.split import Split
from runtime.wording import counted

_PAGE = 8192
"""Demonstrations that are asked for at a time."""
_SAY_AFTER_S = 1.5
_LONGEST = 1_000_000
"""Characters of an answer in a trial."""
Told = TypeVar("Told")


def environment_code(task: CustomTaskConfig, data: DataConfig) -> EnvironmentCode:
    """The environment that the configuration names."""
    options = json.dumps(task.options, sort_keys=True)
    return EnvironmentCode(task.target, options, data.seed, held_out=data.validation_size > 0)


async def open_environments(
    datas: Mapping[str, tuple[DataConfig, int]], stack: AsyncExitStack
) -> dict[str, EnvironmentPool]:
    """The processes of the environments that these data name, by the same names; they start when needed.

    datas: each data with its `max_prompt_tokens`. An environment's answer may be as long as the longest of them allows.
    Environments that are equal in all settings share processes, which are killed when `stack` is closed. Data without
    an environment is left out.
    """
    kinds: dict[str, tuple[EnvironmentCode, int, float, int]] = {}
    longest: dict[tuple[EnvironmentCode, int, float, int], int] = {}
    for name, (data, max_prompt_tokens) in datas.items():
        task = data.task
        if isinstance(task, CustomTaskConfig):
            kind = environment_code(task, data), task.processes, task.timeout_s, task.memory_mib
            kinds[name] = kind
            longest[kind] = max(max_prompt_tokens, longest.get(kind, 0))
    pools: dict[tuple[EnvironmentCode, int, float, int], EnvironmentPool] = {}
    for kind, tokens in longest.items():
        code, processes, timeout_s, memory_mib = kind
        pools[kind] = EnvironmentPool(code, processes, timeout_s, tokens, memory_mib)
        stack.push_async_callback(pools[kind].close)
    return {name: pools[kind] for name, kind in kinds.items()}


def open_of(
    environments: Mapping[str, EnvironmentPool], name: str, split: Split
) -> Callable[[int], Awaitable[HostedEpisode]] | None:
    """How episodes of a split are opened; None for data without an environment."""
    return partial(environments[name].open, split) if name in environments else None


class EnvironmentTask(Task):
    """One split of an environment. Its prompts are known to open episodes alone."""

    def __init__(self, task: CustomTaskConfig, data: DataConfig, split: Split):
        """Asks nothing yet."""
        self.code = environment_code(task, data)
        self._timeout_s = task.timeout_s
        self._data = data
        self._split = split

    @cached_property
    def num_prompts(self) -> int:  # type: ignore[override]
        """Raises TaskError if the environment cannot be made, or has no such number of items."""
        told = _count(self.code, self._timeout_s)[self._split]
        if self._split == "validation":
            return min(self._data.validation_size, told if told is not None else self._data.validation_size)
        if told is None:
            return self._data.drawn_prompts
        wanted = told if self._data.num_prompts is None else self._data.num_prompts
        if not 1 <= wanted <= told:
            raise TaskError(
                f"{self.code.name} has {counted(told, 'item')}, and data.num_prompts asks for the first {wanted}; "
                f"set it to {told} or less, or leave it out for all of them"
            )
        return wanted

    def where(self, index: int) -> str:
        return f"item {index} of {self.code.name}"

    def prompt(self, index: int) -> str:
        """A name for the item: its prompt is known to an open episode alone."""
        return f"item {index}"

    def opening(self, index: int) -> None:
        return None

    def first_prompt(self) -> str | Chat:
        """The prompt of item 0. Raises TaskError if it cannot be opened."""

        async def ask(pool: EnvironmentPool) -> str | Chat:
            return (await pool.open(self._split, 0)).prompt

        return _in_a_process(self.code, self._timeout_s, ask)

    def demonstration(self, index: int) -> tuple[str, ...] | None:
        page = index // _PAGE
        stop = min((page + 1) * _PAGE, self.num_prompts)
        return _demonstrations(self.code, self._timeout_s, page * _PAGE, stop)[index % _PAGE]


def try_environment(task: CustomTaskConfig, data: DataConfig, tell: Callable[[str], None]) -> str | None:
    """Why an episode of the first item of a split fails; None if none does.

    The policy says what a demonstration says, or nothing. `tell` gets a line if it takes long, and what is printed.
    """
    code = environment_code(task, data)

    async def play(pool: EnvironmentPool) -> None:
        saying = asyncio.get_running_loop().call_later(
            _SAY_AFTER_S, tell, f"trying {code.name} on its first items; data.task.timeout_s is {task.timeout_s:g}"
        )
        try:
            shown = (await pool.ask("demonstrate", 0, 1))["demonstrations"][0]
            await _play(pool, "training", shown[1::2] if shown else [""])
            if data.validation_size:
                await _play(pool, "validation", [""])
        except BaseException:
            if printed := pool.take_printed():  # otherwise the run reports it
                tell(printed)
            raise
        finally:
            saying.cancel()

    try:
        _in_a_process(code, task.timeout_s, play)
    except TaskError as error:
        return str(error)
    return None


async def _play(pool: EnvironmentPool, split: Split, turns: Sequence[str]) -> None:
    episode = await pool.open(split, 0)
    try:
        said: list[str] = []
        for turn in turns:
            said.append(turn)
            if await episode.respond(turn) is None:
                break
        await episode.verdict(Completion(tuple(said), tokens=0, finish_reason="stop"))
    except TurnTooLong:
        pass
    finally:
        await episode.close()


@lru_cache(maxsize=8)
def _count(code: EnvironmentCode, timeout_s: float) -> dict[str, int | None]:
    async def ask(pool: EnvironmentPool) -> dict[str, int | None]:
        counts: dict[str, int | None] = (await pool.ask("count"))["counts"]
        return counts

    counts = _in_a_process(code, timeout_s, ask)
    for split, count in counts.items():
        if count is not None and (not isinstance(count, int) or count < 1):
            raise TaskError(f"{code.name}: num_items of {split} is {count!r}; give a number of at least 1, or None")
    return counts


@lru_cache(maxsize=16)
def _demonstrations(
    code: EnvironmentCode, timeout_s: float, start: int, stop: int
) -> tuple[tuple[str, ...] | None, ...]:
    async def ask(pool: EnvironmentPool) -> list[list[str] | None]:
        shown: list[list[str] | None] = (await pool.ask("demonstrate", start, stop))["demonstrations"]
        return shown

    return tuple(None if texts is None else tuple(texts) for texts in _in_a_process(code, timeout_s, ask))


def _in_a_process(code: EnvironmentCode, timeout_s: float, ask: Callable[[EnvironmentPool], Awaitable[Told]]) -> Told:
    """What `ask` returns of a pool with one process. Also runs where an event loop does. Raises TaskError."""

    async def run() -> Told:
        pool = EnvironmentPool(code, 1, timeout_s, _LONGEST)
        try:
            return await ask(pool)
        except (DataFailure, EnvironmentLost) as error:
            raise TaskError(str(error)) from error
        finally:
            await pool.close()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, run()).result()
