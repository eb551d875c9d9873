"""What the controller tells the process that started the run, in a stream."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.explain.live import Standing
from runtime.trace.notes import Status

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class StepDone:
    """A step is closed and its weights are synced; `record` is a `StepRecord` as JSON."""

    record: Json


@dataclass(frozen=True, slots=True)
class ValidationDone:
    """A validation is done."""

    step: int
    accuracy: float


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that a person should know."""

    text: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a run."""

    status: Status
    error: str | None
    """Why it did not complete, the first cause first; None where it completed or was interrupted."""
    lost: tuple[str, ...]
    """What the end of the run could not keep, and why."""
    accuracy_before: float | None
    accuracy_after: float | None
    """Of a run that completed."""
    closed: list[dict[str, int]]
    balance: dict[str, int]
    """Empty where the controller died and nobody knows it."""
    rl_s: float
    """From the first rollout to the end of the last step."""
    core_s: float
    """CPU time of the core and its observers in that time."""
    controller_cpu_s: float
    """CPU time of the controller's whole process in that time, Ray's threads included."""
    trace_cpu_s: float
    """Of these, of the thread that writes the trace."""
    late_answers: int
    worker_restarts: int
    steps_without_tokens: int
    """Steps, since the run began or was resumed, that overlong filtering left nothing to train on."""
    trace: Path | None
    checkpoint: Path | None
    """The last one written."""
    model: Path | None
    """The last weights as a Hugging Face directory; None where they were not saved."""
    traceback: str | None = None
    """Of the error, for whoever mends it; None where the error says what to do."""


@dataclass(frozen=True, slots=True)
class Ending:
    """The run is over and saves what it can: its outcome if nothing more came. Told again while saving goes on."""

    outcome: Outcome


Message = StepDone | ValidationDone | Notice | Standing | Ending | Outcome
"""The last message of a stream is the Outcome."""
