"""How a failed run gives its reason: the first cause, in one line, and the traceback apart, for a developer."""

import traceback
from typing import NamedTuple

from fsm.errors import EvenstepError, InvariantBroken
from runtime.checkpoints.checkpoint import CheckpointRefused
from runtime.generation.engine import PolicyNotFinite, RequestRefused
from runtime.metrics.writers import MetricsBackendMissing
from runtime.models.directory import ModelNotSaved, UnsupportedModel
from runtime.tasks.base import DataFailure, TaskError
from runtime.trace.notes import Status

_SELF_EXPLANATORY = (
    EvenstepError, DataFailure, TaskError, CheckpointRefused, RequestRefused, UnsupportedModel, PolicyNotFinite,
    MetricsBackendMissing, ModelNotSaved,
)  # fmt: skip
"""Errors that name who is to blame and the remedy, so their traceback is left out."""
_LINE_MAX = 600


class RunFailed(EvenstepError):
    """A run ended with an error before it had begun: nothing was trained."""

    def __init__(self, says: str, traceback: str | None = None, status: Status = "failed") -> None:
        super().__init__(says)
        self.status = status
        """Stopped, where the watchdog ended it (W2)."""
        self.traceback = traceback
        """For a developer; None where the error says what to do."""


class InterruptedAtStart(EvenstepError):
    """The run was interrupted before it had begun: nothing was trained, and a checkpoint is unchanged."""

    def __str__(self) -> str:
        return "interrupted before the run had begun: nothing was trained; it may be started again"


class RunFailure(NamedTuple):
    """An error in words."""

    says: str
    """One line; all of a self-explanatory error's message."""
    traceback: str | None
    cause: BaseException
    """The error that was raised first."""


def failure_of(error: BaseException) -> RunFailure:
    """The first cause of an error: Ray wraps it once for each actor that it passes through."""
    from ray.exceptions import RayTaskError

    cause = error
    while isinstance(cause, RayTaskError) and isinstance(cause.cause, BaseException):
        cause = cause.cause
    if isinstance(cause, _SELF_EXPLANATORY) and not isinstance(cause, InvariantBroken):
        return RunFailure(str(cause), None, cause)
    says = " ".join(str(cause).split())
    if len(says) > _LINE_MAX:
        says = f"{says[:_LINE_MAX]} …"
    return RunFailure(f"{type(cause).__name__}: {says}", "".join(traceback.format_exception(error)), cause)
