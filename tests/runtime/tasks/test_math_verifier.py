"""The verifier of mathematics: answers in LaTeX, by math_verify with its own deadline."""

import asyncio
import time

import pytest

from runtime.tasks.base import Verdict, VerdictFault
from runtime.tasks.judges import FunctionJudge, Verifier
from runtime.tasks.verdicts.handle import PoolSize
from runtime.tasks.verdicts.pool import VerdictPool

pytest.importorskip("math_verify")

RIGHT, WRONG = Verdict(1.0, True), Verdict(0.0, False)
TOWER = "9^{9^{9^{9}}}"
"""Comparing it with a number never ends."""


def rated(target: str, cases: list[tuple[str, str]], size: PoolSize) -> list[Verdict | VerdictFault]:
    """Completions against answers, all at once."""

    async def scenario() -> list[Verdict | VerdictFault]:
        pool = VerdictPool(FunctionJudge((Verifier(target, 1.0, None),), 1.0, None), size, 60.0)
        try:
            return await asyncio.gather(*(pool.rate((said, {"answer": answer})) for said, answer in cases))
        finally:
            await pool.close()

    return asyncio.run(asyncio.wait_for(scenario(), timeout=240))


@pytest.mark.parametrize("size", [PoolSize(2, 64), PoolSize(1, 1)])
def test_equal_expressions_are_right_under_every_setting_of_threads(size: PoolSize) -> None:
    cases = [
        (r"It is \boxed{\frac{1}{2}}.", "0.5"),
        ("The answer is 0.5.", r"\frac{1}{2}"),
        (r"so $x = 50\%$", r"$\frac12$"),
        (r"\boxed{(x+1)^2}", "x^2 + 2x + 1"),
        (r"$\{2, 1\}$", r"\{1,2\}"),
        ("The answer is 3.", r"\frac{1}{2}"),
        ("no idea", "12"),
        ("", "12"),
    ]
    answers = rated("runtime.tasks.verifiers:math", cases, size)
    assert answers == [*[RIGHT] * 5, *[WRONG] * 3]


def test_an_expression_that_never_ends_is_wrong_after_the_deadline_of_math_verify() -> None:
    began_s = time.monotonic()
    answers = rated("runtime.tasks.verifiers:math", [(f"${TOWER}$", "7"), ("It is 7.", "7")], PoolSize(1, 8))
    assert answers == [WRONG, RIGHT]
    assert time.monotonic() - began_s < 40


def test_an_answer_that_cannot_be_read_is_told() -> None:
    [fault] = rated("runtime.tasks.verifiers:math", [("7", "")], PoolSize(1, 8))
    assert isinstance(fault, VerdictFault)
    assert "cannot read the answer ''; write it in LaTeX" in fault.happened


def test_a_function_of_users_may_call_math_verify_in_processes_of_many_threads() -> None:
    assert rated("math_verifiers:half", [(r"\boxed{0.5}", ""), ("1", "")], PoolSize(2, 64)) == [RIGHT, WRONG]
