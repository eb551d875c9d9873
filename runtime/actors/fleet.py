"""The fleet: the generation workers on Ray. One that dies is made anew, and gets the current weights first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
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
from runtime.weight_sync import Publication

CLOSE_TIMEOUT_S = 30.0
"""How long an engine may take to end before its worker is killed."""


class FleetLost(RuntimeError):
    """Generation workers died more often than `cluster.max_worker_restarts` allows."""


class _Seat:
    """The place of one worker, which outlives it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lives = 0
        """Workers that have sat here."""
        self.version = -1
        """That the worker has confirmed."""
        self.worker: asyncio.Task[ActorHandle[Any]] | None = None
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
        self._publication: Publication | None = None
        self._published = asyncio.Event()
        self._restarts = 0
        self._seats = {name: _Seat(name) for name in worker_names(settings)}
        self.workers: tuple[str, ...] = tuple(self._seats)

    def start(self) -> None:
        """Make all workers, side by side. They are usable once weights have been loaded."""
        for seat in self._seats.values():
            self._fill(seat)

    async def generate(self, worker: str, orders: Sequence[Order]) -> AsyncIterator[Sequence[Answer]]:
        """See FleetPort."""
        seat = self._seats[worker]
        handle = await self._worker(seat)
        left = len(orders)
        try:
            answers: Sequence[Answer] = await handle.generate.remote(orders)
            while left := left - len(answers):
                yield answers
                answers = await handle.more.remote(orders[0].attempt)
        except RayActorError as error:
            self._bury(seat, handle, error)
            raise WorkerDied(worker, str(error)) from error
        yield answers

    async def abort(self, worker: str, attempts: Sequence[Attempt]) -> None:
        """See FleetPort. A worker that has died meanwhile has stopped them too."""
        seat = self._seats[worker]
        handle = await self._worker(seat)
        try:
            await handle.abort.remote(attempts)
        except RayActorError as error:
            self._bury(seat, handle, error)

    async def load(self, publication: Publication) -> None:
        """See FleetPort."""
        self._publication = publication
        self._published.set()
        await asyncio.gather(*(self._load(seat, publication) for seat in self._seats.values()))

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
            handle = seat.worker.result()
            await asyncio.wait([asyncio.ensure_future(handle.close.remote())], timeout=CLOSE_TIMEOUT_S)
            ray.kill(handle)

    async def _evaluate(self, worker: str, label: str, indices: Sequence[int]) -> Evaluation:
        seat = self._seats[worker]
        while True:
            handle = await self._worker(seat)
            try:
                evaluation: Evaluation = await handle.evaluate.remote(label, indices)
            except RayActorError as error:
                self._bury(seat, handle, error)
            else:
                return evaluation

    async def _load(self, seat: _Seat, publication: Publication) -> None:
        """A worker that dies on the way is made anew, with the publication."""
        while True:
            handle = await self._worker(seat)
            if seat.version == publication.version:
                return
            try:
                seat.version = await handle.load_weights.remote(publication)
            except RayActorError as error:
                self._bury(seat, handle, error)
                continue
            if seat.version != publication.version:
                raise InvariantBroken(
                    f"{seat.name} was given version {publication.version} and confirms {seat.version}"
                )

    async def _worker(self, seat: _Seat) -> ActorHandle[Any]:
        """The worker of a seat, as soon as there is one. Others may wait for the same."""
        assert seat.worker is not None, "the fleet is started before it is used"
        return await asyncio.shield(seat.worker)

    def _bury(self, seat: _Seat, handle: ActorHandle[Any], error: RayActorError) -> None:
        """Make a dead worker anew, unless another of its callers has seen to it.

        Raises the error where it is not the worker that died, but an actor that the worker has called.
        """
        if isinstance(error, RayTaskError):
            raise error
        assert seat.worker is not None, "the fleet is started before it is used"
        if not seat.worker.done() or seat.worker.result() is not handle:
            return
        self.on_death(seat.name, str(error))
        self._count_restart(seat.name, error)
        ray.kill(handle)  # in case it is unreachable and not dead
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

    async def _make(self, seat: _Seat) -> ActorHandle[Any]:
        """A worker that is open and runs the current version."""
        while True:
            life, seat.lives = seat.lives, seat.lives + 1
            options = self._names.options(f"{seat.name}.{life}") | generation_resources(self._settings)
            handle = start_actor(GenerationWorker, options, seat.name, *self._arguments)
            try:
                await handle.open.remote()
                await self._published.wait()
                assert self._publication is not None, "publications come before their event"
                seat.version = await handle.load_weights.remote(self._publication)
            except RayActorError as error:
                self.on_death(seat.name, str(error))
                self._count_restart(seat.name, error)
            else:
                return handle
