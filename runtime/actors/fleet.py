"""The fleet: the generation workers on Ray. A worker that dies or is quarantined is restarted with the current weights.

What happens when one dies: the call that notices it raises RayActorError, `_bury` reports the death and starts a new
worker on the same seat, and the dead worker's attempts are reported once, as WorkerLost or as failed answers.

A worker is quarantined, that is, killed and then treated as dead, if it does not answer probes, its event loop stands
still, it does not load weights in time, or its attempts fail again and again while others' finish. The next worker of
the seat serves once it is open, has the newest weights, and has generated a few tokens (`SeatedWorker.proven` in
`runtime/actors/seat.py`).
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayActorError, RayTaskError

from fsm.errors import EvenstepError, InvariantBroken
from fsm.events import Attempt, FailureKind
from runtime.actors.calls import EngineLost, is_cancelled, within
from runtime.actors.generation_worker import GenerationWorker
from runtime.actors.health import Streaks, watch_number
from runtime.actors.probing import ProbeTimes, unhealthy
from runtime.actors.restarts import Restarts, delay_s
from runtime.actors.seat import Seat, SeatedWorker, reason_of
from runtime.evaluation.sets import PART_PROMPTS, PARTS_AT_A_TIME, HeldOut
from runtime.groups import Evaluation, joined
from runtime.naming import PROBED, Names, generation_resources, start_actor, worker_names
from runtime.settings import CollectiveSyncConfig, Settings
from runtime.transport.answers import Answer, AttemptFailed, AttemptFinished, Order, Published, WorkerLost
from runtime.transport.data_plane import DataPlane
from runtime.usual import UsualTime

DEAD = (RayActorError, EngineLost, TimeoutError)
"""What a call raises if its worker is no longer of use."""


class FleetLost(EvenstepError):
    """Too many restarts of generation workers, or too few workers for too long."""


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
        self._settings, self._cluster, self._names = settings, settings.cluster, names
        self._arguments = (settings, model_directory, plane, list(reward_workers), first_prompt, dict(began_with))
        self._held_out = held_out
        self.on_death: Callable[[str, str], None] = lambda name, reason: None
        """Called with the name of a worker that died, or was killed in quarantine, and the reason."""
        self.on_quarantine: Callable[[str, str], None] = lambda name, reason: None
        """Called with the name of a worker and the reason, before its `on_death`."""
        self.on_start: Callable[[str], None] = lambda name: None
        """Called with the name of a worker that is open and has the current weights."""
        self._published: Published | None = None
        self._is_published = asyncio.Event()
        self._restarts = Restarts(self._cluster.max_worker_restarts, self._cluster.restart_window_s)
        self._probes = ProbeTimes(self._cluster.probe_interval_s, self._cluster.probe_timeout_s)
        self._starts = UsualTime(floor_s=1800.0, factor=5.0, configured=self._cluster.start_timeout_s)
        """Opening a worker."""
        self._proofs = UsualTime(floor_s=1800.0, factor=5.0, configured=self._cluster.start_timeout_s)
        self._loads = UsualTime(floor_s=900.0, factor=10.0, configured=self._cluster.sync_timeout_s)
        """Loading published weights. A broadcast has its own deadlines, since there a worker waits for all others."""
        self._streaks = Streaks(self._cluster.quarantine_after_failures)
        self._failure: BaseException | None = None
        """Why the fleet can be used no more."""
        self._watching: set[asyncio.Task[None]] = set()
        self._seats = {name: Seat(name) for name in worker_names(settings)}

    @property
    def workers(self) -> tuple[str, ...]:
        """The workers that serve; all while none does, for then an attempt must wait for one to be restarted."""
        return tuple(name for name, seat in self._seats.items() if seat.serving) or tuple(self._seats)

    def start(self) -> None:
        """Start all workers at once. They are usable once weights have been loaded."""
        for seat in self._seats.values():
            self._fill(seat)
        least = self._cluster.min_healthy_workers
        number = watch_number(self._number_serving, least, self._starts, self._probes, self._too_few)
        self._watch(number, "number of healthy workers")

    async def exchange(self, worker: str, orders: Sequence[Order]) -> Sequence[Answer]:
        """Start groups as one submission, perhaps none, and wait for answers to any attempt of the worker.

        Returns at least one answer, unless a later exchange with the same worker takes over the waiting.
        A dead worker's attempts are reported once: by WorkerLost if its death ends an exchange, else as failures.
        Orders for a worker that is being restarted while others serve are lost at once, so that they go to those.
        """
        seat = self._seats[worker]
        if self._others_serve(seat):
            raise WorkerLost(worker, seat.last_death, [*seat.take_lost(), *(order.attempt for order in orders)])
        async with self._worker(seat) as there:
            if seat.lost and not orders:  # it died between two exchanges
                raise WorkerLost(worker, seat.last_death, seat.take_lost())
            there.unanswered.update((order.attempt, None) for order in orders)
            call: Any = there.handle.exchange.remote(next(there.numbers), orders)
        try:
            answers: Sequence[Answer] = await call
        except DEAD as error:
            self._bury(seat, there, error)
            raise WorkerLost(worker, seat.last_death, seat.take_lost()) from error
        for answer in answers:
            there.unanswered.pop(answer.attempt, None)
            seat.lost.pop(answer.attempt, None)
        self._note_answers(seat, there, answers)
        lost = f"generation worker {worker} died: {seat.last_death}"
        return [*answers, *(AttemptFailed(attempt, FailureKind.INFRA, lost) for attempt in seat.take_lost())]

    async def abort(self, worker: str, attempts: Sequence[Attempt]) -> None:
        """Stop attempts; those that are over are skipped. A worker that has died meanwhile has stopped them too."""
        seat = self._seats[worker]
        if self._others_serve(seat):
            return
        async with self._worker(seat) as there:
            call: Any = there.handle.abort.remote(next(there.numbers), attempts)
        try:
            await call
        except DEAD as error:
            self._bury(seat, there, error)

    def expired(self, worker: str, attempts: Sequence[Attempt]) -> None:
        """These attempts have reached their deadline (W1), which may be the worker's fault."""
        seat = self._seats[worker]
        if (there := seat.serving) is not None:
            for _ in attempts:
                self._failed(seat, there, "the attempt reached its deadline (rollout_timeout_s)")

    async def load(self, published: Published) -> None:
        """Return once every worker that serves, at least one, has confirmed that it runs the published version.

        A worker that is being restarted loads the newest version before it serves. The first workers are waited for.
        """
        self._published = published
        self._is_published.set()
        seats = [seat for seat in self._seats.values() if seat.serving or not seat.served]
        await asyncio.gather(*(self._load(seat, published) for seat in seats))
        while not any(seat.serving for seat in self._seats.values()):
            self._check()
            makes = [seat.worker for seat in self._seats.values() if seat.worker is not None]
            await asyncio.wait(makes, return_when=asyncio.FIRST_COMPLETED)

    async def evaluate(self, name: str, label: str, progressed: Callable[[], None]) -> Evaluation:
        """Measure a set under the weights that the workers run; calls `progressed` after each part.

        Each worker takes its share of the prompts, in parts, two at a time. The part of a worker that dies is repeated,
        by another if one serves.
        """
        seats = [self._seats[worker] for worker in self.workers]
        places = {seat.name: asyncio.Semaphore(PARTS_AT_A_TIME) for seat in seats}
        shares = [(seat, range(number, self._held_out[name], len(seats))) for number, seat in enumerate(seats)]
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
        for task in self._watching:
            task.cancel()
        await asyncio.gather(*(self._close(seat, timeout_s) for seat in self._seats.values()))

    async def _close(self, seat: Seat, timeout_s: float) -> None:
        """A worker that is still starting is dropped; one that does not answer is killed anyway."""
        if seat.worker is None:
            return
        if not seat.worker.done():
            seat.worker.cancel()
        elif (there := seat.serving) is not None:
            await asyncio.wait([asyncio.ensure_future(there.handle.close.remote())], timeout=timeout_s)
            ray.kill(there.handle)

    async def _evaluate(
        self,
        seat: Seat,
        place: asyncio.Semaphore,
        name: str,
        label: str,
        indices: Sequence[int],
        progressed: Callable[[], None],
    ) -> Evaluation:
        async with place:
            while True:
                if self._others_serve(seat):
                    seat = self._seats[self.workers[indices[0] % len(self.workers)]]
                async with self._worker(seat) as there:
                    call: Any = there.handle.evaluate.remote(next(there.numbers), name, label, indices)
                try:
                    evaluation: Evaluation = await call
                except DEAD as error:
                    self._bury(seat, there, error)
                else:
                    progressed()
                    return evaluation

    async def _load(self, seat: Seat, published: Published) -> None:
        """Have the worker load the publication. If it dies meanwhile, its successor does, before it serves."""
        while True:
            async with self._worker(seat) as there:
                if there.version == published.version:
                    return
                call = self._send_weights(there, published)
            try:
                there.version = await self._loaded(call)
            except DEAD as error:
                self._bury(seat, there, error)
                if seat.served:
                    return
                continue
            if there.version != published.version:
                raise InvariantBroken(f"{seat.name} was given version {published.version} and confirms {there.version}")

    def _send_weights(self, there: SeatedWorker, published: Published) -> Any:
        """The call, to be awaited. Inside `published` the worker gets the reference at once, and awaits its value
        itself: with a bare reference, Ray would have all later calls wait for the value too.
        """
        return there.handle.load_weights.remote(next(there.numbers), published)

    async def _loaded(self, call: Any) -> int:
        """The version that a worker confirms. Raises TimeoutError."""
        if isinstance(self._settings.weight_sync, CollectiveSyncConfig):
            return int(await call)
        return int(await within(call, self._loads, "load the weights", "cluster.sync_timeout_s"))

    @asynccontextmanager
    async def _worker(self, seat: Seat) -> AsyncIterator[SeatedWorker]:
        """The worker of a seat, for one call to it, as soon as there is one: first come, first served."""
        assert seat.worker is not None, "the fleet is started before it is used"
        async with seat.sending:
            self._check()
            try:
                there = await asyncio.shield(seat.worker)
            except asyncio.CancelledError:
                if not is_cancelled():  # but the start of the worker was
                    self._check()
                raise
            yield there

    def _others_serve(self, seat: Seat) -> bool:
        """The seat's worker is being restarted, and another serves."""
        return seat.serving is None and seat.served and any(other.serving for other in self._seats.values())

    # Faults

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _note_answers(self, seat: Seat, there: SeatedWorker, answers: Sequence[Answer]) -> None:
        for answer in answers:
            if isinstance(answer, AttemptFinished):
                self._streaks.finished(there)
                seat.in_a_row = 0
            elif isinstance(answer, AttemptFailed) and answer.of_worker:
                self._failed(seat, there, answer.error)

    def _failed(self, seat: Seat, there: SeatedWorker, why: str) -> None:
        if (reason := self._streaks.failed(there, why)) is not None:
            self._quarantine(seat, there, reason)

    def _quarantine(self, seat: Seat, there: SeatedWorker, reason: str) -> None:
        if there.condemned is None:
            there.condemned = reason
            self.on_quarantine(seat.name, reason)
            if seat.serving is there:
                self._bury(seat, there, WorkerLost(seat.name, reason, ()))
            else:  # it is starting: `_make` hears of it
                ray.kill(there.handle)

    def _bury(self, seat: Seat, dead: SeatedWorker, error: Exception) -> None:
        """Restart a dead worker, unless another of its callers has done so.

        Raises the error if not the worker died, but an actor that it has called; and the fleet's own failure.
        """
        self._check()
        if isinstance(error, RayTaskError) and not isinstance(error, EngineLost):
            raise error
        if seat.serving is not dead:
            return
        seat.lost |= dead.unanswered
        self._end(seat, dead, error)
        self._check()
        self._fill(seat)

    def _end(self, seat: Seat, dead: SeatedWorker, error: Exception) -> None:
        """Kill a worker, which may be dead, and count its restart."""
        if dead.condemned is None and isinstance(error, EngineLost | TimeoutError):  # its process lives
            self.on_quarantine(seat.name, reason_of(error))
        seat.last_death = dead.condemned = dead.condemned or reason_of(error)
        seat.in_a_row += 1
        self.on_death(seat.name, seat.last_death)
        ray.kill(dead.handle)  # in case it is unreachable and not dead
        if not self._restarts.count(asyncio.get_running_loop().time()):
            allowed = f"cluster.max_worker_restarts allows {self._restarts.allowed}"
            last = f"The last was {seat.name}: {seat.last_death}"
            self._fail(FleetLost(f"generation workers died or were quarantined {self._restarts}; {allowed}. {last}"))

    def _fail(self, failure: BaseException) -> None:
        """The fleet can be used no more. Kills all workers, so that everyone who waits for one gets the failure."""
        if self._failure is None:
            self._failure = failure
            for seat in self._seats.values():
                if (there := seat.serving) is not None:
                    ray.kill(there.handle)
                elif seat.worker is not None and not seat.worker.done():
                    seat.worker.cancel()

    def _fill(self, seat: Seat) -> None:
        seat.worker = asyncio.create_task(self._make(seat), name=f"make {seat.name}")
        seat.worker.add_done_callback(self._ended)

    async def _make(self, seat: Seat) -> SeatedWorker:
        while True:
            if seat.served and not isinstance(self._settings.weight_sync, CollectiveSyncConfig):
                await asyncio.sleep(delay_s(seat.in_a_row))  # a broadcast would wait for it
            life, seat.lives = seat.lives, seat.lives + 1
            options = self._names.options(f"{seat.name}.{life}") | generation_resources(self._settings) | PROBED
            made = SeatedWorker(start_actor(GenerationWorker, options, seat.name, *self._arguments))
            made.proven = not seat.served
            probing = self._watch(self._probe(seat, made), f"probes of {seat.name}")
            try:
                await within(made.handle.open.remote(), self._starts, "start", "cluster.start_timeout_s")
                await self._is_published.wait()
                await self._catch_up(made)
            except DEAD as error:
                probing.cancel()
                if isinstance(error, RayTaskError) and not isinstance(error, EngineLost):
                    raise
                self._end(seat, made, error)
                self._check()
            else:
                seat.served = True
                self.on_start(seat.name)
                return made

    async def _catch_up(self, made: SeatedWorker) -> None:
        """Have a worker load the newest weights and generate with them; then there is no newer publication."""
        assert self._published is not None, "publications come before their event"
        while made.version < self._published.version or not made.proven:
            published = self._published
            if made.version < published.version:
                made.version = await self._loaded(self._send_weights(made, published))
                assert made.version >= published.version, "a worker confirms what it was sent, or a later version"
            else:
                proof: Any = made.handle.prove.remote(next(made.numbers))
                await within(proof, self._proofs, "generate", "cluster.start_timeout_s")
                made.proven = True

    async def _probe(self, seat: Seat, there: SeatedWorker) -> None:
        try:
            reason = await unhealthy(there.handle.ping.remote, self._probes, self._cluster.hang_timeout_s)
        except RayActorError as error:
            self._bury(seat, there, error)
        else:
            self._quarantine(seat, there, reason)

    def _number_serving(self) -> int:
        """All before there are weights to serve."""
        if not self._is_published.is_set():
            return len(self._seats)
        return sum(seat.serving is not None for seat in self._seats.values())

    def _too_few(self, why: str) -> None:
        deaths = [f"{seat.name}: {seat.last_death}" for seat in self._seats.values() if seat.last_death]
        self._fail(FleetLost("; ".join([why, *deaths])))

    def _watch(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        self._watching.add(task)
        task.add_done_callback(self._watching.discard)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        """An error that nobody may be waiting for ends the run too."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)
