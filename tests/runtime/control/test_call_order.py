"""Calls to an asyncio actor arrive in any order; they begin in the order in which they were sent."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from itertools import permutations
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsm.errors import InvariantBroken
from fsm.events import Attempt
from runtime.actors.calls import CallOrder
from runtime.actors.generation_worker import GenerationWorker
from runtime.actors.reward_worker import RewardWorker
from runtime.groups import Evaluation
from runtime.transport.answers import Aborted, Answer, AttemptFinished, Publication, Published
from tests.runtime.control.fake_actors import (
    FakeEngine,
    KeepingPlane,
    LocalActor,
    Post,
    opened_worker,
    order,
    published,
    settings_of,
    settle,
)

LIMIT_S = 60.0
A, B, C = (order(prompt, 1) for prompt in range(3))


@given(st.permutations(range(6)))
def test_calls_begin_in_the_order_of_their_numbers_whatever_order_they_arrive_in(arrivals: Sequence[int]) -> None:
    begun: list[int] = []

    async def call(calls: CallOrder, number: int) -> None:
        await calls.begin(number)
        begun.append(number)

    async def scenario() -> None:
        calls = CallOrder()
        async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as group:
            for number in arrivals:
                group.create_task(call(calls, number))
                await asyncio.sleep(0)
                await asyncio.sleep(0)

    asyncio.run(scenario())
    assert begun == list(range(6))


def test_a_number_that_comes_twice_is_refused() -> None:
    async def scenario() -> None:
        calls = CallOrder()
        await calls.begin(0)
        waits = asyncio.create_task(calls.begin(2))
        await asyncio.sleep(0)
        for number in (0, 2):
            with pytest.raises(InvariantBroken, match=f"call {number} came twice"):
                await calls.begin(number)
        waits.cancel()

    asyncio.run(scenario())


ORDERS = ([A, B], [C])
"""Of the exchanges 1 and 2; the third brings none."""
SENT = ("exchange 1", "exchange 2", "abort A", "evaluate", "load version 2", "exchange 3")
"""To a worker that runs version 1, in this order."""


@dataclass
class Seen:
    """What came of the calls."""

    engine: FakeEngine
    waiting: list[str]
    """Calls that had not returned when all had arrived and nothing that was begun had ended."""
    evaluation: Evaluation
    version: int
    """That the second load confirmed."""
    answers: list[Answer]


async def deliver(arrivals: Sequence[int], *, busy: bool) -> Seen:
    """Have the calls of SENT arrive in an order, then ask for answers until all are there.

    `busy`: nothing that the engine begins ends before the last call has arrived.
    """
    configured, post = settings_of(), Post(Random(0))
    engine = FakeEngine(None if busy else post.send)
    carrying = asyncio.create_task(post.carry())
    rewards = LocalActor(post, RewardWorker(configured.data, 1, 1, sets=configured.sets))
    worker = opened_worker(configured, engine, [rewards], KeepingPlane())
    assert await worker.load_weights(0, published(1)) == 1
    send: list[Callable[[int], Coroutine[Any, Any, Any]]] = [
        lambda number: worker.exchange(number, ORDERS[0]),
        lambda number: worker.exchange(number, ORDERS[1]),
        lambda number: worker.abort(number, [A.attempt]),
        lambda number: worker.evaluate(number, "validation", "validation", [0, 1]),
        lambda number: worker.load_weights(number, published(2)),
        lambda number: worker.exchange(number, []),
    ]
    calls: dict[int, asyncio.Task[Any]] = {}
    for place in arrivals:
        calls[place] = asyncio.create_task(send[place](place + 1))
        await settle()
    waiting = [name for place, name in enumerate(SENT) if not calls[place].done()]
    exchanges = [calls[0], calls[1], calls[5]]
    others = [calls[2], calls[3], calls[4]]
    answers: list[Answer] = []
    async with asyncio.timeout(LIMIT_S):
        while len(answers) < 3 or not all(call.done() for call in others):
            engine.finish_all()
            await settle()
            answers = [answer for call in exchanges if call.done() for answer in call.result()]
            if all(call.done() for call in exchanges):  # as the pump does while there is something to answer
                exchanges.append(asyncio.create_task(worker.exchange(len(exchanges) + 4, [])))
    assert all(call.done() for call in exchanges[:-1]), "only the newest exchange waits"
    exchanges[-1].cancel()
    carrying.cancel()
    assert not any((worker._sampling, worker._delivered, worker._order._early)), "nothing is kept"
    return Seen(engine, waiting, calls[3].result(), calls[4].result(), answers)


def check(seen: Seen) -> None:
    """What holds in whatever order calls arrive."""
    assert Counter(answer.attempt for answer in seen.answers) == {order.attempt: 1 for order in (A, B, C)}
    assert all(isinstance(answer, AttemptFinished) for answer in seen.answers if answer.attempt != A.attempt)
    assert seen.engine.loaded == [1, 2]
    assert seen.version == 2
    assert seen.evaluation.start_weight == 1
    assert not {"exchange 1", "exchange 2", "abort A", "load version 2"} & set(seen.waiting)


@pytest.mark.parametrize("first", range(len(SENT)))
def test_a_worker_answers_every_attempt_once_in_whatever_order_its_calls_arrive(first: int) -> None:
    """Nothing ends meanwhile: so the abort finds its rollout, and stops it, even where it arrives before the order."""

    async def scenario() -> None:
        for arrivals in permutations(range(len(SENT))):
            if arrivals[0] == first:
                seen = await deliver(arrivals, busy=True)
                check(seen)
                assert Aborted(A.attempt) in seen.answers, arrivals
                assert seen.engine.aborted == [f"{A.attempt.incarnation}-{A.attempt.dispatch}"]

    asyncio.run(scenario())


@given(st.permutations(range(len(SENT))))
@settings(max_examples=60, deadline=None)
def test_the_same_holds_where_rollouts_end_while_calls_arrive(arrivals: Sequence[int]) -> None:
    check(asyncio.run(deliver(arrivals, busy=False)))


def test_an_abort_of_what_is_over_or_never_was_leaves_nothing_behind() -> None:
    async def scenario() -> GenerationWorker:
        worker = opened_worker(settings_of(), FakeEngine(), [], KeepingPlane())
        for number in range(100):
            await worker.abort(number, [Attempt(number, number)])
        return worker

    worker = asyncio.run(scenario())
    assert not worker._sampling
    assert not worker._order._early


def test_an_older_version_that_is_loaded_late_does_not_replace_a_newer_one() -> None:
    async def scenario() -> tuple[list[int], list[int]]:
        engine = FakeEngine()
        worker = opened_worker(settings_of(), engine, [], KeepingPlane())
        slow: asyncio.Future[Publication] = asyncio.get_running_loop().create_future()
        older = asyncio.create_task(worker.load_weights(1, Published(1, slow)))
        newer = asyncio.create_task(worker.load_weights(0, published(2)))
        await settle()
        slow.set_result(Publication(1, {}))
        return [await newer, await older], engine.loaded

    assert asyncio.run(scenario()) == ([2, 2], [2])


def test_two_loads_run_one_after_the_other_in_the_order_in_which_they_were_sent() -> None:
    async def scenario() -> list[int]:
        engine = FakeEngine()
        worker = opened_worker(settings_of(), engine, [], KeepingPlane())
        slow: asyncio.Future[Publication] = asyncio.get_running_loop().create_future()
        newer = asyncio.create_task(worker.load_weights(1, published(2)))
        older = asyncio.create_task(worker.load_weights(0, Published(1, slow)))
        await settle()
        assert engine.loaded == [], "the first one's weights are not there yet"
        slow.set_result(Publication(1, {}))
        assert [await older, await newer] == [1, 2]
        return engine.loaded

    assert asyncio.run(scenario()) == [1, 2]
