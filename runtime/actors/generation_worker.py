"""The generation worker: a group's path from an order, by way of its rewards, to a row in the data plane.

Consumes: orders, one submission per exchange; aborts; weights. Calls begin in the order in which the fleet sent them.
Waits for: the engine and the environment, then a reward worker, then the data plane.
Unblocked by: a group's last rollout and verdict.
Produces: answers, as groups end.
"""

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from itertools import count, cycle
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayActorError

from fsm.events import Attempt, FailureKind
from runtime.actors.calls import CallOrder, LoopWatch, engine_errors
from runtime.actors.reward_worker import verdict_threads
from runtime.generation.engine import PolicyNotFinite
from runtime.groups import Evaluation, GroupReceipt, Rollout, RolloutGroup, columns_of
from runtime.naming import PROBE
from runtime.output.shared_output import not_shared
from runtime.settings import Settings
from runtime.tasks.base import Completion, DataFailure, InfraFault, Rated, Scored, Verdict
from runtime.tasks.environments.host import EnvironmentLost
from runtime.transport.answers import Aborted, Answer, AttemptFailed, AttemptFinished, Order, Published, RowsNotStored
from runtime.transport.data_plane import DataPlane
from runtime.transport.weight_sync import make_fetcher

if TYPE_CHECKING:
    from runtime.actors.policy_host import PolicyHost
    from runtime.generation.rollouts import SampledGroup

    Ended = tuple[Order, asyncio.Task[SampledGroup], float]
    """The order, its samples, and the seconds that sampling took."""


RATING_TRIES = 8
"""Tries to have held-out rollouts rated by reward workers that die, or call what is out of reach."""
REWARD_LOOK_S = 0.5
"""Between two looks whether a reward worker that died is back."""


