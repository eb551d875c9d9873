"""What rates completions: functions that a configuration names, in processes of their own.

Whatever is imported here is imported by each of these processes: the standard library alone.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol, runtime_checkable

from runtime.tasks.errors import TaskError


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a rollout is worth. Accuracy counts `correct`; training uses `reward`, in [0, 1]."""

    reward: float
    correct: bool


Rate = Callable[..., Verdict]
"""Rates one case. Raises NoReward for what is no reward, and whatever the users' code raises."""

Verifier = Callable[[str, str], Any]
"""Returns a reward in [0, 1] or a bool; what it really returns is checked."""


class NoReward(Exception):
    """What was returned is not a reward in [0, 1]."""


class Judge(Protocol):
    """Describes what rates a task's completions. It is pickled, and opened in the process where it rates."""

    @property
    def name(self) -> str:
        """As in messages: `verifier 'my_verifiers:names'`."""
        ...

    def open(self) -> Rate:
        """Import and make what rates. Raises TaskError where there is no such thing, and what importing it raises."""
        ...


@dataclass(frozen=True, slots=True)
class FunctionJudge:
    """`module:function`, called with the completion and the answer."""

    target: str
    correct_at: float

    @property
    def name(self) -> str:
        """With its target."""
        return f"verifier {self.target!r}"

    def open(self) -> Rate:
        """Import the function."""
        verifier = load_verifier(self.target)

        def rate(completion: str, answer: str) -> Verdict:
            reward = as_reward(verifier(completion, answer))
            return Verdict(reward=reward, correct=reward >= self.correct_at)

        return rate


@runtime_checkable
class _Scalar(Protocol):
    """An array or tensor, as of numpy and torch, that can give its one element as a Python number."""

    def item(self) -> object:
        """The element."""
        ...


def as_reward(returned: object) -> float:
    """A number in [0, 1], whatever it is a number of: Python's, numpy's or a tensor with one element.

    Raises NoReward.
    """
    number = returned
    if isinstance(returned, _Scalar) and not isinstance(returned, type):
        try:
            number = returned.item()
        except Exception as error:
            raise NoReward(f"returned {shown(returned)}, whose item() raised {type(error).__name__}") from error
    if not isinstance(number, numbers.Real) or not 0 <= float(number) <= 1:
        raise NoReward(f"returned {shown(returned)}")
    return float(number)


def shown(value: object) -> str:
    """At most 200 characters that show a value of users' code, whose own description may fail."""
    try:
        return f"{value!r:.200}"
    except Exception as error:
        return f"a {type(value).__name__} (whose repr raised {type(error).__name__})"


def load_verifier(target: str) -> Verifier:
    """The function that `module:function` names. Raises TaskError when there is none."""
    module_name, _, function_name = target.partition(":")
    if not module_name or not function_name:
        raise TaskError(f"data.task.verifier {target!r}: write it as module:function")
    try:
        members = vars(import_module(module_name))
    except ImportError as error:
        raise TaskError(
            f"data.task.verifier {target!r}: importing {module_name} failed: {error}; it must be importable where "
            "evenstep runs (installed, or in PYTHONPATH)"
        ) from error
    if not callable(members.get(function_name)):
        functions = sorted(name for name, member in members.items() if callable(member) and not name.startswith("_"))
        raise TaskError(
            f"data.task.verifier {target!r}: {module_name} has no function {function_name!r}; it has "
            f"{', '.join(functions) or 'none'}"
        )
    verifier: Verifier = members[function_name]
    return verifier
