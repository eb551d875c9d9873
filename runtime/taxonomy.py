"""The failure taxonomy: whose fault an error is, read off the error itself, in the process that raised it.

An error that crosses a process is a text, so `cause_of` is called where it is caught. Each cause belongs to one of
L7's two kinds: infra failures are retried after a backoff, and data failures, which another try repeats, at once and
less often. docs/failures.md has the same table in words.

Imports the standard library alone, since verdict and environment processes import it. Errors of packages are therefore
known by package and class name.
"""

import errno
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from typing import Any
from urllib.error import URLError


class FailureCause(StrEnum):
    """What an error shows. All but PROMPT and DATA are infra."""

    TIMEOUT = "timeout"
    CONNECTION = "connection"
    SERVICE = "service"
    MEMORY = "memory"
    DEVICE = "device"
    PROCESS = "process"
    OBJECT = "object"
    SYSTEM = "system"
    PROMPT = "prompt"
    DATA = "data"

    @property
    def infra(self) -> bool:
        """Whether a retry elsewhere, or later, may succeed."""
        return self not in (FailureCause.PROMPT, FailureCause.DATA)


NAMES: Mapping[FailureCause, frozenset[str]] = {
    FailureCause.TIMEOUT: frozenset((
        "builtins.TimeoutError", "httpx.TimeoutException", "requests.Timeout", "urllib3.TimeoutError",
        "openai.APITimeoutError", "anthropic.APITimeoutError", "ray.GetTimeoutError",
    )),
    FailureCause.CONNECTION: frozenset((
        "builtins.ConnectionError", "socket.gaierror", "ssl.SSLError", "asyncio.IncompleteReadError",
        "http.BadStatusLine", "http.IncompleteRead", "httpx.TransportError", "requests.ConnectionError",
        "requests.ChunkedEncodingError", "urllib3.ProtocolError", "urllib3.MaxRetryError",
        "aiohttp.ClientConnectionError", "aiohttp.ClientPayloadError", "websockets.ConnectionClosed",
        "openai.APIConnectionError", "anthropic.APIConnectionError",
    )),
    FailureCause.MEMORY: frozenset(("builtins.MemoryError", "torch.OutOfMemoryError", "ray.OutOfMemoryError")),
    FailureCause.DEVICE: frozenset((
        "torch.AcceleratorError", "torch.DistBackendError", "torch.DistNetworkError", "vllm.EngineDeadError",
    )),
    FailureCause.PROCESS: frozenset((
        "ray.RayActorError", "ray.WorkerCrashedError", "ray.NodeDiedError", "concurrent.BrokenExecutor",
        "runtime.EnvironmentLost", "runtime.RowsNotStored",
    )),
    FailureCause.OBJECT: frozenset(("ray.ObjectLostError", "ray.ObjectStoreFullError", "ray.OutOfDiskError")),
    FailureCause.PROMPT: frozenset(("runtime.PromptTooLong", "runtime.TurnTooLong")),
}  # fmt: skip
"""Classes by cause, as package and class name; subclasses count too."""
NOT_TRANSPORT = "ssl.SSLCertVerificationError"
"""A certificate that does not verify will not verify next time."""
STATUS: Mapping[str, Callable[[Any], object]] = {
    "httpx.HTTPStatusError": lambda error: error.response.status_code,
    "requests.HTTPError": lambda error: error.response.status_code,
    "aiohttp.ClientResponseError": lambda error: error.status,
    "urllib.HTTPError": lambda error: error.code,
    "openai.APIStatusError": lambda error: error.status_code,
    "anthropic.APIStatusError": lambda error: error.status_code,
}
"""Errors that carry an HTTP status, and where."""
ERRNOS: Mapping[int, FailureCause] = {
    **dict.fromkeys(
        (errno.EHOSTUNREACH, errno.EHOSTDOWN, errno.ENETUNREACH, errno.ENETDOWN, errno.ENETRESET, errno.ENOTCONN),
        FailureCause.CONNECTION,
    ),
    errno.ENOMEM: FailureCause.MEMORY,
    **dict.fromkeys(
        (errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE),
        FailureCause.SYSTEM,
    ),
}
"""Of an OSError that no class tells apart."""


def cause_of(error: BaseException) -> FailureCause:
    """The cause of an error, of the errors that it was raised `from`, or of all in its group."""
    for each in _chain(error):
        if isinstance(each, BaseExceptionGroup):
            causes = [cause_of(inner) for inner in each.exceptions]
            return causes[0] if all(cause.infra for cause in causes) else FailureCause.DATA
        if (cause := _own(each)) is not None:
            return cause
    return FailureCause.DATA


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error, then the one that it was raised from, and so on."""
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        yield found
        found = found.__cause__


def _own(error: BaseException) -> FailureCause | None:
    """What the error itself shows; None if it could be anything."""
    names = {f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(error).__mro__}
    for name in STATUS.keys() & names:
        status = STATUS[name](error)
        refused = isinstance(status, int) and (status in (408, 429) or 500 <= status <= 599)
        return FailureCause.SERVICE if refused else FailureCause.DATA
    if NOT_TRANSPORT in names:
        return FailureCause.DATA
    if isinstance(error, URLError) and isinstance(error.reason, BaseException):
        return cause_of(error.reason)
    found = next((cause for cause, known in NAMES.items() if known & names), None)
    if found is None and isinstance(error, OSError) and error.errno is not None:
        return ERRNOS.get(error.errno)
    return found
