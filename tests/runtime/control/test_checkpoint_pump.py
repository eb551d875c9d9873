"""When checkpoints are due, and what a run does while one is written or cannot be, without Ray."""

import asyncio
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, RayTaskError

from fsm.effects import ClearReason, ClearRows
from runtime.actors.trainer_rank import Written
from runtime.checkpoints.retention import Retention
from runtime.control.pumps.rows import Rows
from runtime.training.step_metrics import StepMetrics
from runtime.transport.answers import Row
from tests.runtime.control.fakes import FakeFleet, FakePlane, FakeTrainer, Run

N = 2
CONFIG: dict[str, Any] = {
    "grpo": {"num_prompts_per_step": N, "num_generations_per_prompt": 2},
    "async_rl": {"sampler": {"name": "in_order", "max_lookahead_versions": 1}},
}


class GatedTrainer(FakeTrainer):
    """Writes a checkpoint only once the test opens the gate; `steps_at_writes` has the steps done when it was."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.open_after = 0
        """The gate opens by itself after so many optimizer steps; 0: never."""
        self.steps_at_writes: list[int] = []

    async def finish_step(self, step: int) -> StepMetrics:
        metrics = await super().finish_step(step)
        if step + 1 == self.open_after:
            self.gate.set()
        return metrics

    async def write_checkpoint(self, directory: Path, control: dict[str, Any], retention: Retention) -> Written:
        await self.gate.wait()
        self.steps_at_writes.append(len(self.steps))
        return await super().write_checkpoint(directory, control, retention)


def test_the_run_goes_on_while_a_checkpoint_is_written_and_what_it_holds_does_not_change() -> None:
    trainer = GatedTrainer()
    trainer.open_after = 5
    run = Run(CONFIG, 6 * N, FakeFleet(), trainer, checkpoint_every=4)
    asyncio.run(run.go())
    assert trainer.steps_at_writes == [5]
    [(control, prompts)] = trainer.saved
    assert control["state"]["trainer"][1] == 4
    assert sorted(prompts) == sorted(group[0] for place in ("ready", "chunk") for group in control[place])
    assert run.recorder.checkpoints == [4]


def test_a_checkpoint_waits_for_the_one_before_and_none_is_left_out() -> None:
    trainer = GatedTrainer()

    async def scenario() -> Run:
        run = Run(CONFIG, 4 * N, FakeFleet(), trainer, checkpoint_every=1)
        going = asyncio.create_task(run.go())
        for _ in range(1000):
            await asyncio.sleep(0)
        assert len(trainer.steps) == 2, "the second step's checkpoint waits for the first's"
        trainer.gate.set()
        await going
        return run

    run = asyncio.run(scenario())
    assert run.recorder.checkpoints == [1, 2, 3, 4]


class TimedTrainer(FakeTrainer):
    """Each optimizer step takes 60 s of the loop's clock, which nothing else moves."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1000.0

    async def finish_step(self, step: int) -> StepMetrics:
        self.now_s += 60.0
        return await super().finish_step(step)

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner() as runner:
            runner.get_loop().time = lambda: self.now_s  # type: ignore[method-assign]
            runner.run(work)


def timed_run(trainer: TimedTrainer, steps: int, **checkpointing: Any) -> Run:
    run = Run(CONFIG, steps * N, FakeFleet(), trainer, checkpointing={"enabled": True, **checkpointing})
    run.pumps.checkpoints.taken_s = trainer.now_s
    trainer.run(run.go(limit_s=1e9))
    return run


def test_a_checkpoint_is_due_at_the_first_step_after_so_many_minutes_since_the_last() -> None:
    assert timed_run(TimedTrainer(), 8, every_minutes=2.5).recorder.checkpoints == [3, 6]
    both = timed_run(TimedTrainer(), 9, every_minutes=2.5, every_steps=4)
    assert both.recorder.checkpoints == [3, 4, 7, 8]
    assert timed_run(TimedTrainer(), 8, every_minutes=None).recorder.checkpoints == []


