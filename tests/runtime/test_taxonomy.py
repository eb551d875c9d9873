"""Whose fault an error is."""

import errno
import re
import socket
import ssl
import urllib.error
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
import requests
import torch
from ray.exceptions import ActorDiedError, ObjectLostError, RayTaskError

from runtime.generation.engine import PromptTooLong
from runtime.taxonomy import ERRNOS, NAMES, STATUS, FailureCause, cause_of

DOCUMENT = Path(__file__).parents[2] / "docs" / "failures.md"


def in_package(package: str, name: str, **attributes: Any) -> BaseException:
    """An error of a package that may not be installed."""
    kind = type(name, (Exception,), {"__module__": f"{package}._exceptions"})
    error: BaseException = kind("made by a test")
    for attribute, value in attributes.items():
        setattr(error, attribute, value)
    return error


def response(status: int) -> requests.Response:
    answered = requests.Response()
    answered.status_code = status
    return answered


def raised_from(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


def http_error(code: int) -> urllib.error.HTTPError:
    return urllib.error.HTTPError("http://judge", code, "no", Message(), None)


EXAMPLES: list[tuple[BaseException, FailureCause]] = [
    (TimeoutError("the judge"), FailureCause.TIMEOUT),
    (OSError(errno.ETIMEDOUT, "timed out"), FailureCause.TIMEOUT),
    (requests.ReadTimeout("judge"), FailureCause.TIMEOUT),
    (in_package("httpx", "TimeoutException"), FailureCause.TIMEOUT),
    (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), FailureCause.CONNECTION),
    (OSError(errno.ECONNREFUSED, "refused"), FailureCause.CONNECTION),
    (BrokenPipeError(), FailureCause.CONNECTION),
    (OSError(errno.EHOSTUNREACH, "no route"), FailureCause.CONNECTION),
    (socket.gaierror(socket.EAI_AGAIN, "try again"), FailureCause.CONNECTION),
    (ssl.SSLError("record"), FailureCause.CONNECTION),
    (ssl.SSLCertVerificationError("self-signed"), FailureCause.DATA),
    (requests.ConnectionError("judge"), FailureCause.CONNECTION),
    (in_package("aiohttp", "ClientConnectionError"), FailureCause.CONNECTION),
    (in_package("httpx", "TransportError"), FailureCause.CONNECTION),
    (urllib.error.URLError(ConnectionRefusedError()), FailureCause.CONNECTION),
    (urllib.error.URLError("unknown url type"), FailureCause.DATA),
    (requests.HTTPError(response=response(429)), FailureCause.SERVICE),
    (requests.HTTPError(response=response(404)), FailureCause.DATA),
    (in_package("aiohttp", "ClientResponseError", status=503), FailureCause.SERVICE),
    (in_package("openai", "APIStatusError", status_code=408), FailureCause.SERVICE),
    (in_package("openai", "APIStatusError", status_code=400), FailureCause.DATA),
    (http_error(500), FailureCause.SERVICE),
    (http_error(422), FailureCause.DATA),
    (MemoryError(), FailureCause.MEMORY),
    (OSError(errno.ENOMEM, "no memory"), FailureCause.MEMORY),
    (torch.cuda.OutOfMemoryError("CUDA out of memory"), FailureCause.MEMORY),
    (in_package("torch", "AcceleratorError"), FailureCause.DEVICE),
    (in_package("vllm", "EngineDeadError"), FailureCause.DEVICE),
    (ActorDiedError(), FailureCause.PROCESS),
    (RayTaskError("f", "traceback", ActorDiedError()).as_instanceof_cause(), FailureCause.PROCESS),
    (ObjectLostError("00", None, "call"), FailureCause.OBJECT),
    (OSError(errno.EMFILE, "too many open files"), FailureCause.SYSTEM),
    (FileNotFoundError(errno.ENOENT, "no such file"), FailureCause.DATA),
    (PromptTooLong("r", 900, 512), FailureCause.PROMPT),
    (ValueError("no number"), FailureCause.DATA),
    (raised_from(RuntimeError("the judge failed"), TimeoutError()), FailureCause.TIMEOUT),
    (raised_from(requests.HTTPError(response=response(404)), TimeoutError()), FailureCause.DATA),
    (ExceptionGroup("both", [TimeoutError(), ConnectionResetError()]), FailureCause.TIMEOUT),
    (ExceptionGroup("one", [TimeoutError(), ValueError()]), FailureCause.DATA),
]


@pytest.mark.parametrize(("error", "cause"), EXAMPLES, ids=[f"{error!r:.60}" for error, _ in EXAMPLES])
def test_the_cause_of_an_error(error: BaseException, cause: FailureCause) -> None:
    assert cause_of(error) is cause


def test_errors_that_were_raised_from_each_other_end() -> None:
    one, other = RuntimeError("one"), RuntimeError("other")
    one.__cause__, other.__cause__ = other, one
    assert cause_of(one) is FailureCause.DATA


def rows_of_the_document() -> dict[str, tuple[str, str]]:
    text = DOCUMENT.read_text(encoding="utf-8")
    table = text.partition("<!-- table of causes")[2].partition("<!-- end of the table")[0]
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines() if "| `" in line]
    return {cells[0].strip("| `"): (cells[1], cells[2]) for cells in rows}


@pytest.mark.parametrize("cause", FailureCause, ids=str)
def test_the_document_has_each_cause_with_its_kind_and_every_error_that_shows_it(cause: FailureCause) -> None:
    kind, errors = rows_of_the_document()[cause.value]
    assert kind == ("infra" if cause.infra else "data")
    known = set(STATUS) if cause is FailureCause.SERVICE else set(NAMES.get(cause, ()))
    assert set(re.findall(r"`(\w+\.\w+)`", errors)) == known
    codes = {errno.errorcode[number] for number, of in ERRNOS.items() if of is cause}
    assert codes <= set(re.findall(r"E[A-Z]+\b", errors))
    assert any(of is cause for _, of in EXAMPLES)


def test_the_document_has_no_other_cause() -> None:
    assert set(rows_of_the_document()) == {cause.value for cause in FailureCause}
