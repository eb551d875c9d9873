"""Generation workers that answer when the dice say, and die."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from fsm.events import Attempt, FailureKind
from runtime.actors.fleet import Fleet
from runtime.groups import Evaluation, GroupReceipt, HeldOutPrompt, HeldOutRollout
from runtime.naming import worker_names
from runtime.simulation.plan import RESTART_S, ROLLOUT_S, SYNC_S, Fault
from runtime.simulation.witness import Witness
from runtime.simulation.world import SimulatedPlane, SimulatedWorld
from runtime.tasks.base import Verdict
from runtime.transport.answers import (
    Aborted,
    Answer,
    AttemptFailed,
    AttemptFinished,
    Order,
    Published,
    WorkerLost,
)

REPLY_S = 2.0
"""How long an answer travels."""


@dataclass(slots=True)
class _Desk:
    """One worker's place."""

    name: str
    life: int = 0
    """How often it has died."""
    version: int = -1
    opened: asyncio.Event = field(default_factory=asyncio.Event)
    sending: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a caller waits for the worker: first come, first served."""
    unanswered: dict[Attempt, None] = field(default_factory=dict)
    running: dict[Attempt, None] = field(default_factory=dict)
    due: list[Answer] = field(default_factory=list)
    """Answers that no exchange has taken yet."""
    lost: dict[Attempt, None] = field(default_factory=dict)
    """Attempts that died with it, and that no exchange has reported yet."""
    last_death: str = ""
    exchanges: int = 0
    waiters: list[asyncio.Future[None]] = field(default_factory=list)

    def wake(self) -> None:
        """Something is new."""
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def news(self) -> None:
        """Until something is new."""
        self.waiters.append(asyncio.get_running_loop().create_future())
        await self.waiters[-1]

    def take_lost(self) -> list[Attempt]:
        lost, self.lost = list(self.lost), {}
        return lost


class SimulatedFleet(Fleet):
    """What pumps know of `Fleet`, with the guarantees of its docstrings, and no Ray."""

    def __init__(self, world: SimulatedWorld, witness: Witness, plane: SimulatedPlane) -> None:
        self._world = world
        self._witness = witness
        self._plane = plane
        self._desks = {name: _Desk(name) for name in worker_names(world.plan.settings)}
        self._version = -1
        """The version that was last published."""
        self._filters = bool(world.plan.setup.limits.dynamic_sampling)
        self.undelivered: dict[Attempt, set[int]] = {}
        """Rows of answers that the pump was not given, by attempt."""
        self.on_death = lambda name, reason: None
        self.on_start = lambda name: None
        for desk in self._desks.values():
            desk.opened.set()

    # What the pumps call

    @property
    def workers(self) -> tuple[str, ...]:
        return tuple(self._desks)

    def expired(self, worker: str, attempts: Sequence[Attempt]) -> None:
        """No worker is restarted for it here."""

    async def exchange(self, worker: str, orders: Sequence[Order]) -> Sequence[Answer]:
        desk = self._desks[worker]
        self._witness.exchanges(worker, orders)
        async with desk.sending:
            await desk.opened.wait()
            if desk.lost and not orders:
                raise self._lost(desk)
            self._begin(desk, orders)
            desk.exchanges += 1
            mine, life = desk.exchanges, desk.life
            desk.wake()
        while desk.life == life and mine == desk.exchanges and not desk.due:
            await desk.news()
        if desk.life == life and mine != desk.exchanges:
            return []
        answers, desk.due = desk.due, []
        if answers:
            await asyncio.sleep(self._world.takes_s(REPLY_S))
        if desk.life != life and not (answers and self._world.strikes(Fault.ANSWER_AFTER_DEATH, worker)):
            raise self._lost(desk)
        return self._reply(desk, answers)

    async def abort(self, worker: str, attempts: Sequence[Attempt]) -> None:
        desk = self._desks[worker]
        self._witness.aborts(attempts)
        async with desk.sending:
            await desk.opened.wait()
        await asyncio.sleep(self._world.takes_s(REPLY_S))
        for attempt in attempts:
            if attempt in desk.running:
                del desk.running[attempt]
                desk.due.append(Aborted(attempt))
        desk.wake()

    async def load(self, published: Published) -> None:
        self._version = published.version
        await asyncio.gather(*(self._take_weights(desk, published.version) for desk in self._desks.values()))
        self._witness.loaded = published.version

    async def evaluate(self, name: str, label: str, progressed: Callable[[], None]) -> Evaluation:
        version = self._version
        self._witness.measures(version)
        for desk in self._desks.values():
            await asyncio.sleep(self._world.takes_s(ROLLOUT_S))
            while self._world.strikes(Fault.EVALUATION_REPEATED, desk.name):
                self.kill(desk.name, "it died in a validation")
                await desk.opened.wait()
                await asyncio.sleep(self._world.takes_s(ROLLOUT_S))
            self._witness.progressed()
            progressed()
        return evaluation_of(version)

    # What the world does

    def kill(self, worker: str, reason: str) -> None:
        """The worker dies with everything that it has not answered, and is restarted."""
        desk = self._desks[worker]
        if not desk.opened.is_set() or self._witness.deaf:
            return
        desk.life += 1
        desk.last_death = reason
        desk.lost |= desk.unanswered
        desk.unanswered, desk.running, desk.due, desk.version = {}, {}, [], -1
        desk.opened.clear()
        self.on_death(worker, reason)
        self._restart(desk)
        desk.wake()

    def take_over(self, attempts: Sequence[Attempt]) -> None:
        """Some attempts of an earlier controller are answered to this one."""
        for attempt in attempts:
            if self._world.strikes(Fault.EARLIER_LIFE, f"{attempt}"):
                desk = self._world.random.choice(list(self._desks.values()))
                delay_s = self._world.takes_s(ROLLOUT_S)
                asyncio.get_running_loop().call_later(delay_s, self._finish, desk, desk.life, Order(attempt, 0), "good")

    @property
    def under_way(self) -> tuple[Attempt, ...]:
        """Attempts that the controller has not been answered."""
        return tuple(attempt for desk in self._desks.values() for attempt in desk.unanswered)

    def _restart(self, desk: _Desk) -> None:
        asyncio.get_running_loop().call_later(self._world.takes_s(RESTART_S), self._open, desk)

    def _open(self, desk: _Desk) -> None:
        if self._world.strikes(Fault.WORKER_DIES_AGAIN, desk.name):
            self.on_death(desk.name, "it died as it started")
            self._restart(desk)
            return
        desk.version = self._version
        desk.opened.set()
        self.on_start(desk.name)

    async def _take_weights(self, desk: _Desk, version: int) -> None:
        while True:
            async with desk.sending:
                await desk.opened.wait()
                life = desk.life
                if desk.version == version:
                    return
            slow = 10.0 if self._world.strikes(Fault.SYNC_SLOW, desk.name) else 1.0
            await asyncio.sleep(slow * self._world.takes_s(SYNC_S))
            if self._world.strikes(Fault.WORKER_DIES_LOADING, desk.name):
                self.kill(desk.name, "it died as it loaded weights")
            if desk.life == life:
                desk.version = version
                return

    def _lost(self, desk: _Desk) -> WorkerLost:
        lost = desk.take_lost()
        self._witness.reported_lost(desk.name, lost)
        return WorkerLost(desk.name, desk.last_death, lost)

    def _reply(self, desk: _Desk, answers: Sequence[Answer]) -> list[Answer]:
        """The answers, and those of attempts that were lost before this exchange."""
        for answer in answers:
            desk.unanswered.pop(answer.attempt, None)
            desk.lost.pop(answer.attempt, None)
            if isinstance(answer, AttemptFinished):
                self.undelivered.get(answer.attempt, set()).discard(answer.row)
        why = f"generation worker {desk.name} died: {desk.last_death}"
        lost = [AttemptFailed(attempt, FailureKind.INFRA, why) for attempt in desk.take_lost()]
        self._witness.answered(desk.name, [*answers, *lost])
        return [*answers, *lost]

    def _begin(self, desk: _Desk, orders: Sequence[Order]) -> None:
        self._witness.takes_orders(orders, desk.version)
        for order in orders:
            desk.unanswered[order.attempt] = None
            desk.running[order.attempt] = None
            fate, after_s = self._fate(order)
            if fate != "never":
                finish = partial(self._finish, desk, desk.life, order, fate)
                asyncio.get_running_loop().call_later(after_s, finish)

    def _fate(self, order: Order) -> tuple[str, float]:
        """What comes of an order, and after how many seconds."""
        world, what = self._world, f"prompt {order.attempt.prompt}"
        after_s = world.takes_s(ROLLOUT_S)
        if world.strikes(Fault.HANG, what):
            return "never", 0.0
        if world.strikes(Fault.TOO_LATE, what):
            timeout_s = world.plan.settings.async_rl.rollout_failure.rollout_timeout_s or 0.0
            return "good", timeout_s + after_s
        for fault in (Fault.INFRA, Fault.DATA, Fault.VERDICT):
            if world.strikes(fault, what):
                return fault, after_s
        return ("flat" if world.random.random() < world.plan.flat_share else "good"), after_s

    def _finish(self, desk: _Desk, life: int, order: Order, fate: str) -> None:
        """An attempt is over, unless its worker died or it was stopped meanwhile."""
        ours = order.attempt in desk.running
        stale = order.attempt not in desk.unanswered
        if self._witness.deaf or desk.life != life or not (ours or stale):
            return
        desk.running.pop(order.attempt, None)
        answer = self._answer(desk.name, order, fate)
        desk.due.append(answer)
        if self._world.strikes(Fault.TWICE, f"prompt {order.attempt.prompt}"):
            delay_s = self._world.takes_s(ROLLOUT_S)
            asyncio.get_running_loop().call_later(delay_s, self._again, desk, desk.life, answer)
        self._world.random.shuffle(desk.due)
        desk.wake()

    def _again(self, desk: _Desk, life: int, answer: Answer) -> None:
        if desk.life == life and not self._witness.deaf:
            desk.due.append(answer)
            desk.wake()

    def _answer(self, worker: str, order: Order, fate: str) -> Answer:
        attempt = order.attempt
        match fate:
            case Fault.INFRA:
                return AttemptFailed(attempt, FailureKind.INFRA, f"{worker} ran out of memory")
            case Fault.DATA:
                return AttemptFailed(attempt, FailureKind.DATA, "the prompt is too long")
            case Fault.VERDICT:
                return AttemptFailed(attempt, FailureKind.DATA, "the verifier raised ZeroDivisionError")
        rewards = (1.0, 1.0) if fate == "flat" else (0.0, 1.0)
        row = None if self._filters and fate == "flat" else self._plane.add(attempt)
        if row is not None:
            self.undelivered.setdefault(attempt, set()).add(row)
            if self._world.strikes(Fault.ROW_UNREADABLE, f"prompt {attempt.prompt}"):
                self._plane.take([row])
        return AttemptFinished(attempt, receipt_of(attempt.prompt, worker, order.start_weight, rewards), row, 0.0)


def receipt_of(prompt: int, worker: str, start_weight: int, rewards: tuple[float, ...]) -> GroupReceipt:
    """Of rollouts of three tokens, right where the reward is 1."""
    return GroupReceipt(
        prompt=prompt,
        worker=worker,
        start_weight=start_weight,
        end_weight=start_weight,
        rewards=rewards,
        correct=tuple(reward == 1.0 for reward in rewards),
        completion_tokens=tuple(3 for _ in rewards),
        finished=tuple(True for _ in rewards),
        repetition=tuple(0.0 for _ in rewards),
        generation_s=0.0,
        reward_s=0.0,
    )


def evaluation_of(version: int = 0, correct: Sequence[bool] = (True, False)) -> Evaluation:
    """A set of as many prompts, measured under a version."""
    prompts = (
        HeldOutPrompt(index, (HeldOutRollout(Verdict(float(right), right), 3, True),))
        for index, right in enumerate(correct)
    )
    return Evaluation(tuple(prompts), version, version)
