"""A verifier and an environment that call a service, which may be out of reach."""

import errno
from typing import Literal

from runtime.tasks.base import Completion, Verdict
from runtime.tasks.environments.interface import Answer, Environment, Episode


class Refusal(Exception):
    """What a client library raises, from what the system said."""


def call(what: str) -> str:
    """The service's answer."""
    match what:
        case "refused":
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
        case "wrapped":
            try:
                raise TimeoutError("no answer within 5 s")
            except TimeoutError as error:
                raise Refusal("the judge did not answer") from error
        case "bad-request":
            raise ValueError("HTTP 400: no such model")
    return what


def judged(completion: str, answer: str) -> float:
    return float(call(completion) == "good")


async def judged_async(completion: str, answer: str) -> float:
    return judged(completion, answer)


class Calling(Environment):
    """Its tool calls the service with the policy's turn."""

    num_items = 4

    def __init__(self, *, split: Literal["training", "validation"], seed: int) -> None:
        pass

    async def open(self, index: int) -> Episode:
        return _Call()


class _Call(Episode):
    prompt = "call"

    async def respond(self, turn: str) -> Answer:
        return call(turn)

    async def verdict(self, completion: Completion) -> Verdict:
        return Verdict(float(call(completion.text) == "good"), True)
