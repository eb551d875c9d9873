"""Attempts that fail, come late or are lost with their worker, with the pumps around a real core."""

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from fsm.errors import BudgetExceeded
from fsm.events import Attempt, FailureKind, GroupFailed, GroupFinished
from runtime.control.deadline import TrainerSilent
from runtime.control.failures import failure_of
from runtime.transport.answers import Order
from tests.runtime.control.fakes import FakeFleet, FakeTrainer, Run
from tests.runtime.control.pumping import N, config, trained
from tests.runtime.control.virtual_time import run_virtually


def test_an_infra_failure_backs_off_and_is_tried_again() -> None:
    def play(order: Order, tried: int) -> str:
        return "infra" if order.attempt.prompt == 1 and tried < 2 else "good"

    async def scenario() -> Run:
        run = Run(config(), 2 * N, FakeFleet(play))
        await run.go()
        return run

    run = asyncio.run(scenario())
    assert run.fleet.tries[1] == 3
    assert sorted(trained(run)) == list(range(2 * N))


def test_a_retry_after_an_infra_failure_goes_to_another_worker_than_the_one_that_failed() -> None:
    def play(order: Order, tried: int) -> str:
        return "infra" if tried < 3 else "good"

    async def scenario() -> Run:
        run = Run(config(max_infra_attempts_per_prompt=9), 4 * N, FakeFleet(play, workers=3))
        await run.go()
        return run

    run = asyncio.run(scenario())
    workers_of: dict[int, list[str]] = {}
    for worker, attempts in run.fleet.submissions:
        for attempt in attempts:
            workers_of.setdefault(attempt.prompt, []).append(worker)
    assert all(len(workers) == 4 for workers in workers_of.values())
    pairs = [pair for workers in workers_of.values() for pair in pairwise(workers)]
    assert all(before != after for before, after in pairs)
    assert {worker for workers in workers_of.values() for worker in workers} == {"w0", "w1", "w2"}


def test_a_retry_goes_to_the_only_worker_there_is_even_if_it_failed_there() -> None:
    async def scenario() -> Run:
        run = Run(config(), N, FakeFleet(lambda order, tried: "good" if tried else "infra"))
        await run.go()
        return run

    assert sorted(trained(asyncio.run(scenario()))) == list(range(N))


def test_attempts_past_their_deadline_are_told_by_worker() -> None:
    told: list[tuple[str, list[int]]] = []

    async def scenario() -> None:
        hang = FakeFleet(lambda order, tried: "hang" if order.attempt.prompt < 2 and not tried else "good", workers=2)
        run = Run(config(rollout_timeout_s=0.05), N, hang)
        run.pumps.generation.on_expired = lambda worker, attempts: told.append(
            (worker, [attempt.prompt for attempt in attempts])
        )
        await run.go()

    run_virtually(scenario())
    assert sorted(told) == [("w0", [0]), ("w1", [1])]


@pytest.mark.parametrize(
    ("method", "call"),
    [
        ("copy_state", "the copy for the checkpoint of step 1 within 3,600 s"),
        ("accumulate", "chunk 0 of step 0 within 3,600 s"),
        ("finish_step", "the optimizer step 0 within 3,600 s"),
        ("publish", "publishing version 1 within 900 s"),
    ],
)
def test_a_trainer_that_never_finishes_a_call_has_the_run_restarted_and_the_error_says_what_to_set(
    method: str, call: str
) -> None:
    async def for_ever(*arguments: Any) -> Any:
        await asyncio.get_running_loop().create_future()

    async def scenario() -> None:
        trainer = FakeTrainer()
        setattr(trainer, method, for_ever)
        every_step = {"enabled": True, "every_steps": 1}
        await Run(config(), 3 * N, FakeFleet(), trainer, checkpointing=every_step).go(limit_s=1e6)

    with pytest.raises(TrainerSilent, match=rf"has not finished {call}.* raise cluster\.\w+_timeout_s") as silent:
        run_virtually(scenario())
    assert failure_of(silent.value).infra


def test_a_worker_that_dies_fails_what_it_had_and_the_run_goes_on() -> None:
    deaths: list[int] = []

    def play(order: Order, tried: int) -> str:
        if order.attempt.prompt == N + 1 and tried == 0:
            deaths.append(order.attempt.prompt)
            return "die"
        return "good"

    async def scenario() -> Run:
        run = Run(config(), 3 * N, FakeFleet(play))
        await run.go()
        return run

    run = asyncio.run(scenario())
    assert deaths == [N + 1]
    assert sorted(trained(run)) == list(range(3 * N))
    failures = [t.event for t in run.transitions if isinstance(t.event, GroupFailed)]
    assert [failure.attempt.prompt for failure in failures] == [N + 1, N + 2, N + 3]
    assert {failure.kind for failure in failures} == {FailureKind.INFRA}
    assert "it was killed" in failures[0].error


def test_exhausted_budgets_stop_the_run_with_the_original_error() -> None:
    async def scenario() -> Run:
        run = Run(config(max_data_attempts_per_prompt=1), N, FakeFleet(lambda order, tried: "data"))
        await run.go()
        return run

    run = asyncio.run(scenario())
    assert isinstance(run.core.error, BudgetExceeded)
    assert "made to fail: data" in str(run.core.error)


def test_a_rollout_past_its_deadline_fails_and_is_aborted() -> None:
    """W1, and the deadline frees the engine too."""

    def play(order: Order, tried: int) -> str:
        return "hang" if order.attempt.prompt == 2 and tried == 0 else "good"

    async def scenario() -> Run:
        run = Run(config(rollout_timeout_s=0.05), N, FakeFleet(play))
        await run.go()
        return run

    run = asyncio.run(scenario())
    assert [attempt.prompt for attempt in run.fleet.aborted] == [2]
    assert sorted(trained(run)) == list(range(N))
    assert run.control.late_answers == 0


def test_a_late_answer_is_counted_and_its_data_deleted() -> None:
    async def scenario() -> Run:
        run = Run(config(), N, FakeFleet(lambda order, tried: "hang"))
        going = asyncio.create_task(run.go())
        await asyncio.sleep(0.01)
        run.rows.keep(0, "row of the attempt that counts")
        before = run.rows.keep(0, "row of a late answer")
        late = GroupFinished(Attempt(0, 99), zero_variance=False)
        assert not run.control.apply(late)
        run.rows.take_back(0, before)
        run.control.interrupt()
        await going
        return run

    run = asyncio.run(scenario())
    assert run.control.late_answers == 1
    assert run.rows.of([0]) == [(0, "row of the attempt that counts")]
    assert run.plane.deleted == ["row of a late answer"]


def test_an_unreadable_group_leaves_the_step_and_the_rest_is_trained() -> None:
    """S5."""

    async def scenario() -> Run:
        made = config(max_consecutive_dropped_prompts=1, min_step_batch_fraction=0.5)
        run = Run(made, 2 * N, FakeFleet(), FakeTrainer(unreadable=[1]))
        await run.go()
        return run

    run = asyncio.run(scenario())
    assert [(closed.selected, closed.charged) for closed in run.recorder.closes] == [(N - 1, 1), (N, 0)]
    assert run.core.state.sheet.dropped == 1
    assert len(run.rows) == 0
