"""What the controller tells the process that started the run, in a stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from runtime.explaining.live import Standing

Json = dict[str, Any]

Status = Literal["completed", "stopped", "failed", "interrupted"]
"""How a run ended (W3). Stopped: by a limit of its configuration. Failed: by an exception or a dead process."""
EXIT_CODES: Mapping[Status, int] = {"completed": 0, "stopped": 1, "failed": 1, "interrupted": 130}
"""Of `evenstep train` and `evenstep explain`."""


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

    status: Status
    error: str | None
    """Why it was stopped or failed, the first cause first."""
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
    trace: Path | None
    checkpoint: Path | None
    """The last one written."""


Message = StepDone | Validated | Notice | Standing | Outcome
"""The last message of a stream is the Outcome."""
