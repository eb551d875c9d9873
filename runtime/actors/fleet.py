"""The fleet: the generation workers on Ray. A worker that dies is restarted, and loads the current weights first.

What happens when one dies: the call that notices it raises RayActorError, `_bury` reports the death and starts a new
worker on the same seat, and the dead worker's attempts are reported once, as WorkerLost or as failed answers.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayActorError, RayTaskError

from fsm.errors import EvenstepError, InvariantBroken
from fsm.events import Attempt, FailureKind
from runtime.actors.generation_worker import GenerationWorker
from runtime.evaluation.sets import PART_PROMPTS, PARTS_AT_A_TIME, HeldOut
from runtime.groups import Evaluation, joined
from runtime.naming import Names, generation_resources, start_actor, worker_names
from runtime.settings import Settings
from runtime.transport.answers import Answer, AttemptFailed, Order, Published, WorkerLost
from runtime.transport.data_plane import DataPlane


class FleetLost(EvenstepError):
    """Generation workers died more often than `cluster.max_worker_restarts` allows."""


@dataclass(slots=True)
class _FleetWorker:
    """One process on a seat, from its start to its death."""

    handle: ActorHandle[Any]
    numbers: Iterator[int] = field(default_factory=count)
    """Of its calls, in the order in which they are sent (`CallOrder`)."""
    version: int = -1
    """The version that it has confirmed."""
    unanswered: dict[Attempt, None] = field(default_factory=dict)
    """Its attempts, in the order given to it."""


class _Seat:
    """The place of one worker, which keeps its name when the worker is restarted."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lives = 0
        """Workers started on this seat."""
        self.sending = asyncio.Lock()
        """Held while a caller waits for the worker and sends its call, so that no call overtakes an earlier one."""
        self.worker: asyncio.Task[_FleetWorker] | None = None
        """The worker, once it is open and has the current weights."""
        self.lost: dict[Attempt, None] = {}
        """Attempts of dead workers that no exchange has reported yet, in the order given to them."""
        self.last_death = ""

    def take_lost(self) -> list[Attempt]:
        """The lost attempts, which only the first caller gets."""
        lost, self.lost = list(self.lost), {}
        return lost