class GenerationWorker:
    """One worker of the fleet, which calls `open` first and `close` last.

    Every call between those is numbered from 0 and begins in that order (`CallOrder`). So an abort finds its orders, of
    two exchanges the later one keeps waiting, and a validation measures the version that was loaded before it.
    """

    def __init__(
        self,
        name: str,
        settings: Settings,
        model_directory: Path,
        plane: DataPlane,
        reward_workers: Sequence[ActorHandle[Any]],
        first_prompt: int,
        began_with: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """began_with: `Start.began_with`; data that has changed by the time that this worker restarts is refused."""
        self._name = name
        self._settings = settings
        self._model_directory = model_directory
        self._plane = plane
        self._reward_workers = cycle(reward_workers)
        self._first_prompt, self._began_with = first_prompt, began_with
        self._fetcher = make_fetcher(settings, name)
        self._loading = asyncio.Lock()
        """One version at a time, in the order in which they were sent."""
        self._order = CallOrder()
        cluster = settings.cluster
        self._verdicts_wait = verdict_threads(settings.data, cluster.reward_threads, cluster.reward_processes) > 1
        self._sampling: dict[Attempt, asyncio.Task[SampledGroup]] = {}
        """Attempts that are being sampled or wait for their delivery."""
        self._ended: list[Ended] = []
        """Sampled in this turn of the loop."""
        self._deliveries: set[asyncio.Task[list[Answer]]] = set()
        """Under way."""
        self._delivered: list[asyncio.Task[list[Answer]]] = []
        """Done, and not yet returned by an exchange."""
        self._news = asyncio.Event()
        """Wakes the exchange that waits: answers are ready, or a later exchange has begun."""
        self._newest = -1
        """The exchange that waits for answers; those before it return."""
        self._stack = AsyncExitStack()
        self._loop = LoopWatch()
        self._host: PolicyHost

    @ray.method(concurrency_group=PROBE)
    async def ping(self) -> float:
        """Seconds for which the worker's event loop has not turned. Answered by another thread, also while it stands.

        A process that does not answer is frozen or unreachable; one whose loop stands computes, or hangs.
        """
        return self._loop.look()

    async def open(self) -> None:
        """Load the model and start the engine. Raises OutputNotShared."""
        if not self._model_directory.is_dir():
            raise not_shared(self._name, self._model_directory, "there is no such directory")
        from runtime.actors.policy_host import PolicyHost

        with engine_errors():
            self._host = await PolicyHost.open(
                self._settings, self._model_directory, self._first_prompt, self._stack, self._began_with
            )
        self._loop.watch()

    async def prove(self, number: int) -> None:
        """Generate a few tokens: what a restarted worker must do before it gets attempts."""
        await self._order.begin(number)
        with engine_errors():
            await self._host.prove()

    async def load_weights(self, number: int, published: Published) -> int:
        """Load a version, unless it or a later one runs already, and return the version that runs now."""
        await self._order.begin(number)
        async with self._loading:
            with engine_errors():
                return await self._load(published)

    async def _load(self, published: Published) -> int:
        if self._host.version < published.version:
            weights, version = await self._fetcher.fetch(await published.publication)
            await self._host.load_weights(weights, version)
        return self._host.version

    async def exchange(self, number: int, orders: Sequence[Order]) -> list[Answer]:
        """Start orders as one submission to the engine; return the next answers to these and earlier orders.

        At least one answer, unless a later exchange begins meanwhile and takes over the waiting.
        Raises EngineLost, and other errors of the engine; those of data and reward workers are answers.
        """
        encoded = await self._host.encode(orders)  # before its turn, in which an abort must find its orders
        await self._order.begin(number)
        answers: list[Answer] = []
        if orders:
            started = time.perf_counter()
            samples, failed = self._host.start(orders, encoded)
            answers += failed
            for order, sample in samples:
                self._sampling[order.attempt] = sample
                sample.add_done_callback(partial(self._end, order, started))
        self._newest = number
        self._news.set()
        while not answers and not self._delivered and number == self._newest:
            self._news.clear()
            await self._news.wait()
        delivered, self._delivered = self._delivered, []
        with engine_errors():
            for delivery in delivered:
                answers += delivery.result()
        return answers

    async def abort(self, number: int, attempts: Sequence[Attempt]) -> None:
        """Stop sampling attempts. Those that are being rated, or over, are skipped: their answers come late.

        An unknown attempt is over, since the exchange with its order has begun.
        """
        await self._order.begin(number)
        for attempt in attempts:
            if attempt in self._sampling:
                self._sampling[attempt].cancel()

    async def evaluate(self, number: int, name: str, label: str, indices: Sequence[int]) -> Evaluation:
        """Measure these prompts of a set."""
        prompts = await self._host.encode_held_out(name, indices)  # before its turn, so that it measures its version
        await self._order.begin(number)
        with engine_errors():
            evaluation = await self._host.evaluate(name, label, prompts, partial(self._rate_held_out, name))
        return evaluation.without_turns()

    async def _rate_held_out(self, name: str, groups: "Sequence[SampledGroup]") -> Scored:
        """Have rollouts of a set rated. Groups with infra failures are rated again after a backoff.

        Raises RayActorError if reward workers die RATING_TRIES times; other infra failures stay after so many tries.
        """
        asked = to_be_rated(groups)
        rated: list[tuple[Rated, ...]] = [()] * len(asked)
        left, notice = list(range(len(asked))), None
        backoff = self._settings.async_rl.rollout_failure
        for tried in count(1):
            try:
                scored: Scored = await next(self._reward_workers).score.remote([asked[place] for place in left], name)
            except RayActorError:
                if tried == RATING_TRIES:
                    raise
            else:
                for place, verdicts in zip(left, scored.groups, strict=True):
                    rated[place] = verdicts
                left = [place for place in left if any(isinstance(each, InfraFault) for each in rated[place])]
                notice = notice or scored.notice
                if not left or tried == RATING_TRIES:
                    break
            await asyncio.sleep(min(backoff.max_backoff_s, backoff.backoff_base_s * 2.0**tried))
        return Scored(rated, notice)

    async def close(self) -> None:
        """Stop the engine and its processes."""
        await self._stack.aclose()

    def _end(self, order: Order, started: float, sample: "asyncio.Task[SampledGroup]") -> None:
        """Groups that end in one turn of the loop are delivered together."""
        if not self._ended:
            asyncio.get_running_loop().call_soon(self._start_deliveries)
        self._ended.append((order, sample, time.perf_counter() - started))

    def _start_deliveries(self) -> None:
        """One call each to a reward worker and the data plane; one per group if verdicts may be slow."""
        batch, self._ended = self._ended, []
        for part in [[entry] for entry in batch] if self._verdicts_wait else [batch]:
            delivery = asyncio.create_task(self._deliver(part), name="deliver")
            self._deliveries.add(delivery)
            delivery.add_done_callback(self._end_delivery)

    def _end_delivery(self, delivery: asyncio.Task[list[Answer]]) -> None:
        self._deliveries.discard(delivery)
        self._delivered.append(delivery)
        self._news.set()

    async def _deliver(self, batch: "Sequence[Ended]") -> list[Answer]:
        """Have groups rated, and put those that will be trained into the data plane. Raises unforeseen errors."""
        answers: list[Answer] = []
        rated: list[tuple[Order, SampledGroup, float]] = []
        for order, sample, generation_s in batch:
            del self._sampling[order.attempt]
            if sample.cancelled():
                answers.append(Aborted(order.attempt))
            elif isinstance(error := sample.exception(), DataFailure):
                answers.append(AttemptFailed(order.attempt, FailureKind.DATA, str(error)))
            elif isinstance(error, EnvironmentLost):
                answers.append(AttemptFailed(order.attempt, FailureKind.INFRA, str(error), of_worker=True))
            elif isinstance(error, PolicyNotFinite):
                answers.append(AttemptFailed(order.attempt, FailureKind.INFRA, f"on {self._name}: {error}"))
            else:
                rated.append((order, sample.result(), generation_s))
        if not rated:
            return answers
        generated = time.perf_counter()
        try:
            scored = self._rated_by_environment([group for _, group, _ in rated])
            if scored is None:
                scored = await next(self._reward_workers).score.remote(to_be_rated(group for _, group, _ in rated))
        except RayActorError as error:
            await self._until_one_rates()
            lost = f"a reward worker died: {error}"
            return [*answers, *(AttemptFailed(order.attempt, FailureKind.INFRA, lost) for order, _, _ in rated)]
        reward_s = time.perf_counter() - generated
        receipts: list[tuple[Order, GroupReceipt]] = []
        groups: list[RolloutGroup] = []
        for (order, group, generation_s), siblings in zip(rated, scored.groups, strict=True):
            verdicts = [verdict for verdict in siblings if not isinstance(verdict, str)]
            if len(verdicts) < len(siblings):
                answers.append(AttemptFailed(order.attempt, *_why_no_verdict(siblings), scored.notice))
                continue
            receipt = self._receipt(order, group, verdicts, generation_s, reward_s)
            rated_group = _group(group, receipt)
            samples = self._host.samples.take(group, rated_group, verdicts)
            receipts.append((order, replace(receipt, samples=samples)))
            if not self._filters(receipt):
                groups.append(rated_group)
        try:
            rows = iter(await self._plane.put(groups) if groups else [])
        except RowsNotStored as error:
            kind, why = FailureKind.INFRA, str(error)
            return [*answers, *(AttemptFailed(order.attempt, kind, why, of_worker=True) for order, _ in receipts)]
        busy_s = self._host.busy_s
        for order, receipt in receipts:
            row = None if self._filters(receipt) else next(rows)
            answers.append(AttemptFinished(order.attempt, receipt, row, busy_s, scored.notice))
        return answers

    async def _until_one_rates(self) -> None:
        """Wait until a reward worker answers, so that attempts are not used up while one restarts.

        At most `cluster.probe_timeout_s`: the attempts are then lost again, until their budget ends the run (L7).
        """
        loop = asyncio.get_running_loop()
        until_s = loop.time() + self._settings.cluster.probe_timeout_s
        while (left_s := until_s - loop.time()) > 0:
            try:
                await asyncio.wait_for(next(self._reward_workers).ping.remote(), left_s)
            except RayActorError:
                await asyncio.sleep(min(REWARD_LOOK_S, left_s))
            except TimeoutError:
                return
            else:
                return

    def _rated_by_environment(self, groups: "Sequence[SampledGroup]") -> Scored | None:
        """The verdicts that came with the rollouts; None if reward workers are to rate them."""
        verdicts = [group.own_verdicts for group in groups]
        return Scored(verdicts, self._host.take_printed()) if verdicts[0] else None

    def _filters(self, receipt: GroupReceipt) -> bool:
        """Dynamic sampling will filter the group, so nobody reads its data (L1)."""
        return receipt.zero_variance and self._settings.grpo.use_dynamic_sampling

    def _receipt(
        self,
        order: Order,
        group: "SampledGroup",
        verdicts: Sequence[Verdict],
        generation_s: float,
        reward_s: float,
    ) -> GroupReceipt:
        return GroupReceipt(
            prompt=group.prompt,
            worker=self._name,
            start_weight=order.start_weight,
            end_weight=group.end_weight,
            rewards=tuple(verdict.reward for verdict in verdicts),
            correct=tuple(verdict.correct for verdict in verdicts),
            parts=columns_of([verdict.parts for verdict in verdicts]),
            completion_tokens=tuple(sample.completion.tokens for sample in group.samples),
            finished=tuple(sample.finished for sample in group.samples),
            repetition=tuple(sample.repetition for sample in group.samples),
            distinct=len({sample.turns for sample in group.samples}),
            generation_s=generation_s,
            reward_s=reward_s,
        )


def to_be_rated(groups: "Iterable[SampledGroup]") -> list[tuple[int, list[Completion]]]:
    """The arguments of a reward worker: for each group the index of its item, and each sibling's completion."""
    return [(group.index, [sample.completion for sample in group.samples]) for group in groups]


def _group(sampled: "SampledGroup", receipt: GroupReceipt) -> RolloutGroup:
    return RolloutGroup(
        prompt=receipt.prompt,
        rollouts=tuple(
            Rollout(sample.token_ids, sample.loss_mask, sample.logprobs, reward, sample.finished)
            for sample, reward in zip(sampled.samples, receipt.rewards, strict=True)
        ),
        start_weight=receipt.start_weight,
        end_weight=receipt.end_weight,
    )


def _why_no_verdict(siblings: Sequence[Rated]) -> tuple[FailureKind, str]:
    """The kind of a group's failure, its first failure of that kind, and the number of others.

    A data failure of one sibling makes it the group's, since it comes again however often the others are tried.
    """
    failures = [verdict for verdict in siblings if isinstance(verdict, str)]
    of_data = [failure for failure in failures if not isinstance(failure, InfraFault)]
    more = f" (and {len(failures) - 1} more of its {len(siblings)} rollouts)" if len(failures) > 1 else ""
    return (FailureKind.DATA, of_data[0] + more) if of_data else (FailureKind.INFRA, failures[0] + more)
