"""Phase 4 of a run: its outcome, and what is saved of it, whichever way it ended.

A save is waited for as long as it writes, and given up when it stands still for longer than a healthy one may: while
the trainer finishes its current call, and while a written file is hashed and flushed, no byte comes.
"""

import asyncio
import json
import os
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from fsm.core import Core
from fsm.errors import BelowFloor, BudgetExceeded, EvenstepError, InvariantBroken, LimitReached, SamplerError
from fsm.explain import why_groups_are_lost
from fsm.machines.trainer import TrainerState
from fsm.snapshot import Json, snapshot
from runtime.checkpoints.checkpoint import CHECKPOINTS
from runtime.control.deadline import TrainerSilent
from runtime.control.event_loop import Control
from runtime.control.failures import InterruptedAtStart, RunFailure, failure_of
from runtime.control.messages import SAVING_SHARE, Outcome, RunPlan
from runtime.control.pumps.not_applied import NumbersNotFinite
from runtime.control.starting import BegunRun
from runtime.control.wall_clock import OutOfTime
from runtime.files import FileNotWritten
from runtime.generation.engine import PolicyNotFinite
from runtime.output.card import write_card
from runtime.output.directory import FINAL_MODEL
from runtime.output.summary import closed_steps
from runtime.settings import Settings
from runtime.trace.notes import Status

T = TypeVar("T")

HASHED_BYTES_PER_S = 100e6
"""Written files are hashed and flushed at this rate at least."""
_LOOKS = 8
"""How often a save is looked at within the time that it may stand still."""


class RunInterrupted(EvenstepError):
    """The run was asked to end early, in a validation."""


class SaveStoodStill(EvenstepError):
    """Nothing was written for too long: the process that saves hangs."""


class End(NamedTuple):
    """How a run ended."""

    status: Status
    error: BaseException | None
    """The first cause; None for a run that completed, or that the user interrupted."""


async def ended_by(work: Coroutine[Any, Any, None], control: Control) -> End:
    """How a part of the run ended: its error, or else the core's."""
    try:
        await work
    except (RunInterrupted, InterruptedAtStart):
        return End("interrupted", None)
    except OutOfTime as error:
        return End("interrupted", error)
    except LimitReached as error:
        return End("stopped", error)
    except Exception as error:
        return End("failed", error)
    if control.core.error is not None:
        return End("stopped", control.core.error)
    return End("interrupted" if control.interrupted else "completed", None)


async def save_at_end(run: BegunRun, end: End, output: Path, settings: Settings, saving: Callable[[], None]) -> None:
    """Save a checkpoint, if they are enabled, and the model; a failure goes to the outcome's `lost`.

    A checkpoint that is being written is waited for first. Calls `saving` as it advances. Both belong between two
    optimizer steps. After a failure in an optimizer step, the weights may be half a step's, so nothing is saved and
    the last checkpoint stays. It does also if the trainer hangs, and after a stop for numbers that are not finite,
    unless rewards alone are the cause.
    """
    trainer, pumps, outcome = run.control.core.state.trainer, run.pumps, run.outcome
    usual_s = max(pumps.training.longest_s, pumps.checkpoints.longest_s)
    still_s = max(SAVING_SHARE * settings.cluster.shutdown_timeout_s, 2.0 * usual_s)
    try:
        await _save_checkpoint(run, end, output / CHECKPOINTS, still_s, saving)
    except SaveStoodStill as error:
        outcome.lost += (f"the last checkpoint and model were not saved: {error}",)
        return
    finally:
        outcome.checkpoint = run.recorder.last_checkpoint or outcome.checkpoint
    if isinstance(end.error, TrainerSilent):
        outcome.lost += ("the weights were not saved: the trainer does not answer",)
        return
    if end.status == "failed" and trainer.status is TrainerState.FINISHING:
        outcome.lost += (
            f"the weights were not saved: the run failed in the optimizer step {trainer.version}, which may have been "
            "half done",
        )
        return
    if _weights_in_doubt(run, end):
        outcome.lost += ("the weights were not saved, since they may be why numbers were not finite",)
        return
    saving()
    target = output / FINAL_MODEL
    try:
        outcome.model = await while_it_grows(run.trainer.save_model(target), target.parent, still_s, saving)
    except Exception as error:
        outcome.lost += (f"the model was not saved: {failure_of(error).says}",)


async def _save_checkpoint(run: BegunRun, end: End, folder: Path, still_s: float, saving: Callable[[], None]) -> None:
    """Wait for a checkpoint that is being written, and write the run's last one if one is wanted.

    Raises SaveStoodStill; any other failure goes to the outcome's `lost`.
    """
    checkpoints, failure = run.pumps.checkpoints, None
    try:
        failure = await while_it_grows(checkpoints.written(), folder, still_s, saving)
        if checkpoints.config.enabled and _wants_checkpoint(run, end) and not _weights_in_doubt(run, end):
            failure = None
            await while_it_grows(checkpoints.save(_snapshot_to_save(run, end)), folder, still_s, saving)
    except SaveStoodStill:
        raise
    except Exception as error:
        failure = error
    if failure is not None:
        run.outcome.lost += (f"the last checkpoint was not saved: {failure_of(failure).says}",)


