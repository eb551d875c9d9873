"""How a run that has begun ends: its outcome, and what is kept of it whatever ended it."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from fsm.errors import BudgetExceeded, EvenstepError, InvariantBroken, LimitReached, SamplerError
from fsm.machines.trainer import TrainerState
from fsm.snapshot import Json
from runtime.actors.fleet import Fleet
from runtime.actors.trainer_group import TrainerGroup
from runtime.checkpoints.names import CHECKPOINTS
from runtime.control.event_loop import Control
from runtime.control.failures import InterruptedAtStart, failure_of
from runtime.control.messages import Outcome
from runtime.control.pumps.pumps import Pumps
from runtime.control.run_recorder import RunRecorder
from runtime.control.saving import SAVING_SHARE, SaveStoodStill, while_it_grows
from runtime.output.starting import FINAL_MODEL
from runtime.output.summary import closed_steps
from runtime.settings import Settings
from runtime.trace.notes import Status


class RunInterrupted(EvenstepError):
    """The run was asked to end early, in a validation."""


class End(NamedTuple):
    """How a run ended."""

    status: Status
    error: BaseException | None
    """The first cause; None where it completed or was interrupted."""


@dataclass(slots=True)
class Life:
    """A run that has begun: its parts, and what is known of it so far."""

    control: Control
    pumps: Pumps
    trainer: TrainerGroup
    fleet: Fleet
    recorder: RunRecorder
    trace: Path | None
    went_on_from: Path | None
    """The checkpoint that a resumed run goes on from."""
    ran: bool = False
    """The core has begun: before, a resumed core is neither what it was nor what it will be."""
    before_stop: Json | None = None
    """The core's snapshot before the event that stopped it; None where none did."""
    accuracy_before: float | None = None
    accuracy_after: float | None = None
    began_s: float = field(default_factory=time.monotonic)
    """When the first rollout started, on the monotonic clock."""
    rl_s: float = 0.0
    """See Outcome, as the next two."""
    controller_cpu_s: float = 0.0
    trace_cpu_s: float = 0.0


@dataclass(slots=True)
class SavedAtEnd:
    """What is kept of a run."""

    checkpoint: Path | None
    """The last one written."""
    model: Path | None = None
    lost: list[str] = field(default_factory=list)
    """What could not be kept, and why."""


async def ended_by(work: Coroutine[Any, Any, None], control: Control) -> End:
    """How a part of the run ended: what it raised, or else what the core says."""
    try:
        await work
    except (RunInterrupted, InterruptedAtStart):
        return End("interrupted", None)
    except LimitReached as error:
        return End("stopped", error)
    except Exception as error:
        return End("failed", error)
    if control.core.error is not None:
        return End("stopped", control.core.error)
    return End("interrupted" if control.interrupted else "completed", None)


async def keep(
    life: Life, end: End, kept: SavedAtEnd, output: Path, settings: Settings, saving: Callable[[], None]
) -> None:
    """Save a checkpoint, where they are enabled, and the model: what fails is told in `kept.lost`.

    `saving` is called as it gets on. Both are taken between two optimizer steps. Where a step under way failed, its
    weights may be half a step's, and the last checkpoint is what there is.
    """
    pumps = life.pumps
    usual_s = max(pumps.training.longest_s, pumps.sync.longest_save_s)
    still_s = max(SAVING_SHARE * settings.cluster.shutdown_timeout_s, 2.0 * usual_s)
    core = life.control.core
    if end.status == "failed" and core.state.trainer.status is TrainerState.FINISHING:
        kept.lost.append(
            f"the weights were not saved: the run failed in the optimizer step {core.state.trainer.version}, which may "
            "have been half done"
        )
        return
    if settings.checkpointing.enabled and _wants_checkpoint(life, end, kept):
        directory = output / CHECKPOINTS
        try:
            save = life.pumps.sync.checkpoint(_snapshot_to_save(life, end))
            await while_it_grows(save, directory, still_s, saving)
        except SaveStoodStill as error:
            kept.lost.append(f"the last checkpoint and model were not saved: {error}")
            return
        except Exception as error:
            kept.lost.append(f"the last checkpoint was not saved: {failure_of(error).says}")
        kept.checkpoint = life.recorder.last_checkpoint
        saving()
    target = output / FINAL_MODEL
    try:
        kept.model = await while_it_grows(life.trainer.save_model(target), target.parent, still_s, saving)
    except Exception as error:
        kept.lost.append(f"the model was not saved: {failure_of(error).says}")


def _snapshot_to_save(life: Life, end: End) -> Json | None:
    """None for that of now.

    A prompt that overspends a budget is dropped, but not charged (L7), nor is one that a sampler fails to charge: a run
    that goes on must try it again.
    """
    before = life.before_stop
    if before is None or not isinstance(end.error, BudgetExceeded | SamplerError):
        return None
    same_weights = before["state"]["trainer"][1] == life.control.core.state.trainer.version
    return before if same_weights else None


def _wants_checkpoint(life: Life, end: End, kept: SavedAtEnd) -> bool:
    """Not where the last one is of this very end; not of a core that is wrong, nor of an unfinished step."""
    trainer = life.control.core.state.trainer
    if life.went_on_from is not None and not life.ran:
        kept.checkpoint = life.went_on_from
        return False
    if isinstance(end.error, InvariantBroken):
        kept.lost.append("no checkpoint was written of a state that breaks a rule")
        return False
    if trainer.status is TrainerState.FINISHING:
        kept.lost.append(f"no checkpoint was written within the optimizer step {trainer.version}, which is under way")
        return False
    return end.status != "completed" or life.recorder.last_checkpoint_step != trainer.version


def outcome_of(life: Life, end: End, kept: SavedAtEnd) -> Outcome:
    """The outcome, as far as it is known."""
    failure = None if end.error is None else failure_of(end.error)
    core, control, recorder = life.control.core, life.control, life.recorder
    return Outcome(
        status=end.status,
        error=None if failure is None else failure.says,
        lost=tuple(kept.lost),
        accuracy_before=life.accuracy_before,
        accuracy_after=life.accuracy_after,
        closed=closed_steps(core),
        balance=core.state.tally.as_counts(),
        rl_s=life.rl_s,
        core_s=control.core_s,
        controller_cpu_s=life.controller_cpu_s,
        trace_cpu_s=life.trace_cpu_s,
        late_answers=control.late_answers,
        worker_restarts=recorder.workers_lost,
        steps_without_tokens=recorder.steps_without_tokens,
        trace=life.trace,
        checkpoint=kept.checkpoint,
        model=kept.model,
        traceback=None if failure is None else failure.traceback,
    )
