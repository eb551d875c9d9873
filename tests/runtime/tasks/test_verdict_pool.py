"""Users' verifiers may do anything: each fault costs its own verdict, and no other."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from runtime.tasks.base import Verdict, VerdictFault
from runtime.tasks.judges import FunctionJudge, Verifier
from runtime.tasks.verdicts import pool as pools
from runtime.tasks.verdicts.handle import PoolSize
from runtime.tasks.verdicts.pool import VerdictPool
from tests.started import started

USERS = Path(__file__).parents[2] / "users"
GOOD, HALF = Verdict(1.0, True), Verdict(0.5, False)
ROW = {"answer": "answer"}


def judge(target: str = "hostile_verifiers:deed") -> FunctionJudge:
    return FunctionJudge((Verifier(target, 1.0, None),), 1.0, None)


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(USERS)
    monkeypatch.setattr(pools, "DEAF_S", 1.5)
    yield
    until_s = time.monotonic() + 30
    while _left() and time.monotonic() < until_s:
        time.sleep(0.05)
    assert _left() == []


def _left() -> list[str]:
    """Processes of these verdicts, and forks of them."""
    return started("runtime.tasks.verdicts.process", str(USERS))


def rated(
    words: Sequence[str],
    *,
    processes: int = 2,
    threads: int = 4,
    timeout_s: float = 60.0,
    memory_mib: int = 4096,
    target: str = "hostile_verifiers:deed",
) -> list[Verdict | VerdictFault]:
    """All at once."""

    async def scenario() -> list[Verdict | VerdictFault]:
        pool = VerdictPool(judge(target), PoolSize(processes, threads, memory_mib), timeout_s)
        try:
            return await asyncio.gather(*(pool.rate((word, ROW)) for word in words))
        finally:
            await pool.close()

    return asyncio.run(asyncio.wait_for(scenario(), timeout=240))


FAULTS = {
    "exits": "called os._exit (",
    "sys.exit": "raised SystemExit: bye (",
    "interrupts": "raised KeyboardInterrupt",
    "segfaults": "crashed: Segmentation fault (",
    "aborts": "crashed: Aborted (",
    "is-killed": "had its process killed by SIGKILL",
    "closes-files": "ended its process with exit code ",
    "writes-junk": "closed the connection of its process",
    "raises": "raised ValueError: no number (",
    "raises-unsayable": "raised Unsayable: (its text raised SystemExit)",
    "nan": "returned nan",
    "infinite": "returned inf",
    "none": "returned None",
    "text": "returned '1.0'",
    "unshowable": "returned a Unshowable (whose repr raised RuntimeError)",
    "broken-item": "whose item() raised ValueError",
    "numpy.arrays": "returned array([0.5, 0.5]), whose item() raised ValueError",
    "numpy.nan": "returned np.float64(nan)",
    "overflows": "returned 1000",
    "allocates": "raised ",
}
NAMES_ITS_LINE = {"allocates", "exits", "sys.exit", "segfaults", "aborts", "raises", "interrupts"}


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("word", FAULTS)
def test_a_fault_is_told_of_its_own_verdict_and_the_neighbours_have_theirs(word: str, threads: int) -> None:
    answers = rated(["waits", word, "waits", "good", "waits"], processes=1, threads=threads)
    fault = answers.pop(1)
    assert isinstance(fault, VerdictFault)
    assert FAULTS[word] in fault.happened
    assert fault.remedy
    if word in NAMES_ITS_LINE:
        assert "hostile_verifiers.py:" in fault.happened
    assert answers == [HALF, HALF, GOOD, HALF]


@pytest.mark.parametrize("word", ["sleeps", "regex"])
@pytest.mark.parametrize("threads", [1, 4])
def test_a_verdict_that_hangs_is_late_alone_and_the_line_is_named(word: str, threads: int) -> None:
    words = ["waits", word, *["waits", "good"] * 8]
    answers = rated(words, processes=1, threads=threads, timeout_s=6.0)
    fault = answers.pop(1)
    assert isinstance(fault, VerdictFault)
    assert "gave no verdict within data.task.verdict_timeout_s = 6 s (" in fault.happened
    assert "hostile_verifiers.py:" in fault.happened
    assert answers == [HALF, *[HALF, GOOD] * 8]


def test_a_process_with_a_runaway_regular_expression_is_given_up_long_before_the_deadline() -> None:
    async def scenario() -> float:
        pool = VerdictPool(judge(), PoolSize(2, 4), 600.0)
        try:
            runaway = asyncio.create_task(pool.rate(("regex", ROW)))
            await asyncio.sleep(1.0)
            began_s = time.monotonic()
            assert await asyncio.gather(*(pool.rate(("waits", ROW)) for _ in range(12))) == [HALF] * 12
            took_s = time.monotonic() - began_s
            assert not runaway.done()
            runaway.cancel()
        finally:
            await pool.close()
        return took_s

    assert asyncio.run(asyncio.wait_for(scenario(), timeout=240)) < 120


def test_what_waits_behind_a_runaway_regular_expression_is_made_after_its_deadline() -> None:
    fault, other = rated(["regex", "good"], processes=1, threads=4, timeout_s=4.0)
    assert isinstance(fault, VerdictFault)
    assert other == GOOD


def test_everything_at_once_costs_each_its_own_verdict() -> None:
    words = [*FAULTS, "sleeps", "regex", *["good"] * 10, *["waits"] * 10, "prints", "starts-a-thread", "forks"]
    answers = dict(zip([f"{at} {word}" for at, word in enumerate(words)], rated(words, timeout_s=10.0), strict=True))
    failed = {key.split()[1] for key, answer in answers.items() if isinstance(answer, VerdictFault)}
    assert failed == {*FAULTS, "sleeps", "regex"}
    assert all(answer in (GOOD, HALF) for answer in answers.values() if not isinstance(answer, VerdictFault))


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("word", ["prints", "prints-surrogates", "starts-a-thread", "starts-a-crowd", "forks"])
def test_what_is_no_fault_of_the_verdict_costs_nothing(word: str, threads: int) -> None:
    assert rated([word] * 3 + ["good"], threads=threads) == [GOOD] * 4


def test_an_interrupt_of_the_main_thread_harms_only_a_verdict_that_runs_there() -> None:
    assert rated(["interrupts-main", "good", "waits"], threads=4) == [GOOD, GOOD, HALF]
    fault, *others = rated(["interrupts-main", "good", "waits"], processes=1, threads=1)
    assert isinstance(fault, VerdictFault)
    assert "KeyboardInterrupt" in fault.happened
    assert others == [GOOD, HALF]


@pytest.mark.parametrize("word", ["numpy.float32", "numpy.array"])
def test_numbers_of_numpy_are_rewards(word: str) -> None:
    assert rated([word]) == [HALF]


@pytest.mark.parametrize("word", ["numpy.bool", "numpy.int"])
def test_ones_and_truths_of_numpy_are_full_rewards(word: str) -> None:
    assert rated([word]) == [GOOD]


def test_a_tensor_of_one_element_is_a_reward() -> None:
    assert rated(["x"], target="hostile_verifiers:torch_scalar") == [HALF]


def test_the_processes_import_nothing_heavy() -> None:
    assert rated(["x"], target="hostile_verifiers:modules") == [GOOD]


def test_one_verdict_a_process_has_the_main_thread_and_its_alarms() -> None:
    assert rated(["alarm"] * 4, threads=1) == [GOOD] * 4


def test_a_verifier_that_needs_the_main_thread_gets_it_though_its_processes_began_with_several() -> None:
    async def scenario() -> tuple[list[Verdict | VerdictFault], list[str | None]]:
        pool = VerdictPool(judge(), PoolSize(2, 4), 60.0)
        try:
            words = ["waits", *["alarm"] * 12, "alarm-swallowed", "good"]
            answers = await asyncio.gather(*(pool.rate((word, ROW)) for word in words))
            return answers, [pool.take_notice(), pool.take_notice()]
        finally:
            await pool.close()

    answers, notices = asyncio.run(asyncio.wait_for(scenario(), timeout=240))
    assert answers == [HALF, *[GOOD] * 14]
    assert notices[0] is not None
    assert "sets signal handlers" in notices[0]
    assert "2 of them (cluster.reward_processes)" in notices[0]
    assert notices[1] is None


def test_a_verdict_that_allocates_too_much_fails_alone_and_names_line_and_setting() -> None:
    answers = rated(["waits", "allocates", "takes-half", "good"], processes=1, memory_mib=1024)
    fault = answers.pop(1)
    assert isinstance(fault, VerdictFault)
    assert "MemoryError: Unable to allocate 9.77 GiB" in fault.happened
    assert "hostile_verifiers.py:" in fault.happened
    assert "cluster.reward_memory_mib" in fault.remedy
    assert answers == [HALF, HALF, GOOD]


@pytest.mark.parametrize("threads", [1, 4])
def test_a_verdict_that_grows_without_end_is_found_and_the_others_are_made_elsewhere(threads: int) -> None:
    answers = rated(["waits", "grows", *["waits"] * 4], processes=2, threads=threads, memory_mib=512)
    fault = answers.pop(1)
    assert isinstance(fault, VerdictFault)
    assert "had its process use more than cluster.reward_memory_mib = 512 MiB of memory (" in fault.happened
    assert "hostile_verifiers.py:" in fault.happened
    assert answers == [HALF] * 5


def test_a_module_that_needs_more_memory_than_there_is_for_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "large_verifiers.py").write_text(
        "import numpy\nkept = numpy.ones(700 << 17)\ndef verify(c, a): return 1.0\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for answer in rated(["good"] * 3, target="large_verifiers:verify", memory_mib=512):
        assert isinstance(answer, VerdictFault)
        assert "verifier 'large_verifiers:verify': once loaded it uses 7" in answer.happened
        assert "MiB of memory, more than cluster.reward_memory_mib = 512" in answer.happened
    assert rated(["good"] * 3, target="large_verifiers:verify", memory_mib=1024) == [GOOD] * 3


def test_coroutines_wait_together_in_one_loop() -> None:
    began_s = time.monotonic()
    answers = rated(["waits"] * 100, processes=1, threads=100, target="hostile_verifiers:asynchronous")
    assert answers == [HALF] * 100
    assert time.monotonic() - began_s < 15
    assert rated(["x"] * 8, processes=1, target="hostile_verifiers:same_loop") == [GOOD] * 8


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("forever", "gave no verdict within data.task.verdict_timeout_s = 4 s ("),
        ("deaf", "gave no verdict within data.task.verdict_timeout_s = 4 s ("),
        ("children:forever", "gave no verdict within data.task.verdict_timeout_s = 4 s ("),
        ("sleeps", "gave no verdict within data.task.verdict_timeout_s = 4 s ("),
        ("children:sleeps", "gave no verdict within data.task.verdict_timeout_s = 4 s ("),
        ("regex", "gave no verdict within data.task.verdict_timeout_s = 4 s"),
        ("exits", "called os._exit ("),
        ("sys.exit", "raised SystemExit: bye ("),
        ("children:sys.exit", "raised SystemExit: bye ("),
        ("cancels", "raised CancelledError"),
        ("raises", "raised ValueError: no number ("),
        ("nan", "returned nan"),
    ],
)
def test_a_coroutine_at_fault_costs_its_own_verdict(word: str, says: str) -> None:
    words = ["waits", word, *["waits"] * 6, "good"]
    answers = rated(words, processes=1, threads=4, timeout_s=4.0, target="hostile_verifiers:asynchronous")
    fault = answers.pop(1)
    assert isinstance(fault, VerdictFault)
    assert says in fault.happened
    if says.endswith("("):
        assert "hostile_verifiers.py:" in fault.happened
    assert answers == [*[HALF] * 7, GOOD]


def test_what_is_printed_is_kept_in_small_part_and_told_once() -> None:
    async def scenario() -> list[str | None]:
        pool = VerdictPool(judge(), PoolSize(1, 2), 60.0)
        try:
            told = []
            for word in ("good", "prints", "prints"):
                await pool.rate((word, ROW))
                told.append(pool.take_notice())
            return told
        finally:
            await pool.close()

    nothing, once, again = asyncio.run(scenario())
    assert (nothing, again) == (None, None)
    assert once is not None
    assert once.startswith("verifier 'hostile_verifiers:deed' prints: 'xxx")
    assert len(once) < 3000


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import os\nos._exit(3)\n", "called os._exit ("),
        ("import sys\nsys.exit('bye')\n", "raised SystemExit: bye ("),
        ("import time\ntime.sleep(1e6)\n", "it was not loaded within 5 s ("),
        ("import os\nos.kill(os.getpid(), 9)\n", "had its process killed by SIGKILL"),
        ("1 / 0\n", "raised ZeroDivisionError: division by zero ("),
        ("def f(:\n", "raised SyntaxError"),
        ("import nothing_of_the_kind\n", "failed: No module named 'nothing_of_the_kind' ("),
        (
            "def verify(completion, row):\n    import nothing\n",
            "raised ModuleNotFoundError: No module named 'nothing' (",
        ),
        ("def f(): pass\n", "has no function 'verify'; it has f"),
    ],
)
def test_a_module_that_cannot_be_loaded_is_told_of_every_verdict(
    text: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_verifiers.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    if "sleep" in text:
        monkeypatch.setattr(pools, "LOADING_S", 5.0)
    for answer in rated(["good"] * 3, target="broken_verifiers:verify", timeout_s=2.0):
        assert isinstance(answer, VerdictFault)
        assert says in answer.happened
        assert answer.of_code
        assert answer.happened.startswith(("verifier 'broken_verifiers:verify'", "the verifier 'broken_verifiers:v"))
        if says.endswith("("):
            assert "broken_verifiers.py:" in answer.happened


def test_many_that_kill_their_process_leave_the_others_their_verdicts() -> None:
    answers = rated([*["is-killed"] * 12, *["exits"] * 12, *["waits"] * 6], processes=2, threads=16)
    assert all(isinstance(answer, VerdictFault) for answer in answers[:24])
    assert answers[24:] == [HALF] * 6


def test_a_case_that_cannot_be_sent_is_told() -> None:
    async def scenario() -> Verdict | VerdictFault:
        pool = VerdictPool(judge(), PoolSize(1, 1), 60.0)
        try:
            return await pool.rate((lambda: 0, ROW))
        finally:
            await pool.close()

    fault = asyncio.run(scenario())
    assert isinstance(fault, VerdictFault)
    assert "cannot be sent the case" in fault.happened


def test_processes_end_with_the_one_that_made_them_even_if_it_is_killed(tmp_path: Path) -> None:
    script = (
        "import asyncio, sys\n"
        "from runtime.tasks.judges import FunctionJudge, Verifier\n"
        "from runtime.tasks.verdicts.handle import PoolSize\n"
        "from runtime.tasks.verdicts.pool import VerdictPool\n"
        "async def main():\n"
        "    judge = FunctionJudge((Verifier('hostile_verifiers:deed', 1.0, None),), 1.0, None)\n"
        "    pool = VerdictPool(judge, PoolSize(2, 2), 600.0)\n"
        "    await asyncio.gather(pool.rate(('good', {'answer': ''})), pool.rate(('good', {'answer': ''})))\n"
        "    hangs = [asyncio.ensure_future(pool.rate((word, {'answer': ''}))) for word in ('regex', 'sleeps')]\n"
        "    await asyncio.sleep(0.5)\n"
        "    print(*(handle.process.pid for handle in pool._handles), flush=True)\n"
        "    await asyncio.wait(hangs)\n"
        "asyncio.run(main())\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert pids
        parent.send_signal(signal.SIGKILL)
    until_s = time.monotonic() + 30
    while any(_is_alive(pid) for pid in pids) and time.monotonic() < until_s:
        time.sleep(0.05)
    assert not any(_is_alive(pid) for pid in pids)


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("target", ["calling:judged", "calling:judged_async"])
def test_a_service_that_is_out_of_reach_is_an_infra_failure_and_a_wrong_request_a_data_failure(target: str) -> None:
    answers = rated(["good", "refused", "wrapped", "bad-request"], target=target)
    assert answers[0] == GOOD
    refused, wrapped, wrong = answers[1:]
    assert isinstance(refused, VerdictFault)
    assert isinstance(wrapped, VerdictFault)
    assert isinstance(wrong, VerdictFault)
    assert (refused.infra, wrapped.infra, wrong.infra) == (True, True, False)
    assert "ConnectionRefusedError" in refused.happened
    assert "calling.py:" in refused.happened
    assert "retried after a backoff" in refused.remedy
    assert wrong.remedy == "make it return 0.0 for what it cannot parse"


def test_a_verifier_that_runs_out_of_its_memory_is_a_data_failure() -> None:
    (fault,) = rated(["allocates"], processes=1, memory_mib=1024)
    assert isinstance(fault, VerdictFault)
    assert not fault.infra
