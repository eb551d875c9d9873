"""How a failed run gives its reason: the first cause, in one line, and the traceback apart, for a developer."""

import re
import traceback
from collections import Counter
from typing import NamedTuple

from fsm.errors import EvenstepError, InvariantBroken
from runtime.checkpoints.checkpoint import CheckpointRefused
from runtime.control.deadline import TrainerSilent
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
_ACTOR_NAME = re.compile(r"^\s+name: (\S+)", re.MULTILINE)
_WHY = re.compile(r"^(The actor (is dead|died) because|The node|Worker|The process).*$", re.MULTILINE)
_DETAIL = re.compile(r"^.*Worker exit detail: ")
_HINTS = re.compile(r" (Some common|There are some potential|Common) .*$")
"""In Ray's text on a dead actor: its name, the line with the cause, what precedes the cause there, what follows."""
_UNSERIALIZABLE = re.compile(r"Exception ray\.exceptions\.(\w+) isn't serializable:")
"""Ray cannot send its own error on a dead actor from one actor to another, and sends its text."""
_LOW_MEMORY = re.compile(r"running low on memory|Memory on the node")
_MEMORY = re.compile(r"was ([\d.]+) ?GB(?: used)? ?/ ?([\d.]+) ?GB")
"""In Ray's text on a process that it killed to free memory, of about 60 lines: gigabytes used, and of the machine."""
_IN_CONSTRUCTOR = "because of an error raised in its creation task"


class RunFailed(EvenstepError):
    """A run ended with an error before it had begun: nothing was trained."""

    def __init__(
        self, says: str, traceback: str | None = None, status: Status = "failed", *, infra: bool = False
    ) -> None:
        super().__init__(says)
        self.status = status
        """Stopped, where the watchdog ended it (W2); interrupted, where `checkpointing.max_wall_s` did."""
        self.traceback = traceback
        """For a developer; None where the error says what to do."""
        self.infra = infra
        """Infrastructure's fault: another attempt may go well."""


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
    infra: bool = False
    """A process died or hangs, or an object is lost, and no code of evenstep or of its user is known to be at fault."""


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
    from ray.exceptions import RayError, RayTaskError

    cause = error
    while isinstance(cause, RayTaskError) and isinstance(cause.cause, BaseException):
        cause = cause.cause
    if isinstance(cause, RayError) and _LOW_MEMORY.search(str(cause)):
        return RunFailure(_out_of_memory(str(cause)), None, cause, infra=True)
    if is_infra(cause):
        return RunFailure(_in_one_line(cause), None, cause, infra=True)
    if isinstance(cause, _SELF_EXPLANATORY) and not isinstance(cause, InvariantBroken):
        return RunFailure(str(cause), None, cause, infra=isinstance(cause, TrainerSilent))
    says = f"{type(cause).__name__}: {_shortened(str(cause))}"
    return RunFailure(says, "".join(traceback.format_exception(error)), cause)


def is_infra(error: BaseException) -> bool:
    """Whether Ray reports the loss of a process, a node or an object. False for an actor whose constructor raised."""
    from ray import exceptions

    lost = (
        exceptions.RayActorError, exceptions.WorkerCrashedError, exceptions.LocalRayletDiedError,
        exceptions.NodeDiedError, exceptions.ObjectLostError, exceptions.RaySystemError, exceptions.RpcError,
        exceptions.OutOfMemoryError,
    )  # fmt: skip
    kind, text = type(error), str(error)
    if kind is exceptions.RayError and (named := _UNSERIALIZABLE.match(text)):
        kind = vars(exceptions).get(named[1], kind)
    failed_itself = issubclass(kind, exceptions.RayActorError) and _IN_CONSTRUCTOR in text
    return issubclass(kind, lost) and not issubclass(kind, exceptions.RayTaskError) and not failed_itself


def _in_one_line(error: BaseException) -> str:
    """What was lost and why. Ray's text has a line for each property of the actor, and hints for all cases."""
    text = str(error)
    named = _ACTOR_NAME.search(text)
    if named is None:
        return f"{type(error).__name__}: {_shortened(text)}"
    why = _WHY.search(text)
    if why is None:
        return f"actor {named[1]} died, and Ray does not say why"
    return f"actor {named[1]} died: {_shortened(_DETAIL.sub('', _HINTS.sub('', why[0])))}"


def _out_of_memory(text: str) -> str:
    used, named = _MEMORY.search(text), _ACTOR_NAME.search(text)
    figures = f" ({used[1]} of {used[2]} GB used)" if used else ""
    killed = "a process of the run" if named is None else f"actor {named[1]}"
    return (
        f"the machine ran out of memory{figures}, and Ray killed {killed}: end other programs, or lower "
        "cluster.num_generation_workers; the same command starts a run that had not begun, and --resume continues one"
    )


def _shortened(text: str) -> str:
    says = " ".join(text.split())
    return says if len(says) <= _LINE_MAX else f"{says[:_LINE_MAX]} …"
