"""The generation worker: the way of a group from an order to a row in the data plane.

Consumes: orders, a submission an exchange; aborts; weights. Calls begin in the order in which the fleet sent them.
Waits for: the engine, then a reward worker, then the data plane.
Unblocked by: a group's last rollout and verdict.
Produces: answers, as groups end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from itertools import count, cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ray.actor import ActorHandle
from ray.exceptions import RayActorError

from fsm.events import Attempt, FailureKind
from runtime.actors.call_order import CallOrder
from runtime.actors.reward_worker import verdict_threads
from runtime.groups import Evaluation, GroupReceipt, Rollout, RolloutGroup
from runtime.output.shared_output import not_shared
from runtime.settings import Settings
from runtime.tasks.base import DataFailure, Rated, Scored
from runtime.transport.answers import Aborted, Answer, AttemptFailed, AttemptFinished, Order, Published
from runtime.transport.data_plane import DataPlane
from runtime.transport.weight_sync import make_fetcher

if TYPE_CHECKING:
    from runtime.actors.policy_host import PolicyHost
    from runtime.generation.rollouts import SampledGroup

    Ended = tuple[Order, asyncio.Task[SampledGroup], float]
    """The order, what was sampled, and how many seconds that took."""


RATING_TRIES = 8
"""How often held-out rollouts are given to reward workers that die."""


class GenerationWorker:
    """One of the fleet, which calls `open` first, and `close` last.

    Every call between those carries its number, from 0, and begins in that order (`CallOrder`): so an abort finds its
    orders, of two exchanges the one that was sent last goes on waiting, and a validation measures what was loaded
    before it was asked for and not what is loaded after.
    """

    def __init__(
        self,
        name: str,
        settings: Settings,
        model_directory: Path,
        plane: DataPlane,
        reward_workers: Sequence[ActorHandle[Any]],
        first_prompt: int,
        began_with: str | None = None,
    ) -> None:
        """began_with: `Origin.prompts`, against a file that was changed before this worker was made anew."""
        self._name = name
        self._settings = settings
        self._model_directory = model_directory
        self._plane = plane
        self._reward_workers = cycle(reward_workers)
        self._first_prompt, self._began_with = first_prompt, began_with
        self._weights = make_fetcher(settings, name)
        self._loading = asyncio.Lock()
        """One version at a time, in the order in which they were sent."""
        self._order = CallOrder()
        cluster = settings.cluster
        self._verdicts_wait = verdict_threads(settings.data, cluster.reward_threads, cluster.reward_processes) > 1
        self._sampling: dict[Attempt, asyncio.Task[SampledGroup]] = {}
        """Attempts that are being sampled, or will be delivered next."""
        self._ended: list[Ended] = []
        """Sampled in this turn of the loop."""
        self._deliveries: set[asyncio.Task[list[Answer]]] = set()
        """Under way."""
        self._delivered: list[asyncio.Task[list[Answer]]] = []
        """Done, and not yet returned by an exchange."""
        self._news = asyncio.Event()
        """For the exchange that waits: something is delivered, or a later exchange has begun."""
        self._newest = -1
        """The exchange that waits for answers; those before it return."""
        self._stack = AsyncExitStack()
        self._host: PolicyHost

    async def open(self) -> None:
        """Load the model and start the engine. Raises OutputNotShared."""
        if not self._model_directory.is_dir():
            raise not_shared(self._name, self._model_directory, "there is no such directory")
        from runtime.actors.policy_host import PolicyHost

        self._host = await PolicyHost.open(
            self._settings, self._model_directory, self._first_prompt, self._stack, self._began_with
        )

    async def load_weights(self, number: int, published: Published) -> int:
        """Load a version, unless it or a later one runs already, and return the version that runs now."""
        await self._order.begin(number)
        async with self._loading:
            if self._host.version < published.version:
                weights, version = await self._weights.fetch(await published.publication)
                await self._host.load_weights(weights, version)
            return self._host.version

    async def exchange(self, number: int, orders: Sequence[Order]) -> list[Answer]:
        """Start orders as one submission to the engine; returns the next answers to whatever there is to answer.

        At least one, unless a later exchange begins while this one waits: that one waits then, and this one returns.
        Raises what is neither the data's nor a reward worker's fault: the engine's own failure.
        """
        await self._order.begin(number)
        answers: list[Answer] = []
        if orders:
            started = time.perf_counter()
            samples, failed = self._host.start(orders)
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
        for delivery in delivered:
            answers += delivery.result()
        return answers

    async def abort(self, number: int, attempts: Sequence[Attempt]) -> None:
        """Stop sampling attempts. Those that are rated already, or over, are passed over: their answers are late.

        An attempt that is not there is over, since the exchange with its order has begun.
        """
        await self._order.begin(number)
        for attempt in attempts:
            if attempt in self._sampling:
                self._sampling[attempt].cancel()

    async def evaluate(self, number: int, label: str, indices: Sequence[int]) -> Evaluation:
        """Held-out accuracy on these prompts."""
        await self._order.begin(number)
        return await self._host.evaluate(label, indices, self._rate_held_out)

    async def _rate_held_out(self, groups: Sequence[SampledGroup]) -> Scored:
        """Where training's verdicts are made. A reward worker that dies is waited for, and has it done again.

        Raises RayActorError when it has died RATING_TRIES times.
        """
        asked = to_be_rated(groups)
        backoff = self._settings.async_rl.rollout_failure
        for tried in count(1):
            try:
                scored: Scored = await next(self._reward_workers).score.remote(asked, "validation")
            except RayActorError:
                if tried == RATING_TRIES:
                    raise
                await asyncio.sleep(min(backoff.max_backoff_s, backoff.backoff_base_s * 2.0**tried))
            else:
                break
        return scored

    async def close(self) -> None:
        """Stop the engine, and whatever processes it has."""
        await self._stack.aclose()

    def _end(self, order: Order, started: float, sample: asyncio.Task[SampledGroup]) -> None:
        """What ends in one turn of the loop is delivered together."""
        if not self._ended:
            asyncio.get_running_loop().call_soon(self._start_deliveries)
        self._ended.append((order, sample, time.perf_counter() - started))

    def _start_deliveries(self) -> None:
        """One call each to a reward worker and the data plane; where verdicts may have to wait, for each group."""
        batch, self._ended = self._ended, []
        for part in [[entry] for entry in batch] if self._verdicts_wait else [batch]:
            delivery = asyncio.create_task(self._deliver(part), name="deliver")
            self._deliveries.add(delivery)
            delivery.add_done_callback(self._end_delivery)

    def _end_delivery(self, delivery: asyncio.Task[list[Answer]]) -> None:
        self._deliveries.discard(delivery)
        self._delivered.append(delivery)
        self._news.set()

    async def _deliver(self, batch: Sequence[Ended]) -> list[Answer]:
        """Have groups rated, and hand those over that will be trained. Raises what nobody foresaw."""
        answers: list[Answer] = []
        rated: list[tuple[Order, SampledGroup, float]] = []
        for order, sample, generation_s in batch:
            del self._sampling[order.attempt]
            if sample.cancelled():
                answers.append(Aborted(order.attempt))
            elif isinstance(error := sample.exception(), DataFailure):
                answers.append(AttemptFailed(order.attempt, FailureKind.DATA, str(error)))
            else:
                rated.append((order, sample.result(), generation_s))
        if not rated:
            return answers
        generated = time.perf_counter()
        try:
            scored: Scored = await next(self._reward_workers).score.remote(to_be_rated(group for _, group, _ in rated))
        except RayActorError as error:
            lost = f"a reward worker died: {error}"
            return [*answers, *(AttemptFailed(order.attempt, FailureKind.INFRA, lost) for order, _, _ in rated)]
        reward_s = time.perf_counter() - generated
        receipts: list[tuple[Order, GroupReceipt]] = []
        groups: list[RolloutGroup] = []
        for (order, group, generation_s), siblings in zip(rated, scored.groups, strict=True):
            verdicts = [verdict for verdict in siblings if not isinstance(verdict, str)]
            if len(verdicts) < len(siblings):
                answers.append(AttemptFailed(order.attempt, FailureKind.DATA, _why_no_verdict(siblings), scored.notice))
                continue
            receipt = self._receipt(order, group, verdicts, generation_s, reward_s)
            receipts.append((order, receipt))
            if not self._filters(receipt):
                groups.append(_group(group, receipt))
        rows = iter(await self._plane.put(groups) if groups else [])
        busy_s = self._host.busy_s
        for order, receipt in receipts:
            row = None if self._filters(receipt) else next(rows)
            answers.append(AttemptFinished(order.attempt, receipt, row, busy_s, scored.notice))
        return answers

    def _filters(self, receipt: GroupReceipt) -> bool:
        """Dynamic sampling will filter the group, so nobody reads its data (L1)."""
        return receipt.zero_variance and self._settings.grpo.use_dynamic_sampling

    def _receipt(
        self,
        order: Order,
        group: SampledGroup,
        verdicts: Sequence[tuple[float, bool]],
        generation_s: float,
        reward_s: float,
    ) -> GroupReceipt:
        return GroupReceipt(
            prompt=group.prompt,
            worker=self._name,
            start_weight=order.start_weight,
            end_weight=group.end_weight,
            rewards=tuple(reward for reward, _ in verdicts),
            correct=tuple(correct for _, correct in verdicts),
            completion_tokens=tuple(int(sample.loss_mask.sum()) for sample in group.samples),
            finished=tuple(sample.finished for sample in group.samples),
            generation_s=generation_s,
            reward_s=reward_s,
        )


def to_be_rated(groups: Iterable[SampledGroup]) -> list[tuple[int, list[tuple[str, ...]]]]:
    """What a reward worker is asked about groups: the task's item, and what each sibling said in its turns."""
    return [(group.index, [sample.turns for sample in group.samples]) for group in groups]


def _group(sampled: SampledGroup, receipt: GroupReceipt) -> RolloutGroup:
    return RolloutGroup(
        prompt=receipt.prompt,
        rollouts=tuple(
            Rollout(sample.token_ids, sample.loss_mask, sample.logprobs, reward, sample.finished)
            for sample, reward in zip(sampled.samples, receipt.rewards, strict=True)
        ),
        start_weight=receipt.start_weight,
        end_weight=receipt.end_weight,
    )


def _why_no_verdict(siblings: Sequence[Rated]) -> str:
    """The first failure of a group, and how many more there are."""
    failures = [verdict for verdict in siblings if isinstance(verdict, str)]
    more = f" (and {len(failures) - 1} more of its {len(siblings)} rollouts)" if len(failures) > 1 else ""
    return failures[0] + more
