"""The pumps around a real core, with workers and a trainer that answer on the same loop."""

import asyncio
from typing import Any

import pytest

from fsm.effects import ClearRows
from fsm.errors import Stalled
from fsm.events import GroupFinished, StallTimeout
from fsm.machines.trainer import TrainerState
from runtime.control.pumps.clock import watch
from runtime.control.pumps.not_applied import NumbersNotFinite
from runtime.control.pumps.training import NothingTrained
from runtime.groups import Evaluation
from runtime.simulation.fleet import evaluation_of, receipt_of
from runtime.training.step_metrics import NotFinite, Number
from runtime.transport.answers import Order
from tests.runtime.control.fakes import FakeFleet, FakeTrainer, Run
from tests.runtime.control.pumping import N, config, replacing, trained


@pytest.mark.parametrize("sampler", ["in_order", "ready_first"])
def test_a_run_ends_by_itself_and_trains_every_prompt_once(sampler: str) -> None:
    async def scenario() -> Run:
        run = Run(config(sampler, 1), 10 * N, FakeFleet(workers=2))
        await run.go()
        return run

    run = asyncio.run(scenario())
    assert sorted(trained(run)) == list(range(10 * N))
    assert run.trainer.steps == list(range(10))
    assert run.fleet.loaded == list(range(1, 11))
    assert [closed.selected for closed in run.recorder.closes] == [N] * 10
    assert run.core.state.sheet.balanced
    assert len(run.rows) == 0
    assert len(run.trainer.deleted) == 9 * N, "a step's data is deleted with the chunk that follows"
    assert not run.plane.deleted


def test_groups_of_one_dispatch_reach_a_worker_in_one_submission() -> None:
    """Determinism at lookahead 0: what is decoded together does not depend on timing."""

    async def scenario() -> Run:
        run = Run(config("in_order", 0), 3 * N, FakeFleet())
        await run.go()
        return run

    run = asyncio.run(scenario())
    assert [[attempt.prompt for attempt in attempts] for _, attempts in run.fleet.submissions] == [
        list(range(step * N, (step + 1) * N)) for step in range(3)
    ]


def test_what_answers_lead_to_is_started_by_the_exchange_that_waits_for_the_next() -> None:
    """Control's cost: an exchange for every answer, and one more where a step starts or an exchange was relieved."""

    async def scenario() -> Run:
        run = Run(replacing(), 12 * N, FakeFleet(lambda order, tried: "flat" if order.attempt.prompt % 3 else "good"))
        await run.go()
        return run

    run = asyncio.run(scenario())
    answers = sum(isinstance(t.event, GroupFinished) for t in run.transitions)
    assert run.fleet.exchanges <= answers + 2 * len(run.trainer.steps) + 1


def test_a_worker_without_anything_to_answer_is_not_asked() -> None:
    async def scenario() -> Run:
        fleet = FakeFleet()
        fleet.loading.clear()
        run = Run(config("in_order", 0), 2 * N, fleet)
        going = asyncio.create_task(run.go())
        while fleet.exchanges < N:
            await asyncio.sleep(0.001)
        during = fleet.exchanges
        await asyncio.sleep(0.02)
        assert fleet.exchanges == during == N
        fleet.loading.set()
        await going
        return run

    run = asyncio.run(scenario())
    assert run.fleet.exchanges == 2 * N


def test_the_trainer_gets_groups_in_the_order_of_selection() -> None:
    async def scenario() -> Run:
        run = Run(config("in_order", 0), 2 * N, FakeFleet(workers=3))
        await run.go()
        return run

    run = asyncio.run(scenario())
    assert [prompts for _, prompts in run.trainer.chunks] == [list(range(N)), list(range(N, 2 * N))]


def test_rollouts_are_spread_over_the_workers() -> None:
    async def scenario() -> Run:
        run = Run(config("in_order", 0), N, FakeFleet(workers=2))
        await run.go()
        return run

    run = asyncio.run(scenario())
    assert [(worker, len(attempts)) for worker, attempts in run.fleet.submissions] == [("w0", 2), ("w1", 2)]


def test_flat_groups_are_filtered_replaced_and_never_trained() -> None:
    def play(order: Order, tried: int) -> str:
        return "flat" if order.attempt.prompt % 3 == 0 else "good"

    async def scenario() -> Run:
        run = Run(replacing(min_step_batch_fraction=0.25), 12 * N, FakeFleet(play))
        await run.go()
        return run

    run = asyncio.run(scenario())
    assert not [prompt for prompt in trained(run) if prompt % 3 == 0]
    sheet = run.core.state.sheet
    assert sheet.filtered > 0
    assert sheet.replaced > 0
    assert sheet.balanced
    assert len(run.rows) <= sheet.leftover


