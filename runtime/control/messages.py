"""Between the controller and the process that started the run: the plan, the messages, and who waits how long."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from runtime.checkpoints.origin import Origin
from runtime.checkpoints.resume import ResumePoint
from runtime.evaluation.config import TRAINING
from runtime.evaluation.sets import HeldOut
from runtime.explain.live import Standing
from runtime.files import Json
from runtime.settings import Settings
from runtime.trace.notes import Status

if TYPE_CHECKING:
    from runtime.naming import Names  # it imports Ray


STEP_SHARE, SAVING_SHARE, CLOSING_SHARE, HEARING_SHARE, TEARDOWN_SHARE = 0.25, 0.3, 0.08, 0.75, 0.2
"""Parts of `cluster.shutdown_timeout_s`: an optimizer step under way may take STEP_SHARE more; a save may stand still
for SAVING_SHARE; generation workers have CLOSING_SHARE to end their engines, and reward workers their verifiers; the
process that started the run waits HEARING_SHARE for news of its end; Ray has TEARDOWN_SHARE to shut down before it is
killed. Those that follow one another add up to less than the whole."""


@dataclass(frozen=True, slots=True)
class Start:
    """What is decided before anything starts."""

    num_prompts: int
    """Of one epoch."""
    held_out: HeldOut
    """Prompts of each set that is measured."""
    origin: Origin
    """Of the checkpoints that the run writes."""
    resume: ResumePoint | None
    prompts_of_sets: Mapping[str, str] = field(default_factory=dict)
    """The hash of the held-out prompts and answers of each set whose prompts are listed (`identity_of`)."""

    @property
    def began_with(self) -> dict[str, str]:
        """The hashes of all data, of sets by their names: a process that restarts must find the same."""
        return {TRAINING: self.origin.prompts, **self.prompts_of_sets}


@dataclass(frozen=True, slots=True)
class RunPlan:
    """All that defines a run."""

    settings: Settings
    names: "Names"
    model_directory: Path
    output: Path
    start: Start
    began_s: float = field(default_factory=time.monotonic)
    """When the command began, on this machine's monotonic clock."""
    restarts: int = 0
    """Of this run by its driver, so far."""

    @property
    def snapshot(self) -> Json | None:
        return None if self.start.resume is None else self.start.resume.control

    @property
    def closing_s(self) -> float:
        """How long workers have to end what they have started."""
        return CLOSING_SHARE * self.settings.cluster.shutdown_timeout_s


@dataclass(frozen=True, slots=True)
class StepDone:
    """A step is closed and its weights are synced; `record` is a `StepRecord` as JSON."""

    record: Json


@dataclass(frozen=True, slots=True)
class ValidationDone:
    """A set is measured."""

    step: int
    name: str
    accuracy: float


@dataclass(frozen=True, slots=True)
class Notice:
    """One line for the user."""

    text: str


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a long part of the start is."""

    what: str
    """Such as "reading data.jsonl"."""
    done: int
    total: int
    """0 if it is not known."""


@dataclass(frozen=True, slots=True)
class ControllerRuns:
    """The controller has started, on this machine."""

    pid: int
    stacks: int
    """The file descriptor of `runtime.control.held`."""


@dataclass(frozen=True, slots=True)
class ClientRuns:
    """The process that hears the controller runs; it may have heard nothing."""


@dataclass(slots=True)
class Outcome:
    """The end of a run; before that, what is known of it so far."""

    status: Status
    error: str | None
    """The first cause; None for a run that completed, or that the user interrupted."""
    lost: tuple[str, ...] = ()
    failed_attempts: str = ""
    """How many attempts failed since the run began or resumed, and the most frequent reason; empty if none did."""
    accuracy_by_set: dict[str, dict[str, float]] = field(default_factory=dict)
    """By name of the set, in order: `before` the run, and `after` one that completed."""
    closed: list[dict[str, int]] = field(default_factory=list)
    balance: dict[str, int] = field(default_factory=dict)
    """Empty if the controller died before it reported it."""
    rl_s: float = 0.0
    """From the first rollout to the end of the last step."""
    core_s: float = 0.0
    """CPU time of the core and its observers in that time."""
    controller_cpu_s: float = 0.0
    """CPU time of the controller's whole process in that time, Ray's threads included."""
    trace_cpu_s: float = 0.0
    """The part of it that the thread took which writes the trace."""
    late_answers: int = 0
    worker_restarts: int = 0
    steps_without_tokens: int = 0
    """Steps, since the run began or resumed, in which overlong filtering left no token to train on."""
    steps_not_applied: int = 0
    """Steps, since then, whose loss or gradient was not finite."""
    trace: Path | None = None
    checkpoint: Path | None = None
    """The last one written."""
    checkpoints_lost: int = 0
    """Checkpoints, since the run began or resumed, that could not be written."""
    model: Path | None = None
    """The last weights as a Hugging Face directory; None where they were not saved."""
    traceback: str | None = None
    """The error's, for a developer; None where the error says what to do."""
    infra: bool = False
    """The error is infrastructure's: a process that died, or an object that is lost. Another attempt may go well."""
    restarts: tuple[str, ...] = ()
    """Why the run was restarted, and from where, each time."""

    @property
    def accuracy_before(self) -> float | None:
        """Of the first set; None if it was not measured."""
        return next(iter(self.accuracy_by_set.values()), {}).get("before")

    @property
    def accuracy_after(self) -> float | None:
        """Of the first set; None if it was not measured."""
        return next(iter(self.accuracy_by_set.values()), {}).get("after")


@dataclass(frozen=True, slots=True)
class Ending:
    """The run is over and being saved: its outcome if no other message came. Sent again while saving continues."""

    outcome: Outcome


Message = StepDone | ValidationDone | Notice | Progress | Standing | Ending | ControllerRuns | ClientRuns | Outcome
"""The last message of a stream is the Outcome."""
Listener = Callable[[Message], None]
