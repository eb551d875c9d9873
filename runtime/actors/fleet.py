"""The fleet: the generation workers on Ray. One that dies is made anew, and gets the current weights first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayActorError, RayTaskError

from fsm.errors import InvariantBroken
from fsm.events import Attempt
from runtime.actors.generation_worker import GenerationWorker
from runtime.actors.naming import Names, generation_resources, start_actor, worker_names
from runtime.answers import Answer, Order, WorkerDied
from runtime.data_plane import DataPlane
from runtime.generation.evaluation import Evaluation
from runtime.settings import Settings
from runtime.weight_sync import Published

CLOSE_TIMEOUT_S = 30.0
"""How long an engine may take to end before its worker is killed."""


class FleetLost(RuntimeError):
    """Generation workers died more often than `cluster.max_worker_restarts` allows."""


@dataclass(frozen=True, slots=True)
class _Worker:
    """Who sits on a seat."""

    handle: ActorHandle[Any]
    unanswered: dict[Attempt, None] = field(default_factory=dict)
    """Attempts that it has, in the order given."""

    def take_lost(self) -> list[Attempt]:
        """It is dead: what it had. Only the first who asks is told."""
        lost = list(self.unanswered)
        self.unanswered.clear()
        return lost


class _Seat:
    """The place of one worker, which outlives it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lives = 0
        """Workers that have sat here."""
        self.version = -1
        """That the worker has confirmed."""
        self.worker: asyncio.Task[_Worker] | None = None
        """The worker, once it is open and has the current weights."""