def test_under_a_wall_clock_limit_the_first_step_has_a_checkpoint_which_tells_how_long_one_takes() -> None:
    trainer = TimedTrainer()

    async def slowly(directory: Path, control: dict[str, Any], retention: Retention) -> Written:
        trainer.now_s += 7.0
        return await FakeTrainer.write_checkpoint(trainer, directory, control, retention)

    trainer.write_checkpoint = slowly  # type: ignore[method-assign]
    run = timed_run(trainer, 4, every_minutes=None, max_wall_s=9000.0)
    assert run.recorder.checkpoints == [1]
    assert run.pumps.checkpoints.longest_s == 7.0


def test_a_lost_checkpoint_is_told_once_and_tried_again_but_not_all_the_time() -> None:
    trainer = TimedTrainer()
    trainer.full_disk = {2, 3, 4}
    run = timed_run(trainer, 8, every_minutes=None, every_steps=2)
    assert run.core.error is None
    assert run.recorder.checkpoints == [5, 6, 8]
    assert run.pumps.checkpoints.lost == 3
    [error] = run.recorder.refused
    assert str(error).endswith("no checkpoint was added; the run continues, and tries again between later steps")
    assert run.recorder.notices == ["checkpoints can be written again: checkpoint-1 was"]


def test_a_checkpoint_that_takes_long_to_fail_is_tried_again_after_ten_times_as_long() -> None:
    trainer = TimedTrainer()
    trainer.full_disk = set(range(100))
    plain = trainer.write_checkpoint
    tried: list[int] = []

    async def slowly(directory: Path, control: dict[str, Any], retention: Retention) -> Written:
        tried.append(control["state"]["trainer"][1])
        trainer.now_s += 20.0
        return await plain(directory, control, retention)

    trainer.write_checkpoint = slowly  # type: ignore[method-assign]
    run = timed_run(trainer, 12, every_minutes=None, every_steps=100, max_wall_s=9000.0)
    assert run.recorder.checkpoints == []
    assert tried == [1, 5, 9]


class UnableToCopy(FakeTrainer):
    """Its copies fail."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    async def copy_state(self, step: int, rows: Sequence[tuple[int, Row]]) -> None:
        raise self.error


def test_a_copy_that_fails_costs_the_checkpoint_and_a_trainer_that_died_ends_the_run() -> None:
    failing = UnableToCopy(RayTaskError("copy_state", "traceback", RuntimeError("no memory")))
    run = Run(CONFIG, 4 * N, FakeFleet(), failing, checkpoint_every=3)
    asyncio.run(run.go())
    assert run.core.error is None
    assert len(run.trainer.steps) == 4
    [notice] = run.recorder.notices
    assert notice.startswith("the checkpoint after step 3 was not written: RuntimeError: no memory; the run continues")
    dead = Run(CONFIG, 4 * N, FakeFleet(), UnableToCopy(ActorDiedError()), checkpoint_every=3)
    with pytest.raises(ActorDiedError):
        asyncio.run(dead.go())


def test_the_end_waits_for_the_checkpoint_that_is_being_written_and_gets_why_it_was_lost() -> None:
    trainer = GatedTrainer()
    trainer.full_disk = {3}

    async def scenario() -> Run:
        run = Run(CONFIG, 3 * N, FakeFleet(), trainer, checkpoint_every=3)
        await run.control.run(run.pumps.carry_out, run.pumps.clock.dead_end)
        assert trainer.saved == []
        waiting = asyncio.create_task(run.pumps.checkpoints.written())
        await asyncio.sleep(0)
        waiting.cancel()  # whoever gives up does not end the writing
        trainer.gate.set()
        assert "No space left" in str(await run.pumps.checkpoints.written())
        trainer.full_disk = set()
        await run.pumps.checkpoints.save(None)
        return run

    run = asyncio.run(scenario())
    assert run.recorder.checkpoints == [3]
    assert run.recorder.refused == [], "the end of a run reports what it lost"
    assert run.pumps.checkpoints.lost == 1


def test_no_data_is_deleted_while_a_checkpoint_copies_it() -> None:
    plane = FakePlane()
    rows = Rows(plane)
    for prompt in (1, 2, 3):
        rows.keep(prompt, f"row {prompt}")
    with rows.held():
        rows.clear_rows(ClearRows((1,), ClearReason.EVICTED))
        rows.clear([2])
        assert rows.of([3]) == [(3, "row 3")]
        assert plane.deleted == []
    assert plane.deleted == ["row 1", "row 2"]
    rows.clear([3])
    assert plane.deleted == ["row 1", "row 2", "row 3"]