def _weights_in_doubt(run: BegunRun, end: End) -> bool:
    """Whether the run was ended by steps, attempts or a validation that these weights may have made fail."""
    if isinstance(end.error, NumbersNotFinite):
        return run.pumps.training.not_applied.in_doubt
    if end.error is not None and isinstance(failure_of(end.error).cause, PolicyNotFinite):
        return True
    doubted = run.recorder.doubted_version == run.control.core.state.trainer.version
    return isinstance(end.error, BudgetExceeded) and doubted


async def write_final_card(run: BegunRun, plan: RunPlan) -> None:
    """Write the card of the model that was saved, if one was. A disk that refuses it is reported, and costs no more."""
    if run.outcome.model is None:
        return
    try:
        step = run.control.core.state.trainer.version
        await asyncio.to_thread(write_card, run.outcome.model, plan.output, plan.settings, step)
    except FileNotWritten as error:
        run.recorder.not_written(error)


def _wants_checkpoint(run: BegunRun, end: End) -> bool:
    """No checkpoint by a trainer that hangs, of a wrong core, an unfinished step, or where the last is of this end."""
    trainer = run.control.core.state.trainer
    if isinstance(end.error, TrainerSilent):
        return False
    if end.status == "failed" and trainer.status is TrainerState.FINISHING:
        return False
    if run.resumed_from is not None and not run.ran:
        run.outcome.checkpoint = run.resumed_from
        return False
    if isinstance(end.error, InvariantBroken):
        run.outcome.lost += ("no checkpoint was written of a state that breaks a rule",)
        return False
    if trainer.status is TrainerState.FINISHING:
        run.outcome.lost += (
            f"no checkpoint was written within the optimizer step {trainer.version}, which is under way",
        )
        return False
    return not _is_saved(run, end)


def _is_saved(run: BegunRun, end: End) -> bool:
    """Whether the newest checkpoint is of this end: of its step where the run is completed, else of its very state."""
    saved = run.pumps.checkpoints.newest
    if saved is None:
        return False
    if run.recorder.last_checkpoint is None:
        run.outcome.checkpoint = run.resumed_from
    if end.status == "completed":
        return bool(saved["state"]["trainer"][1] == run.control.core.state.trainer.version)
    return _contents(saved) == _contents(_snapshot_to_save(run, end) or snapshot(run.control.core))


def _contents(control: Json) -> str:
    """A snapshot as text, without the number of the process that took it."""
    return json.dumps({**control, "incarnation": 0}, sort_keys=True)


def _snapshot_to_save(run: BegunRun, end: End) -> Json | None:
    """The snapshot before the event that stopped the run, if a resumed run must handle it again; None for the one now.

    A prompt that overspends a budget is dropped, but not charged (L7), nor is one that a sampler fails to charge: a run
    that resumes must try it again.
    """
    before = run.before_stop
    if before is None or not isinstance(end.error, BudgetExceeded | SamplerError):
        return None
    same_weights = before["state"]["trainer"][1] == run.control.core.state.trainer.version
    return before if same_weights else None


def outcome_of(run: BegunRun, end: End) -> Outcome:
    """The outcome, as far as it is known."""
    failure = None if end.error is None else failure_of(end.error)
    core, control, recorder = run.control.core, run.control, run.recorder
    return replace(
        run.outcome,
        status=end.status,
        error=None if failure is None else _in_words(failure, core),
        accuracy_by_set={name: dict(measured) for name, measured in run.outcome.accuracy_by_set.items()},
        closed=closed_steps(core),
        balance=core.state.sheet.as_counts(),
        core_s=control.core_s,
        late_answers=control.late_answers,
        checkpoints_lost=run.pumps.checkpoints.lost,
        worker_restarts=recorder.workers_lost,
        failed_attempts=str(recorder.failed_attempts),
        steps_without_tokens=recorder.steps_without_tokens,
        steps_not_applied=recorder.steps_not_applied,
        traceback=None if failure is None else failure.traceback,
        infra=failure is not None and failure.infra,
    )


def _in_words(failure: RunFailure, core: Core) -> str:
    """The core's error on a step below its floor (L6) does not know what made its groups lost."""
    why = why_groups_are_lost(core.state, core.limits) if isinstance(failure.cause, BelowFloor) else ""
    return f"{failure.says}. {why}" if why else failure.says


async def while_it_grows(work: Coroutine[Any, Any, T], folder: Path, still_s: float, tell: Callable[[], None]) -> T:
    """The result of a save into `folder`, which is waited for as long as the folder grows.

    Calls `tell` while it waits. Raises the save's error, and SaveStoodStill after `still_s` seconds without a byte, or
    the time that it takes to hash `folder` if that is longer.
    """
    task = asyncio.create_task(work)
    loop = asyncio.get_running_loop()
    size, since_s = bytes_below(folder), loop.time()
    while not (await asyncio.wait([task], timeout=still_s / _LOOKS))[0]:
        now = bytes_below(folder)
        stood_s = loop.time() - since_s
        if now != size:
            size, since_s = now, loop.time()
        elif stood_s > max(still_s, size / HASHED_BYTES_PER_S):
            task.cancel()
            raise SaveStoodStill(
                f"nothing was written to {folder} for {stood_s:.0f} s: the trainer does not answer, or gathers its "
                "weights for longer than that; a longer cluster.shutdown_timeout_s waits longer"
            )
        tell()
    return task.result()


def bytes_below(folder: Path) -> int:
    """Bytes in all files below a folder; 0 if it does not exist."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(root, name)).st_size
            except FileNotFoundError:
                continue  # renamed meanwhile
    return total
