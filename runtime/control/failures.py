"""How a failed run gives its reason: the first cause, in one line, and the traceback apart, for a developer."""

import traceback
from collections import Counter
from typing import NamedTuple

from fsm.errors import EvenstepError, InvariantBroken
from runtime.checkpoints.checkpoint import CheckpointRefused
from runtime.generation.engine import PolicyNotFinite, RequestRefused
from runtime.groups import KINDS_KEPT, kind_of_failure
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


class FailedAttempts:
    """The failed attempts of a run, by kind; only the first KINDS_KEPT kinds are told apart."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._newest: dict[str, str] = {}

    def add(self, why: str) -> None:
        kind = kind_of_failure(why)
        known = kind in self._newest or len(self._newest) < KINDS_KEPT
        self._counts[kind if known else ""] += 1
        self._newest[kind if known else ""] = why

    def __str__(self) -> str:
        """How many there were, and the most frequent reason, in one line; empty without any."""
        if not self._counts:
            return ""
        [(kind, count)] = self._counts.most_common(1)
        attempts = self._counts.total()
        said = f"{attempts} attempt{'s' * (attempts > 1)} failed"
        why = " ".join(self._newest[kind].split())
        return f"{said}{f', {count} of them in one way' * (count < attempts)}: {why:.{_LINE_MAX}}"


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
