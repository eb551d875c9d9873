"""Judges: users' verifiers and reasoning-gym's scorers, as a verdict process loads and calls them.

Imports the standard library alone at the top, since every verdict process imports this module.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal, Protocol, runtime_checkable

from runtime.tasks.base import NoReward, Rate, TaskError, Verdict

Verifier = Callable[[str, str], Any]
"""Returns a reward in [0, 1] or a bool; `as_reward` checks what it really returned."""


@dataclass(frozen=True, slots=True)
class FunctionJudge:
    """`module:function`, called with the completion and the answer."""

    target: str
    correct_at: float

    @property
    def name(self) -> str:
        return f"verifier {self.target!r}"

    def open(self) -> Rate:
        verifier = load_verifier(self.target)

        def rate(completion: str, answer: str) -> Verdict:
            reward = as_reward(verifier(completion, answer))
            return Verdict(reward=reward, correct=reward >= self.correct_at)

        return rate


@dataclass(frozen=True, slots=True)
class GymJudge:
    """The scorer of a reasoning-gym dataset, and how its scores become rewards."""

    dataset: str
    options: dict[str, Any]
    seed: int
    size: int
    correct_at: float
    reward: Literal["binary", "score"]
    junk_at_most: float

    @property
    def name(self) -> str:
        return f"the scorer of reasoning_gym {self.dataset!r}"

    def open(self) -> Rate:
        import reasoning_gym

        dataset = reasoning_gym.create_dataset(self.dataset, size=self.size, seed=self.seed, **self.options)

        def rate(answer: str | None, entry: dict[str, Any]) -> Verdict:
            if answer is None:  # the completion has none
                return Verdict(reward=0.0, correct=False)
            score = float(dataset.score_answer(answer=answer, entry=entry))
            correct = score >= self.correct_at
            if self.reward == "binary":
                return Verdict(reward=float(correct), correct=correct)
            return Verdict(reward=0.0 if score <= self.junk_at_most else min(score, 1.0), correct=correct)

        return rate


@runtime_checkable
class _Scalar(Protocol):
    """An array or tensor, as of numpy and torch, that can give its one element as a Python number."""

    def item(self) -> object: ...


def as_reward(returned: object) -> float:
    """The reward that a verifier returned: a number in [0, 1] of Python or numpy, or a tensor with one element.

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
    """At most 200 characters of the repr of a user's value. The repr itself may fail."""
    try:
        return f"{value!r:.200}"
    except Exception as error:
        return f"a {type(value).__name__} (whose repr raised {type(error).__name__})"


def load_verifier(target: str) -> Verifier:
    """The function that `module:function` names. Raises TaskError if it cannot be imported."""
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
