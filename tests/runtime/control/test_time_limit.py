"""The controller under `checkpointing.max_wall_s`: it ends the run in time, saves it and says why, without Ray."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from runtime.checkpoints.origin import Origin
from runtime.control import controller as controller_module
from runtime.control.controller import Controller
from runtime.control.messages import Message, Outcome, RunPlan, Start
from runtime.control.starting import BegunRun
from runtime.control.wall_clock import OutOfTime
from runtime.naming import Names
from runtime.output.shared_output import SharedOutput
from runtime.settings import load_settings
from runtime.training.step_metrics import StepMetrics
from tests.runtime.control import fakes

LIMIT_S, BEGAN_S, STEP_S = 330.0, 1000.0, 60.0
CONFIG: dict[str, Any] = {
    "grpo": {"num_prompts_per_step": 2, "num_generations_per_prompt": 2},
    "async_rl": {"sampler": {"name": "in_order", "max_lookahead_versions": 1}},
}


@dataclass
class ReportingRecorder(fakes.FakeRecorder):
    """What a controller asks of a recorder, too."""

    last_checkpoint: Path | None = None
    last_close_s: float | None = None
    doubted_version: int | None = None
    trace_cpu_s: float = 0.0
    workers_lost: int = 0
    failed_attempts: str = ""
    steps_without_tokens: int = 0
    said_at_end: tuple[Any, ...] = ()

    def standing(self) -> None:
        pass

    def finish(self) -> None:
        pass

    def checkpointed(self, step: int, path: Path) -> None:
        super().checkpointed(step, path)
        self.last_checkpoint = path

    def ended(self, *said: Any) -> None:
        self.said_at_end = said


class TimedTrainer(fakes.FakeTrainer):
    """Every optimizer step takes STEP_S."""

    now_s = BEGAN_S

    async def finish_step(self, step: int) -> StepMetrics:
        self.now_s += STEP_S
        return await super().finish_step(step)

    async def save_model(self, directory: Path) -> Path:
        directory.mkdir(parents=True)
        return await super().save_model(directory)


def controller_of(output: Path) -> Controller:
    settings = load_settings(None, [f"checkpointing.max_wall_s={LIMIT_S}", "checkpointing.every_steps=0"])
    start = Start(10_000, {}, Origin("run", {}, {}), None)
    plan = RunPlan(settings, Names("run", "tests"), output, output, start, BEGAN_S)
    return Controller(plan, SharedOutput(output, "token"))


def test_a_run_ends_after_the_last_step_that_fits_with_a_checkpoint_the_model_and_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fakes, "FakeRecorder", ReportingRecorder)
    trainer = TimedTrainer()

    async def scenario() -> tuple[fakes.Run, list[Message]]:
        checkpointing = {"enabled": True, "max_wall_s": LIMIT_S}
        run = fakes.Run(CONFIG, 10_000, fakes.FakeFleet(), trainer, checkpointing=checkpointing)

        async def begin(*_: Any) -> BegunRun:
            return BegunRun(run.control, run.pumps, trainer, run.recorder, Outcome("completed", None), None)

        monkeypatch.setattr(controller_module, "begin", begin)
        controller = controller_of(tmp_path)
        controller._wall_clock.now_s = lambda: trainer.now_s
        return run, [message async for batch in controller.run() for message in batch]

    run, messages = asyncio.run(asyncio.wait_for(scenario(), 120))
    outcome = messages[-1]
    assert isinstance(outcome, Outcome)
    assert outcome.status == "interrupted"
    assert outcome.error is not None
    assert outcome.error.startswith("checkpointing.max_wall_s = 330 s is nearly over: a step takes up to 60.0 s")
    assert len(trainer.steps) == 4, "30 s and three times the checkpoint are left for the end"
    assert run.recorder.checkpoints == [1, 4]
    assert outcome.checkpoint is not None
    assert outcome.model is not None
    assert outcome.lost == ()
    assert run.recorder.said_at_end[:2] == ("interrupted", outcome.error)
    assert outcome.traceback is None


def test_a_run_that_has_not_begun_in_time_says_that_nothing_was_trained_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def begin(*_: Any) -> BegunRun:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(controller_module, "begin", begin)

    async def scenario() -> None:
        controller = controller_of(tmp_path)
        controller._wall_clock.now_s = lambda: BEGAN_S + LIMIT_S
        with pytest.raises(OutOfTime, match=r"max_wall_s = 330 s is nearly over: .*nothing was trained"):
            [told async for told in controller.run()]

    asyncio.run(asyncio.wait_for(scenario(), 120))