class Fleet:
    """All generation workers of a run.

    Requests to one worker take effect in the order in which they are made: an abort finds the orders of an earlier
    exchange, and an evaluation runs the weights of an earlier load, none of a later one. Replies come in any order.
    """

    def __init__(
        self,
        settings: Settings,
        names: Names,
        model_directory: Path,
        plane: DataPlane,
        reward_workers: Sequence[ActorHandle[Any]],
        held_out: HeldOut,
        first_prompt: int,
        began_with: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._settings = settings
        self._names = names
        self._arguments = (settings, model_directory, plane, list(reward_workers), first_prompt, dict(began_with))
        self._held_out = held_out
        self.on_death: Callable[[str, str], None] = lambda name, reason: None
        """Called with the name of a worker that died and the reason."""
        self.on_start: Callable[[str], None] = lambda name: None
        """Called with the name of a worker that is open and has the current weights."""
        self._published: Published | None = None
        self._is_published = asyncio.Event()
        self._restarts = 0
        self._seats = {name: _Seat(name) for name in worker_names(settings)}
        self.workers: tuple[str, ...] = tuple(self._seats)

    def start(self) -> None:
        """Start all workers at once. They are usable once weights have been loaded."""
        for seat in self._seats.values():
            self._fill(seat)

    async def exchange(self, worker: str, orders: Sequence[Order]) -> Sequence[Answer]:
        """Start groups as one submission, perhaps none, and wait for answers to any attempt of the worker.

        Returns at least one answer, unless a later exchange with the same worker takes over the waiting.
        A dead worker's attempts are reported once: by WorkerLost if its death ends an exchange, else as failures.
        """
        seat = self._seats[worker]
        async with self._worker(seat) as there:
            if seat.lost and not orders:  # it died between two exchanges
                raise WorkerLost(worker, seat.last_death, seat.take_lost())
            there.unanswered.update((order.attempt, None) for order in orders)
            call: Any = there.handle.exchange.remote(next(there.numbers), orders)
        try:
            answers: Sequence[Answer] = await call
        except RayActorError as error:
            self._bury(seat, there, error)
            raise WorkerLost(worker, str(error), seat.take_lost()) from error
        for answer in answers:
            there.unanswered.pop(answer.attempt, None)
            seat.lost.pop(answer.attempt, None)
        lost = f"generation worker {worker} died: {seat.last_death}"
        return [*answers, *(AttemptFailed(attempt, FailureKind.INFRA, lost) for attempt in seat.take_lost())]

    async def abort(self, worker: str, attempts: Sequence[Attempt]) -> None:
        """Stop attempts; those that are over are skipped. A worker that has died meanwhile has stopped them too."""
        seat = self._seats[worker]
        async with self._worker(seat) as there:
            call: Any = there.handle.abort.remote(next(there.numbers), attempts)
        try:
            await call
        except RayActorError as error:
            self._bury(seat, there, error)

    async def load(self, published: Published) -> None:
        """Return once every worker has confirmed that it runs the published version."""
        self._published = published
        self._is_published.set()
        await asyncio.gather(*(self._load(seat, published) for seat in self._seats.values()))

    async def evaluate(self, name: str, label: str, progressed: Callable[[], None]) -> Evaluation:
        """Measure a set under the weights that the workers run; calls `progressed` after each part.

        Each worker takes its share of the prompts, in parts, two at a time. The part of a worker that dies is repeated.
        """
        shares = [
            (seat, range(number, self._held_out[name], len(self._seats)))
            for number, seat in enumerate(self._seats.values())
        ]
        places = {seat.name: asyncio.Semaphore(PARTS_AT_A_TIME) for seat, _ in shares}
        parts = await asyncio.gather(
            *(
                self._evaluate(seat, places[seat.name], name, label, share[first : first + PART_PROMPTS], progressed)
                for seat, share in shares
                for first in range(0, len(share), PART_PROMPTS)
            )
        )
        return joined(parts)

    async def close(self, timeout_s: float) -> None:
        """End all workers and their engines' processes, within `timeout_s` seconds."""
        await asyncio.gather(*(self._close(seat, timeout_s) for seat in self._seats.values()))

    async def _close(self, seat: _Seat, timeout_s: float) -> None:
        """A worker that is still starting is dropped; one that does not answer is killed anyway."""
        if seat.worker is None:
            return
        if not seat.worker.done():
            seat.worker.cancel()
        elif seat.worker.exception() is None:
            handle = seat.worker.result().handle
            await asyncio.wait([asyncio.ensure_future(handle.close.remote())], timeout=timeout_s)
            ray.kill(handle)

    async def _evaluate(
        self,
        seat: _Seat,
        place: asyncio.Semaphore,
        name: str,
        label: str,
        indices: Sequence[int],
        progressed: Callable[[], None],
    ) -> Evaluation:
        async with place:
            while True:
                async with self._worker(seat) as there:
                    call: Any = there.handle.evaluate.remote(next(there.numbers), name, label, indices)
                try:
                    evaluation: Evaluation = await call
                except RayActorError as error:
                    self._bury(seat, there, error)
                else:
                    progressed()
                    return evaluation

    async def _load(self, seat: _Seat, published: Published) -> None:
        """Have the worker load the publication; if it dies meanwhile, its successor does."""
        while True:
            async with self._worker(seat) as there:
                if there.version == published.version:
                    return
                call = self._send_weights(there, published)
            try:
                there.version = await call
            except RayActorError as error:
                self._bury(seat, there, error)
                continue
            if there.version != published.version:
                raise InvariantBroken(f"{seat.name} was given version {published.version} and confirms {there.version}")

    def _send_weights(self, there: _FleetWorker, published: Published) -> Any:
        """The call, to be awaited. Inside `published` the worker gets the reference at once, and awaits its value
        itself: with a bare reference, Ray would have all later calls wait for the value too.
        """
        return there.handle.load_weights.remote(next(there.numbers), published)

    @asynccontextmanager
    async def _worker(self, seat: _Seat) -> AsyncIterator[_FleetWorker]:
        """The worker of a seat, for one call to it, as soon as there is one: first come, first served."""
        assert seat.worker is not None, "the fleet is started before it is used"
        async with seat.sending:
            yield await asyncio.shield(seat.worker)

    def _bury(self, seat: _Seat, dead: _FleetWorker, error: RayActorError) -> None:
        """Restart a dead worker, unless another of its callers has done so.

        Raises the error if not the worker died, but an actor that it has called.
        """
        if isinstance(error, RayTaskError):
            raise error
        assert seat.worker is not None, "the fleet is started before it is used"
        if not seat.worker.done() or seat.worker.result() is not dead:
            return
        self.on_death(seat.name, str(error))
        seat.lost |= dead.unanswered
        seat.last_death = str(error)
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
        seat.worker = asyncio.create_task(self._make(seat), name=f"make {seat.name}")

    async def _make(self, seat: _Seat) -> _FleetWorker:
        while True:
            life, seat.lives = seat.lives, seat.lives + 1
            options = self._names.options(f"{seat.name}.{life}") | generation_resources(self._settings)
            made = _FleetWorker(start_actor(GenerationWorker, options, seat.name, *self._arguments))
            try:
                await made.handle.open.remote()
                await self._is_published.wait()
                assert self._published is not None, "publications come before their event"
                made.version = await self._send_weights(made, self._published)
            except RayActorError as error:
                self.on_death(seat.name, str(error))
                self._count_restart(seat.name, error)
            else:
                self.on_start(seat.name)
                return made