def test_a_step_is_not_dispatched_while_weights_are_synced() -> None:
    async def scenario() -> tuple[int, int]:
        fleet = FakeFleet()
        fleet.loading.clear()
        run = Run(config("in_order", 0), 2 * N, fleet)
        going = asyncio.create_task(run.go())
        while not fleet.submissions:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.02)
        during = len(fleet.submissions)
        fleet.loading.set()
        await going
        return during, len(fleet.submissions)

    assert asyncio.run(scenario()) == (1, 2)


def test_an_error_in_a_pump_ends_the_run_with_that_error() -> None:
    async def scenario() -> None:
        await Run(config(), 3 * N, FakeFleet(), FakeTrainer(fails_at=1)).go()

    with pytest.raises(RuntimeError, match="the trainer fails at step 1"):
        asyncio.run(scenario())


def test_an_error_in_a_timer_ends_the_run_with_that_error() -> None:
    def broken() -> None:
        raise ZeroDivisionError("a timer broke")

    async def scenario() -> None:
        run = Run(config(), N, FakeFleet(lambda order, tried: "hang"))
        going = asyncio.create_task(run.go())
        await asyncio.sleep(0)
        run.control.later(0.01, broken)
        await going

    with pytest.raises(ZeroDivisionError, match="a timer broke"):
        asyncio.run(scenario())


@pytest.mark.parametrize("action", ["warn", "abort"])
def test_the_watchdog_explains_what_the_run_waits_for(action: str) -> None:
    """W2."""
    made = config()
    made["async_rl"]["stall_watchdog"] = {"interval_s": 0.05, "stall_timeout_s": 0.05, "stall_action": action}

    async def scenario() -> Run:
        run = Run(made, N, FakeFleet(lambda order, tried: "hang"))
        going = asyncio.create_task(run.go())
        await asyncio.sleep(0)
        watchdog = run.core.setup.config.async_rl.stall_watchdog
        watching = asyncio.create_task(watch(watchdog, lambda: run.control.progress_s, run.pumps.clock.stalled))
        if action == "warn":
            await asyncio.sleep(0.18)
            run.control.interrupt()
        await going
        watching.cancel()
        return run

    run = asyncio.run(scenario())
    if action == "warn":
        assert len(run.recorder.stalls) >= 2
        assert "waits for 4 more" in run.recorder.stalls[0]
    else:
        assert isinstance(run.core.error, Stalled)


def test_validations_and_checkpoints_come_every_so_many_steps() -> None:
    async def scenario() -> Run:
        run = Run(
            config("ready_first", 1), 6 * N, FakeFleet(), validations={"a": 2, "b": 4, "c": None}, checkpoint_every=3
        )
        await run.go()
        return run

    run = asyncio.run(scenario())
    assert run.recorder.checkpoints == [3, 6]
    assert list(zip(run.recorder.evaluations, run.recorder.sets, strict=True))[:3] == [(2, "a"), (4, "a"), (4, "b")]
    assert "c" not in run.recorder.sets
    for saved, prompts in run.trainer.saved:
        assert sorted(prompts) == sorted(group[0] for place in ("ready", "chunk") for group in saved[place])


def test_a_validation_after_a_stop_within_a_sync_measures_the_version_that_was_trained() -> None:
    class MeasuredFleet(FakeFleet):
        async def evaluate(self, name: str, label: str, progressed: Any) -> Evaluation:
            return evaluation_of(self.loaded[-1])

    async def scenario() -> tuple[Run, Evaluation]:
        fleet = MeasuredFleet()
        fleet.loading.clear()
        run = Run(config(), 2 * N, fleet)
        going = asyncio.create_task(run.go())
        while run.core.state.trainer.status is not TrainerState.SYNCING:
            await asyncio.sleep(0.001)
        run.control.apply(StallTimeout(1.0))
        await going
        fleet.loading.set()
        return run, await run.pumps.sync.measure("validation", "after", lambda: None)

    run, measured = asyncio.run(scenario())
    assert isinstance(run.core.error, Stalled)
    assert run.core.state.trainer.version == 1
    assert (measured.start_weight, measured.end_weight) == (1, 1)


def test_an_interrupt_waits_for_the_optimizer_step_under_way() -> None:
    """A checkpoint belongs between two optimizer steps."""

    class SlowTrainer(FakeTrainer):
        async def finish_step(self, step: int) -> Any:
            run.control.interrupt()
            await asyncio.sleep(0.02)
            return await super().finish_step(step)

    async def scenario() -> Run:
        nonlocal run
        run = Run(config(), 3 * N, FakeFleet(), SlowTrainer())
        await run.go()
        return run

    run: Run
    asyncio.run(scenario())
    assert run.core.state.trainer.version == 1
    assert run.control.interrupted


