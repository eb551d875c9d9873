"""What a generation worker says of groups that got no verdict, or were not stored."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from ray.exceptions import ActorUnavailableError

from fsm.events import FailureKind
from runtime.groups import RolloutGroup
from runtime.tasks.base import InfraFault, Rated, Scored, Verdict
from runtime.transport.answers import Answer, AttemptFailed, RowsNotStored
from tests.runtime.control.fake_actors import FakeEngine, KeepingPlane, opened_worker, order, published, settings_of
from tests.runtime.control.virtual_time import run_virtually

GOOD = Verdict(1.0, True)
BUSY, WRONG = InfraFault("the judge answered 503"), "the answer is no number"


class Reward:
    """A reward worker whose verdicts are given, call by call."""

    def __init__(self, *calls: tuple[Rated, ...]) -> None:
        self.calls = list(calls)
        self.asked: list[int] = []
        self.score = self

    def remote(self, groups: Sequence[Any], of: str = "") -> Any:
        self.asked.append(len(groups))

        async def rate() -> Scored:
            return Scored([self.calls.pop(0) for _ in groups], None)

        return rate()


class FullPlane(KeepingPlane):
    async def put(self, groups: Sequence[RolloutGroup]) -> list[Any]:
        raise RowsNotStored("the group store took no groups within 60 s")


async def answered(reward: Any, plane: KeepingPlane) -> Answer:
    engine = FakeEngine()
    worker = opened_worker(settings_of(), engine, [reward], plane)
    await worker.load_weights(0, published(0))
    exchange = asyncio.create_task(worker.exchange(1, [order(0, 0)]))
    await asyncio.sleep(0)
    engine.finish_all()
    (answer,) = await exchange
    return answer


@pytest.mark.parametrize(
    ("siblings", "kind", "says"),
    [
        ((BUSY, BUSY), FailureKind.INFRA, "the judge answered 503 (and 1 more of its 2 rollouts)"),
        ((GOOD, BUSY), FailureKind.INFRA, "the judge answered 503"),
        ((BUSY, WRONG), FailureKind.DATA, "the answer is no number (and 1 more of its 2 rollouts)"),
        ((GOOD, WRONG), FailureKind.DATA, "the answer is no number"),
    ],
)
def test_a_group_s_failure_is_infra_unless_a_sibling_s_would_come_again(
    siblings: tuple[Rated, ...], kind: FailureKind, says: str
) -> None:
    answer = asyncio.run(answered(Reward(siblings), KeepingPlane()))
    assert isinstance(answer, AttemptFailed)
    assert (answer.kind, answer.error) == (kind, says)
    assert not answer.of_worker, "a verifier's failure is no fault of the worker"


class Restarting:
    """A reward worker that dies when it is asked, and answers again after a while."""

    def __init__(self, away_s: float) -> None:
        self.away_s = away_s
        self.score = self.ping = self

    async def remote(self, *_: Any) -> None:
        if asyncio.get_running_loop().time() < self.away_s:
            raise ActorUnavailableError("restarting", None)


@pytest.mark.parametrize(("away_s", "told_s"), [(0.4, 0.5), (31, 31), (1e6, 60)])
def test_a_group_whose_reward_worker_died_fails_once_and_not_before_one_answers_again(
    away_s: float, told_s: float
) -> None:
    """Otherwise a restart of half a minute would use up the attempts of every prompt in flight."""

    async def scenario() -> tuple[Answer, float]:
        answer = await answered(Restarting(away_s), KeepingPlane())
        return answer, asyncio.get_running_loop().time()

    answer, now_s = run_virtually(scenario())
    assert isinstance(answer, AttemptFailed)
    assert answer.kind is FailureKind.INFRA
    assert "a reward worker died" in answer.error
    assert now_s == pytest.approx(told_s, abs=0.1)


def test_a_group_that_is_not_stored_is_generated_again() -> None:
    answer = asyncio.run(answered(Reward((GOOD, Verdict(0.0, False))), FullPlane()))
    assert isinstance(answer, AttemptFailed)
    assert answer.kind is FailureKind.INFRA
    assert answer.of_worker


def test_held_out_rollouts_whose_judge_is_busy_are_rated_again_and_only_those() -> None:
    async def scenario() -> tuple[float, Reward]:
        settings, engine = settings_of(), FakeEngine()
        reward = Reward((GOOD,), (BUSY,), (BUSY,), (GOOD,))
        worker = opened_worker(settings, engine, [reward], KeepingPlane())
        await worker.load_weights(0, published(0))
        measuring = asyncio.create_task(worker.evaluate(1, "validation", "validation", [0, 1]))
        await asyncio.sleep(0)
        engine.finish_all()
        return (await measuring).accuracy, reward

    accuracy, reward = run_virtually(scenario())
    assert accuracy == 1.0
    assert reward.asked == [2, 1, 1]


def test_held_out_rollouts_whose_judge_never_answers_count_as_wrong_in_the_end() -> None:
    async def scenario() -> tuple[float, Sequence[str]]:
        engine = FakeEngine()
        worker = opened_worker(settings_of(), engine, [Reward(*[(BUSY,)] * 20)], KeepingPlane())
        await worker.load_weights(0, published(0))
        measuring = asyncio.create_task(worker.evaluate(1, "validation", "validation", [0, 1]))
        await asyncio.sleep(0)
        engine.finish_all()
        evaluation = await measuring
        return evaluation.accuracy, evaluation.failures

    accuracy, failures = run_virtually(scenario())
    assert accuracy == 0.0
    assert list(failures) == [str(BUSY)] * 2
