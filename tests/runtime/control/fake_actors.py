"""Actors on one asyncio loop, whose calls and replies are delivered in whatever order a test draws, and which can die.

The workers are the real ones, with their real policy host. Only the engine is not: what it generates ends when a test
says so.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from ray.exceptions import ActorDiedError

from fsm.events import Attempt
from runtime.actors.generation_worker import GenerationWorker
from runtime.actors.policy_host import PolicyHost
from runtime.generation.engine import (
    EngineHealth,
    GeneratedGroup,
    GeneratedSequence,
    GenerationAborted,
    GroupRequest,
    Weights,
)
from runtime.models.text import make_codec
from runtime.models.tiny import character_tokenizer
from runtime.settings import Settings, load_settings
from runtime.transport.answers import Order, Publication, Published

TOKENIZER = character_tokenizer()


def settings_of(**overrides: Any) -> Settings:
    given = {
        "grpo.num_prompts_per_step": 4,
        "grpo.num_generations_per_prompt": 2,
        "grpo.use_dynamic_sampling": "false",
        "data.num_prompts": 64,
        "data.validation_size": 2,
        "cluster.max_worker_restarts": 1000,
        **overrides,
    }
    return load_settings(None, [f"{key}={value}" for key, value in given.items()])


def order(prompt: int, start_weight: int) -> Order:
    return Order(Attempt(prompt, prompt), start_weight)


async def settle() -> None:
    """Whatever can go on without news from outside has gone on."""
    for _ in range(12):
        await asyncio.sleep(0)


async def resolved(value: Any) -> Any:
    return value


def published(version: int) -> Published:
    """As the trainer's: the publication is a reference, which a worker awaits."""
    reference = asyncio.get_running_loop().create_future()
    reference.set_result(Publication(version, {}))
    return Published(version, reference)


class FakeEngine:
    """Generates until it is told to finish a request, or hands each to `begun`, which finishes it when it likes."""

    def __init__(self, begun: Callable[[Callable[[], None]], None] | None = None) -> None:
        self.version = -1
        self.loaded: list[int] = []
        self.aborted: list[str] = []
        self.running: dict[str, tuple[GroupRequest, int, asyncio.Future[GeneratedGroup]]] = {}
        self._begun = begun

    def submit(self, requests: Sequence[GroupRequest]) -> list[asyncio.Future[GeneratedGroup]]:
        for request in requests:
            assert request.request_id not in self.running
            self.running[request.request_id] = (request, self.version, asyncio.get_running_loop().create_future())
            if self._begun is not None:
                self._begun(partial(self.finish, request.request_id))
        return [self.running[request.request_id][2] for request in requests]

    def finish(self, request_id: str) -> None:
        if request_id not in self.running:
            return
        request, start_weight, future = self.running.pop(request_id)
        sequence = GeneratedSequence(np.array([7, 1], dtype=np.int32), np.zeros(2, dtype=np.float32), True)
        sequences = (sequence,) * request.num_generations
        if not future.done():
            future.set_result(GeneratedGroup(request_id, sequences, start_weight, self.version))

    def finish_all(self) -> None:
        for request_id in tuple(self.running):
            self.finish(request_id)

    def abort(self, request_id: str) -> bool:
        if request_id not in self.running:
            return False
        self.aborted.append(request_id)
        future = self.running.pop(request_id)[2]
        if not future.done():
            future.set_exception(GenerationAborted(request_id))
        return True

    async def load_weights(self, weights: Weights, version: int) -> int:
        await asyncio.sleep(0)
        self.version = version
        self.loaded.append(version)
        return version

    def health(self) -> EngineHealth:
        return EngineHealth(self.version, 0, 0, 0, 0.0)