def test_windowed_clears_the_rows_of_what_it_evicts() -> None:
    async def scenario() -> Run:
        made = config("windowed", 0)
        made["async_rl"]["max_buffered_rollouts"] = 3 * N
        run = Run(made, 12 * N, FakeFleet())
        await run.go()
        return run

    run = asyncio.run(scenario())
    assert run.core.state.sheet.balanced
    evicted = [e for t in run.transitions for e in t.effects if isinstance(e, ClearRows) and e.why == "evicted"]
    assert sum(len(effect.prompts) for effect in evicted) == run.core.state.sheet.evicted
    assert len(run.rows) == run.core.state.sheet.ready


def test_a_step_without_a_trained_token_is_told_and_closes_like_any_other() -> None:
    async def scenario() -> Run:
        run = Run(config(), 6 * N, FakeFleet(), FakeTrainer(without_tokens=[1, 2, 4]))
        await run.go()
        return run

    run = asyncio.run(scenario())
    assert run.recorder.empty_steps == [(1, 8), (2, 8), (4, 8)]
    assert [closed.step for closed in run.recorder.closes] == list(range(6))


def test_as_many_steps_in_a_row_without_tokens_as_are_allowed_stop_the_run() -> None:
    async def scenario() -> Run:
        run = Run(config(), 9 * N, FakeFleet(), FakeTrainer(without_tokens=[1, 3, 4, 5, 6]), stop_after=3)
        with pytest.raises(NothingTrained, match=r"steps 3 to 5 trained on no token, .*without_tokens is 3"):
            await run.go()
        return run

    run = asyncio.run(scenario())
    assert [closed.step for closed in run.recorder.closes] == list(range(6))
    assert run.core.state.trainer.version == 6
    assert {step for step, _ in run.trainer.chunks} == set(range(6))


def test_a_run_whose_last_step_trained_on_no_token_is_completed() -> None:
    async def scenario() -> Run:
        made = config()
        made["grpo"]["max_num_steps"] = 3
        run = Run(made, 9 * N, FakeFleet(), FakeTrainer(without_tokens=[2]), stop_after=1)
        await run.go()
        return run

    run = asyncio.run(scenario())
    assert run.core.state.run.status.name == "COMPLETED"


OF_A_REWARD = NotFinite(Number.ADVANTAGES, 1, (0,), (7,))
OF_THE_POLICY = NotFinite(Number.LOGPROBS, 2, (1,), (3, 5), 4)


def test_a_step_that_is_not_applied_is_told_and_closes_like_any_other() -> None:
    async def scenario() -> Run:
        trainer = FakeTrainer(not_finite={1: OF_A_REWARD, 3: OF_THE_POLICY, 4: OF_THE_POLICY})
        run = Run(config(), 6 * N, FakeFleet(), trainer, stop_after_not_finite=3, checkpoint_every=1)
        await run.go()
        return run

    run = asyncio.run(scenario())
    said = "the policy's log-probabilities of prompts 3, 5 and 4 more in microbatch 2 on trainer rank 1"
    assert run.recorder.steps_not_applied == [
        (1, "the advantages of prompt 7 in microbatch 1 on trainer rank 0", 1),
        (3, said, 1),
        (4, said, 2),
    ]
    assert [closed.step for closed in run.recorder.closes] == list(range(6))
    assert run.recorder.checkpoints == [1, 2, 3, 6], "4 and 5 are of weights that nothing shows to be sound"


def test_as_many_steps_in_a_row_as_are_allowed_not_to_be_finite_stop_the_run_with_the_first_cause() -> None:
    async def scenario() -> Run:
        causes = {1: OF_THE_POLICY, 3: OF_THE_POLICY, 4: OF_A_REWARD, 5: OF_A_REWARD}
        run = Run(config(), 9 * N, FakeFleet(), FakeTrainer(not_finite=causes), stop_after_not_finite=3)
        with pytest.raises(NumbersNotFinite) as stopped:
            await run.go()
        assert str(stopped.value).startswith("steps 3 to 5 had numbers that are not finite and were not applied")
        assert "The first, in step 3: the policy's log-probabilities of prompts 3, 5 and 4 more" in str(stopped.value)
        return run

    run = asyncio.run(scenario())
    assert run.core.state.trainer.version == 6
    assert run.pumps.training.not_applied.in_doubt


def test_a_receipt_says_whether_its_rewards_differ() -> None:
    assert receipt_of(0, "w", 0, (1.0, 1.0)).zero_variance
    assert not receipt_of(0, "w", 0, (1.0, 0.0)).zero_variance
