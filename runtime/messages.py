"""What the controller tells the process that started the run, in a stream."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.explaining.live import Standing

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class StepDone:
    """A step is closed and its weights are synced; `record` is a `StepRecord` as JSON."""

    record: Json


@dataclass(frozen=True, slots=True)
class Validated:
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

    status: str
    """completed, stopped, or interrupted."""
    error: str | None
    """Why it was stopped."""
    accuracy_before: float | None
    accuracy_after: float | None
    closed: list[dict[str, int]]
    balance: dict[str, int]
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


Message = StepDone | Validated | Notice | Standing | Outcome
"""The last message of a stream is the Outcome."""
