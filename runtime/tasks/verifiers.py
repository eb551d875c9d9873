"""Verifiers that a configuration may name (`runtime.tasks.verifiers:exact`): 1 for a right completion, else 0."""

import re
from functools import lru_cache
from typing import Any

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def exact(completion: str, answer: str) -> float:
    """1 if both are equal, apart from blanks around them."""
    return float(completion.strip() == answer.strip())


def last_number(completion: str, answer: str) -> float:
    """1 if the last number in the completion equals the answer. Raises ValueError if the answer is not a number."""
    numbers = _NUMBER.findall(completion.replace(",", ""))
    return float(bool(numbers) and float(numbers[-1]) == float(answer.replace(",", "")))


def math(completion: str, answer: str) -> float:
    """1 if math_verify finds that an expression in the completion equals the answer, in LaTeX or in plain digits.

    An expression that takes longer than 5 s to read or to compare counts as wrong: math_verify has a deadline of its
    own, by SIGALRM. Raises ValueError if the answer cannot be read, and ImportError without math_verify.
    """
    right = _right(answer)
    math_verify = _math_verify()
    return float(math_verify.verify(right, math_verify.parse(completion)))


@lru_cache(maxsize=4096)
def _right(answer: str) -> Any:
    delimited = any(mark in answer for mark in ("$", r"\boxed", r"\(", r"\["))
    right = _math_verify().parse(answer if delimited else f"${answer}$")
    if not right:
        raise ValueError(f"math_verify cannot read the answer {answer!r:.200}; write it in LaTeX, as \\frac{{1}}{{2}}")
    return right


def _math_verify() -> Any:
    try:
        import math_verify
    except ImportError as error:
        raise ImportError(
            f"{error}; the verifier needs the package; in your clone: pip install -c constraints.txt -e '.[math]'"
        ) from error
    return math_verify
