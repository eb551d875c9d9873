"""Verifiers for files of prompts and answers: completion and answer in, reward in [0, 1] out."""

from __future__ import annotations

import re

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def exact(completion: str, answer: str) -> float:
    """1 when they are equal, apart from blanks around them."""
    return float(completion.strip() == answer.strip())


def last_number(completion: str, answer: str) -> float:
    """1 when the last number in the completion equals the answer, which must be one.

    Raises ValueError when the answer is not a number.
    """
    numbers = _NUMBER.findall(completion.replace(",", ""))
    return float(bool(numbers) and float(numbers[-1]) == float(answer.replace(",", "")))
