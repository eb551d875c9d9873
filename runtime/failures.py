"""What ended a run, out of the errors of the actors that it went through."""

from __future__ import annotations

from ray.exceptions import RayTaskError

from fsm.errors import EvenstepError
from runtime.checkpoint import CheckpointRefused
from runtime.generation.errors import PolicyNotFinite, RequestRefused, UnsupportedModel
from runtime.metric_writers import MetricsBackendMissing
from runtime.tasks.errors import DataFailure, TaskError
from runtime.unwritten import FileNotWritten

SELF_EXPLANATORY = (
    DataFailure, TaskError, CheckpointRefused, RequestRefused, UnsupportedModel, PolicyNotFinite, MetricsBackendMissing,
    FileNotWritten,
)  # fmt: skip
"""Errors of actors that say who is to blame and what to do; where they were raised helps nobody."""


def first_cause(error: BaseException) -> BaseException:
    """The error that was raised first, below those of the actors that handed it on."""
    cause = error
    while isinstance(cause, RayTaskError) and isinstance(cause.cause, BaseException):
        cause = cause.cause
    return cause


def failure_said(error: BaseException) -> str:
    """The first cause: its message; before that its type, where the message alone does not say who is to blame."""
    cause = first_cause(error)
    return str(cause) if isinstance(cause, (*SELF_EXPLANATORY, EvenstepError)) else f"{type(cause).__name__}: {cause}"
