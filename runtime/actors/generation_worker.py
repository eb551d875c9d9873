"""The generation worker: the way of a group from an order to a row in the data plane.

Consumes: orders, a submission at a time; aborts; weights.
Waits for: the engine, then a reward worker, then the data plane.
Unblocked by: a group's last rollout and verdict.
Produces: answers, as groups end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ray.actor import ActorHandle
from ray.exceptions import RayActorError

from fsm.events import Attempt, FailureKind
from runtime.actors.reward_worker import verdict_threads
from runtime.answers import Aborted, Answer, Failed, Finished, Order
from runtime.data_plane import DataPlane
from runtime.generation.evaluation import Evaluation
from runtime.groups import GroupReceipt, Rollout, RolloutGroup
from runtime.settings import Settings
from runtime.tasks.errors import DataFailure
from runtime.weight_sync import Publication, make_fetcher

if TYPE_CHECKING:
    from runtime.actors.policy_host import PolicyHost
    from runtime.generation.rollouts import SampledGroup

    Sampled = tuple[Order, asyncio.Task[SampledGroup]]


Delivered = asyncio.Queue["asyncio.Task[list[Answer]]"]


@dataclass(slots=True)
class _Submission:
    """One call of `generate` that has answers outstanding."""

    delivered: Delivered
    collector: asyncio.Task[None]
    """Held so that it is not collected while it runs."""
    left: int
    """Orders without an answer."""


class GenerationWorker:
    """One of the fleet, which calls `open` first."""

    def __init__(
        self,
        name: str,
        settings: Settings,
        model_directory: Path,
        plane: DataPlane,
        reward_workers: Sequence[ActorHandle[Any]],
    ) -> None:
        self._name = name
        self._settings = settings
        self._model_directory = model_directory
        self._plane = plane
        self._reward_workers = cycle(reward_workers)
        self._weights = make_fetcher(settings, name)
        self._verdicts_wait = verdict_threads(settings.data, settings.cluster.reward_threads) > 1
        self._sampling: dict[Attempt, asyncio.Task[SampledGroup]] = {}
        self._deliveries: set[asyncio.Task[list[Answer]]] = set()
        self._submissions: dict[Attempt, _Submission] = {}
        self._stack = AsyncExitStack()
        self._host: PolicyHost

    async def open(self) -> None:
        """Load the model and start the engine."""
        from runtime.actors.policy_host import PolicyHost

        self._host = await PolicyHost.open(self._settings, self._model_directory, self._stack)

    async def load_weights(self, publication: Publication) -> int:
        """Load a version, or a later one, and return the version that runs now."""
        weights, version = await self._weights.fetch(publication)
        return await self._host.load_weights(weights, version)

    async def generate(self, orders: Sequence[Order]) -> list[Answer]:
        """One submission to the engine; returns the first answers, those that end together at once.

        The caller asks `more` for the others, until it has an answer to every order: a plain call is several times
        cheaper for the controller than an item of a Ray stream.
        Raises what is neither the data's nor a reward worker's fault: the engine's own failure.
        """
        started = time.perf_counter()
        samples, failed = self._host.start(orders)
        if not samples:
            return [*failed]
        delivered: Delivered = asyncio.Queue()
        collector = asyncio.create_task(self._collect(samples, started, delivered.put_nowait), name="collect")
        self._submissions[orders[0].attempt] = _Submission(delivered, collector, len(samples))
        return [*failed] if failed else await self.more(orders[0].attempt)

    async def more(self, submission: Attempt) -> list[Answer]:
        """The next answers to the submission whose first order has this attempt."""
        known = self._submissions[submission]
        batches = [await known.delivered.get()]
        while not known.delivered.empty():
            batches.append(known.delivered.get_nowait())
        answers = [answer for batch in batches for answer in batch.result()]
        known.left -= len(answers)
        if not known.left:
            del self._submissions[submission]
        return answers

    async def abort(self, attempts: Sequence[Attempt]) -> None:
        """Stop sampling attempts. Those that are rated already, or over, are passed over: their answers are late."""
        for attempt in attempts:
            if attempt in self._sampling:
                self._sampling[attempt].cancel()

    async def evaluate(self, label: str, indices: Sequence[int]) -> Evaluation:
        """Held-out accuracy on these prompts."""
        return await self._host.evaluate(label, indices)

    async def close(self) -> None:
        """Stop the engine, and whatever processes it has."""
        await self._stack.aclose()

    async def _collect(
        self, samples: Sequence[Sampled], started: float, deliver_to: Callable[[asyncio.Task[list[Answer]]], None]
    ) -> None:
        """Start a delivery for what ends in one go: one call each to a reward worker and the data plane.

        Where verdicts may have to wait, each group is delivered by itself.
        """
        ended: asyncio.Queue[Sampled] = asyncio.Queue()
        for order, sample in samples:
            self._sampling[order.attempt] = sample
            sample.add_done_callback(partial(_put, ended, (order, sample)))
        left = len(samples)
        while left:
            batch = [await ended.get()]
            while not ended.empty():
                batch.append(ended.get_nowait())
            left -= len(batch)
            for part in [[entry] for entry in batch] if self._verdicts_wait else [batch]:
                delivery = asyncio.create_task(self._deliver(part, time.perf_counter() - started), name="deliver")
                self._deliveries.add(delivery)
                delivery.add_done_callback(self._deliveries.discard)
                delivery.add_done_callback(deliver_to)

    async def _deliver(self, batch: Sequence[Sampled], generation_s: float) -> list[Answer]:
        """Have groups rated, and hand those over that will be trained. Raises what nobody foresaw."""
        answers: list[Answer] = []
        rated: list[tuple[Order, SampledGroup]] = []
        for order, sample in batch:
            del self._sampling[order.attempt]
            if sample.cancelled():
                answers.append(Aborted(order.attempt))
            elif isinstance(error := sample.exception(), DataFailure):
                answers.append(Failed(order.attempt, FailureKind.DATA, str(error)))
            else:
                rated.append((order, sample.result()))
        if not rated:
            return answers
        generated = time.perf_counter()
        try:
            verdicts = await next(self._reward_workers).score.remote(
                [(group.index, [sample.turns for sample in group.samples]) for _, group in rated]
            )
        except RayActorError as error:
            lost = f"a reward worker died: {error}"
            return [*answers, *(Failed(order.attempt, FailureKind.INFRA, lost) for order, _ in rated)]
        reward_s = time.perf_counter() - generated
        receipts: list[tuple[Order, GroupReceipt]] = []
        groups: list[RolloutGroup] = []
        for (order, group), verdict in zip(rated, verdicts, strict=True):
            if isinstance(verdict, str):
                answers.append(Failed(order.attempt, FailureKind.DATA, verdict))
                continue
            receipt = self._receipt(order, group, verdict, generation_s, reward_s)
            receipts.append((order, receipt))
            if not self._filters(receipt):
                groups.append(_group(group, receipt))
        rows = iter(await self._plane.put(groups) if groups else [])
        busy_s = self._host.busy_s
        for order, receipt in receipts:
            row = None if self._filters(receipt) else next(rows)
            answers.append(Finished(order.attempt, receipt, row, busy_s))
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


def _put(queue: asyncio.Queue[Sampled], entry: Sampled, _: object) -> None:
    """A callback of a task that is done."""
    queue.put_nowait(entry)