class Fleet:
    """All generation workers of a run."""

    def __init__(
        self,
        settings: Settings,
        names: Names,
        model_directory: Path,
        plane: DataPlane,
        reward_workers: Sequence[ActorHandle[Any]],
        validation_prompts: int,
    ) -> None:
        self._settings = settings
        self._names = names
        self._arguments = (settings, model_directory, plane, list(reward_workers))
        self._validation_prompts = validation_prompts
        self.on_death: Callable[[str, str], None] = lambda name, reason: None
        """Called with the name of a worker that died, and the reason."""
        self.on_start: Callable[[str], None] = lambda name: None
        """Called with the name of a worker that is open and has the current weights."""
        self._published: Published | None = None
        self._is_published = asyncio.Event()
        self._restarts = 0
        self._seats = {name: _Seat(name) for name in worker_names(settings)}
        self.workers: tuple[str, ...] = tuple(self._seats)

    def start(self) -> None:
        """Make all workers, side by side. They are usable once weights have been loaded."""
        for seat in self._seats.values():
            self._fill(seat)

    async def exchange(self, worker: str, orders: Sequence[Order]) -> Sequence[Answer]:
        """See FleetPort."""
        seat = self._seats[worker]
        there = await self._worker(seat)
        there.unanswered.update((order.attempt, None) for order in orders)
        try:
            answers: Sequence[Answer] = await there.handle.exchange.remote(orders)
        except RayActorError as error:
            self._bury(seat, there, error)
            raise WorkerDied(worker, str(error), there.take_lost()) from error
        for answer in answers:
            there.unanswered.pop(answer.attempt, None)
        return answers

    async def abort(self, worker: str, attempts: Sequence[Attempt]) -> None:
        """See FleetPort. A worker that has died meanwhile has stopped them too."""
        seat = self._seats[worker]
        there = await self._worker(seat)
        try:
            await there.handle.abort.remote(attempts)
        except RayActorError as error:
            self._bury(seat, there, error)

    async def load(self, published: Published) -> None:
        """See FleetPort."""
        self._published = published
        self._is_published.set()
        await asyncio.gather(*(self._load(seat, published) for seat in self._seats.values()))

    async def evaluate(self, label: str) -> Evaluation:
        """See FleetPort. Each worker takes its share of the held-out prompts; a worker that dies has it done again."""
        shares = {
            seat.name: range(number, self._validation_prompts, len(self._seats))
            for number, seat in enumerate(self._seats.values())
        }
        parts = await asyncio.gather(*(self._evaluate(name, label, share) for name, share in shares.items() if share))
        rollouts = sum(part.rollouts for part in parts)
        return Evaluation(
            accuracy=sum(part.accuracy * part.rollouts for part in parts) / rollouts,
            mean_reward=sum(part.mean_reward * part.rollouts for part in parts) / rollouts,
            prompts=sum(part.prompts for part in parts),
            rollouts=rollouts,
            start_weight=min(part.start_weight for part in parts),
            end_weight=max(part.end_weight for part in parts),
            without_verdict=sum(part.without_verdict for part in parts),
            first_failure=next((part.first_failure for part in parts if part.first_failure is not None), None),
            notices=tuple(notice for part in parts for notice in part.notices),
        )

    async def close(self) -> None:
        """End all workers, and what their engines have started."""
        await asyncio.gather(*(self._close(seat) for seat in self._seats.values()))

    async def _close(self, seat: _Seat) -> None:
        """A worker that is still being made is dropped as it is; one that does not answer is killed all the same."""
        if seat.worker is None:
            return
        if not seat.worker.done():
            seat.worker.cancel()
        elif seat.worker.exception() is None:
            handle = seat.worker.result().handle
            await asyncio.wait([asyncio.ensure_future(handle.close.remote())], timeout=CLOSE_TIMEOUT_S)
            ray.kill(handle)

    async def _evaluate(self, worker: str, label: str, indices: Sequence[int]) -> Evaluation:
        seat = self._seats[worker]
        while True:
            there = await self._worker(seat)
            try:
                evaluation: Evaluation = await there.handle.evaluate.remote(label, indices)
            except RayActorError as error:
                self._bury(seat, there, error)
            else:
                return evaluation

    async def _load(self, seat: _Seat, published: Published) -> None:
        """A worker that dies on the way is made anew, with the publication."""
        while True:
            there = await self._worker(seat)
            if seat.version == published.version:
                return
            try:
                seat.version = await there.handle.load_weights.remote(published.publication)
            except RayActorError as error:
                self._bury(seat, there, error)
                continue
            if seat.version != published.version:
                raise InvariantBroken(f"{seat.name} was given version {published.version} and confirms {seat.version}")

    async def _worker(self, seat: _Seat) -> _Worker:
        """The worker of a seat, as soon as there is one. Others may wait for the same."""
        assert seat.worker is not None, "the fleet is started before it is used"
        return seat.worker.result() if seat.worker.done() else await asyncio.shield(seat.worker)

    def _bury(self, seat: _Seat, dead: _Worker, error: RayActorError) -> None:
        """Make a dead worker anew, unless another of its callers has seen to it.

        Raises the error where it is not the worker that died, but an actor that the worker has called.
        """
        if isinstance(error, RayTaskError):
            raise error
        assert seat.worker is not None, "the fleet is started before it is used"
        if not seat.worker.done() or seat.worker.result() is not dead:
            return
        self.on_death(seat.name, str(error))
        self._count_restart(seat.name, error)
        ray.kill(dead.handle)  # in case it is unreachable and not dead
        self._fill(seat)

    def _count_restart(self, name: str, error: RayActorError) -> None:
        self._restarts += 1
        allowed = self._settings.cluster.max_worker_restarts
        if self._restarts > allowed:
            raise FleetLost(
                f"generation workers died {self._restarts} times; cluster.max_worker_restarts allows {allowed}. "
                f"The last was {name}: {error}"
            ) from error

    def _fill(self, seat: _Seat) -> None:
        seat.version = -1
        seat.worker = asyncio.create_task(self._make(seat), name=f"make {seat.name}")

    async def _make(self, seat: _Seat) -> _Worker:
        """A worker that is open and runs the current version."""
        while True:
            life, seat.lives = seat.lives, seat.lives + 1
            options = self._names.options(f"{seat.name}.{life}") | generation_resources(self._settings)
            handle = start_actor(GenerationWorker, options, seat.name, *self._arguments)
            try:
                await handle.open.remote()
                await self._is_published.wait()
                assert self._published is not None, "publications come before their event"
                seat.version = await handle.load_weights.remote(self._published.publication)
            except RayActorError as error:
                self.on_death(seat.name, str(error))
                self._count_restart(seat.name, error)
            else:
                self.on_start(seat.name)
                return _Worker(handle)
