"""Verifiers that a configuration may name (`runtime.tasks.verifiers:exact`): the reward of a completion, in [0, 1]."""

from __future__ import annotations

import re

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def exact(completion: str, answer: str) -> float:
    """1 if both are equal, apart from blanks around them."""
    return float(completion.strip() == answer.strip())


def last_number(completion: str, answer: str) -> float:
    """1 if the last number in the completion equals the answer. Raises ValueError if the answer is not a number."""
    numbers = _NUMBER.findall(completion.replace(",", ""))
    return float(bool(numbers) and float(numbers[-1]) == float(answer.replace(",", "")))
