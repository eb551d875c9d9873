"""How a part of a run ended, and what is saved of it, without Ray."""

import asyncio
from pathlib import Path

import pytest

from fsm.errors import EvenstepError, InvariantBroken, Stalled
from fsm.snapshot import snapshot
from runtime.control.deadline import TrainerSilent
from runtime.control.ending import (
    End,
    RunInterrupted,
    SaveStoodStill,
    bytes_below,
    ended_by,
    save_at_end,
    while_it_grows,
)
from runtime.control.failures import FailedAttempts, InterruptedAtStart, failure_of
from runtime.control.messages import Outcome
from runtime.control.starting import BegunRun
from runtime.settings import load_settings
from tests.runtime.control import fakes
from tests.runtime.control.fakes import FakeFleet, Run
from tests.runtime.control.test_time_limit import ReportingRecorder, TimedTrainer

CONFIG = {"grpo": {"num_prompts_per_step": 2}, "async_rl": {"sampler": {"name": "in_order"}}}


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RunInterrupted("by a signal"), "interrupted"),
        (InterruptedAtStart(), "interrupted"),
        (Stalled("no progress"), "stopped"),
        (InvariantBroken("ours"), "failed"),
        (RuntimeError("anything"), "failed"),
    ],
)
def test_what_ended_a_run_has_one_outcome(error: Exception, status: str) -> None:
    async def work() -> None:
        raise error

    end = asyncio.run(ended_by(work(), Run(CONFIG, 4, FakeFleet()).control))
    assert end.status == status
    assert end.error is (None if status == "interrupted" else error)


def test_an_error_that_explains_itself_has_no_traceback_and_any_other_has_one_line_and_a_traceback() -> None:
    explained = failure_of(EvenstepError("set this key"))
    assert explained[:2] == ("set this key", None)
    try:
        raise RuntimeError("first line\nsecond line")
    except RuntimeError as error:
        other = failure_of(error)
    assert other.says == "RuntimeError: first line second line"
    assert other.traceback is not None
    assert "test_ends.py" in other.traceback


def test_the_most_frequent_reason_of_failed_attempts_is_told_in_one_line_with_its_newest_example() -> None:
    failed = FailedAttempts()
    assert str(failed) == ""
    for line in (3, 9):
        failed.add(f"data.jsonl:{line}: verifier 'm:f' returned nan for the completion 'x\ny'")
    failed.add("worker 1 died")
    newest = "data.jsonl:9: verifier 'm:f' returned nan for the completion 'x y'"
    assert str(failed) == f"3 attempts failed, 2 of them in one way: {newest}"


@pytest.mark.parametrize(("differs", "written"), [({}, 0), ({"first_prompt": 9}, 1)])
def test_an_end_in_the_very_state_of_the_newest_checkpoint_writes_no_other(
    differs: dict[str, int], written: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fakes, "FakeRecorder", ReportingRecorder)
    trainer, resumed = TimedTrainer(), tmp_path / "checkpoint-000001-step-00000000"
    run = Run(CONFIG, 4, FakeFleet(), trainer, checkpointing={"enabled": True})
    begun = BegunRun(run.control, run.pumps, trainer, run.recorder, Outcome("completed", None), resumed, ran=True)  # type: ignore[arg-type]
    saved = snapshot(run.core)
    run.pumps.checkpoints.newest = {**saved, "incarnation": 7, **differs}
    asyncio.run(save_at_end(begun, End("interrupted", None), tmp_path, load_settings(None, []), lambda: None))
    assert len(trainer.saved) == written
    assert (begun.outcome.checkpoint == resumed) is (written == 0)


def test_a_trainer_that_hangs_is_asked_for_nothing_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run is restarted at once, from the checkpoint before."""
    monkeypatch.setattr(fakes, "FakeRecorder", ReportingRecorder)
    trainer = TimedTrainer()
    run = Run(CONFIG, 4, FakeFleet(), trainer, checkpointing={"enabled": True})
    begun = BegunRun(run.control, run.pumps, trainer, run.recorder, Outcome("completed", None), None, ran=True)  # type: ignore[arg-type]
    end = End("failed", TrainerSilent("the trainer has not finished chunk 3"))
    asyncio.run(save_at_end(begun, end, tmp_path, load_settings(None, []), lambda: None))
    assert (trainer.saved, begun.outcome.model) == ([], None)
    assert begun.outcome.lost == ("the weights were not saved: the trainer does not answer",)


def test_a_save_is_waited_for_as_long_as_it_writes(tmp_path: Path) -> None:
    told: list[int] = []

    async def slow() -> str:
        for number in range(8):
            (tmp_path / f"part-{number}").write_bytes(b"x")
            await asyncio.sleep(0.1)
        return "saved"

    async def scenario() -> str:
        return await while_it_grows(slow(), tmp_path, 0.5, lambda: told.append(bytes_below(tmp_path)))

    assert asyncio.run(scenario()) == "saved"
    assert len(told) >= 2
    assert told == sorted(told)


def test_a_save_that_stands_still_is_given_up_and_the_error_says_where_and_what_to_set(tmp_path: Path) -> None:
    async def hangs() -> None:
        await asyncio.Event().wait()

    async def scenario() -> None:
        await asyncio.wait_for(while_it_grows(hangs(), tmp_path / "checkpoints", 0.1, lambda: None), 30)

    with pytest.raises(SaveStoodStill, match=r"nothing was written to .*checkpoints .*cluster.shutdown_timeout_s"):
        asyncio.run(scenario())


def test_what_a_save_raises_is_raised(tmp_path: Path) -> None:
    async def fails() -> None:
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        asyncio.run(while_it_grows(fails(), tmp_path, 1.0, lambda: None))
