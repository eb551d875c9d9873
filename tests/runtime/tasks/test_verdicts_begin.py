"""No case waits for ever for a process that begins no cases: it has its verdict elsewhere, or a reason."""

import asyncio
from pathlib import Path

import pytest

from runtime.tasks.base import Verdict, VerdictFault
from runtime.tasks.judges import FunctionJudge, Verifier
from runtime.tasks.verdicts import pool as pools
from runtime.tasks.verdicts.handle import PoolSize
from runtime.tasks.verdicts.pool import VerdictPool

USERS = Path(__file__).parents[2] / "users"


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(USERS)
    monkeypatch.setattr(pools, "DEAF_S", 1.5)


def rounds(target: str, folder: Path, *, threads: int, cases: int, timeout_s: float) -> list[Verdict | VerdictFault]:
    """Of two rounds with so many cases each. The second begins when the harm of the first is done."""

    async def scenario() -> list[Verdict | VerdictFault]:
        pool = VerdictPool(
            FunctionJudge((Verifier(target, 1.0, None),), 1.0, None), PoolSize(1, threads), timeout_s=timeout_s
        )
        try:
            first = [folder / f"{number}" for number in range(cases)]
            answers = await asyncio.gather(*(pool.rate((str(path), {})) for path in first))
            assert answers == [Verdict(1.0, True)] * cases
            while not all(path.exists() for path in first):
                await asyncio.sleep(0.1)
            await asyncio.sleep(1.0)
            return answers + await asyncio.gather(*(pool.rate((str(path) + "x", {})) for path in first))
        finally:
            await pool.close()

    return asyncio.run(asyncio.wait_for(scenario(), timeout=200))


@pytest.mark.parametrize("threads", [1, 4])
def test_a_case_sent_alone_to_a_process_that_a_left_thread_blocks_has_its_verdict_elsewhere(
    threads: int, tmp_path: Path
) -> None:
    answers = rounds("haunting_verifiers:gives_up_on_a_thread", tmp_path, threads=threads, cases=1, timeout_s=20.0)
    assert answers == [Verdict(1.0, True)] * 2


@pytest.mark.parametrize("threads", [1, 2])
def test_a_thread_that_users_code_ends_is_replaced_and_loses_no_case(threads: int, tmp_path: Path) -> None:
    target = "haunting_verifiers:is_interrupted_too_late"
    answers = rounds(target, tmp_path, threads=threads, cases=threads, timeout_s=100.0)
    assert answers == [Verdict(1.0, True)] * 2 * threads


def rated(target: str, *, cases: int, timeout_s: float) -> list[Verdict | VerdictFault]:
    async def scenario() -> list[Verdict | VerdictFault]:
        pool = VerdictPool(FunctionJudge((Verifier(target, 1.0, None),), 1.0, None), PoolSize(1, 4), timeout_s)
        try:
            return [await pool.rate(("said", {})) for _ in range(cases)]
        finally:
            await pool.close()

    return asyncio.run(asyncio.wait_for(scenario(), timeout=200))


def test_cases_that_no_process_begins_fail_and_the_reason_says_so() -> None:
    (fault,) = rated("threadless_verifiers:deed", cases=1, timeout_s=2.0)
    assert isinstance(fault, VerdictFault)
    assert "was never begun: 3 new processes had a free thread" in fault.happened


def test_verdicts_arrive_when_the_verifier_has_replaced_functions_of_json_and_time() -> None:
    verdict = Verdict(1.0, True, {"länge": 0.5, "recht": 0.5})
    answers = rated("haunting_verifiers:replaces_functions", cases=3, timeout_s=60.0)
    assert answers == [verdict] * 3
