"""How a run that failed says why: the first cause, in one line, and the traceback apart for whoever mends it."""

from __future__ import annotations

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
"""Errors that say who is to blame and what to do; where they were raised helps nobody."""
_LINE_MAX = 600


class RunFailed(EvenstepError):
    """A run ended with an error before it had begun: nothing was trained."""

    def __init__(self, says: str, traceback: str | None = None, status: Status = "failed") -> None:
        super().__init__(says)
        self.status = status
        """Stopped, where it was the watchdog (W2)."""
        self.traceback = traceback
        """For whoever mends it; None where the error says what to do."""


class InterruptedAtStart(EvenstepError):
    """The run was interrupted before it had begun: nothing was trained, and a checkpoint is as it was."""

    def __init__(self) -> None:
        super().__init__("interrupted before the run had begun: nothing was trained; it may be started again")

    def __reduce__(self) -> tuple[type[InterruptedAtStart], tuple[()]]:
        return type(self), ()  # it crosses processes


class RunFailure(NamedTuple):
    """An error, told."""

    says: str
    """One line; or what an error that explains itself says."""
    traceback: str | None
    cause: BaseException
    """What was raised first."""


def failure_of(error: BaseException) -> RunFailure:
    """What an error says, out of the errors of the actors that it went through."""
    cause = _cause(error)
    if isinstance(cause, _SELF_EXPLANATORY) and not isinstance(cause, InvariantBroken):
        return RunFailure(str(cause), None, cause)
    says = " ".join(str(cause).split())
    if len(says) > _LINE_MAX:
        says = f"{says[:_LINE_MAX]} …"
    return RunFailure(f"{type(cause).__name__}: {says}", "".join(traceback.format_exception(error)), cause)


def _cause(error: BaseException) -> BaseException:
    """What was raised first: Ray wraps it once for each actor that it goes through."""
    from ray.exceptions import RayTaskError

    while isinstance(error, RayTaskError) and isinstance(error.cause, BaseException):
        error = error.cause
    return error