class KeepingPlane:
    """A data plane that keeps groups, and says what was deleted."""

    def __init__(self) -> None:
        self.groups: dict[int, Any] = {}
        self.deleted: list[Any] = []

    async def put(self, groups: Sequence[Any]) -> list[Any]:
        await asyncio.sleep(0)
        rows = list(range(len(self.groups), len(self.groups) + len(groups)))
        self.groups.update(zip(rows, groups, strict=True))
        return [*rows]

    def get(self, rows: Sequence[Any], unneeded: Sequence[Any] = ()) -> list[Any]:
        return [self.groups[row] for row in rows]

    def delete(self, rows: Sequence[Any]) -> None:
        self.deleted += rows


def opened_worker(
    settings: Settings, engine: FakeEngine, reward_workers: Sequence[Any], plane: Any
) -> GenerationWorker:
    """A worker that runs, without Ray."""
    worker = GenerationWorker("generation-0", settings, Path(), plane, reward_workers, 0)
    worker._host = PolicyHost(settings, engine, make_codec(TOKENIZER, settings.data), 0)
    return worker


class Post:
    """Delivers letters one by one, in an order drawn from `random`, after a while drawn from it."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self._letters: list[Callable[[], None]] = []
        self._news = asyncio.Event()

    def send(self, deliver: Callable[[], None]) -> None:
        self._letters.append(deliver)
        self._news.set()

    async def carry(self) -> None:
        while True:
            while not self._letters:
                self._news.clear()
                await self._news.wait()
            for _ in range(self.random.randrange(4)):
                await asyncio.sleep(0)
            self._letters.pop(self.random.randrange(len(self._letters)))()


class LocalActor:
    """What Ray's handles are, for an object on this loop. Calls begin, and replies come, when the post brings them."""

    def __init__(self, post: Post, made: Any) -> None:
        self.post = post
        self._made = made
        self._unanswered: set[asyncio.Future[Any]] = set()
        self._running: set[asyncio.Task[None]] = set()
        self.dead = False
        self.frozen = False
        """It does nothing and replies nothing, and is not dead."""
        self.sent: list[tuple[str, Sequence[Any]]] = []
        """Calls, in the order in which they were sent: method and arguments."""

    def __getattr__(self, method: str) -> "LocalMethod":
        return LocalMethod(self, method)

    def call(self, method: str, arguments: Sequence[Any]) -> asyncio.Future[Any]:
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.sent.append((method, arguments))
        if self.dead:
            reply.set_exception(ActorDiedError())
            return reply
        self._unanswered.add(reply)
        reply.add_done_callback(self._unanswered.discard)
        self.post.send(partial(self._begin, reply, method, arguments))
        return reply

    def kill(self) -> None:
        """Whoever waits for it is told, and what it was doing is lost."""
        self.dead = True
        for task in self._running:
            task.cancel()
        for reply in list(self._unanswered):
            self.post.send(partial(_reply_error, reply, ActorDiedError()))

    def _begin(self, reply: asyncio.Future[Any], method: str, arguments: Sequence[Any]) -> None:
        if self.dead or self.frozen:
            return
        task = asyncio.create_task(self._run(reply, method, arguments))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _run(self, reply: asyncio.Future[Any], method: str, arguments: Sequence[Any]) -> None:
        try:
            result = await getattr(self._made, method)(*arguments)
        except Exception as error:
            self.post.send(partial(_reply_error, reply, error))
        else:
            self.post.send(partial(_reply, self, reply, result))


class LocalMethod:
    """A method of a handle."""

    def __init__(self, actor: LocalActor, method: str) -> None:
        self._actor = actor
        self._method = method

    def remote(self, *arguments: Any) -> asyncio.Future[Any]:
        return self._actor.call(self._method, arguments)


def _reply(actor: LocalActor, reply: asyncio.Future[Any], result: Any) -> None:
    if not reply.done() and not actor.dead and not actor.frozen:
        reply.set_result(result)


def _reply_error(reply: asyncio.Future[Any], error: Exception) -> None:
    if not reply.done():
        reply.set_exception(error)


async def open_host(settings: Settings, begun: Callable[[Callable[[], None]], None]) -> PolicyHost:
    """In the place of PolicyHost.open."""
    return PolicyHost(settings, FakeEngine(begun), make_codec(TOKENIZER, settings.data), 0)
