"""Processes that do not run are told from those that wait; orphans and the files of dead sessions are found."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from runtime.launch.processes import Process, descendants, process_of
from runtime.launch.supervision import orphans, running
from runtime.launch.supervision.orphans import (
    adopting_orphans,
    bury_orphans,
    end_all_below,
    session_directory,
    sweep,
)
from runtime.launch.supervision.roles import Role, roles_of
from runtime.launch.supervision.running import Looks

SOON_S = 60.0
WAKES = "import time\nwhile True: time.sleep(0.01)"
COMPUTES = "while True: pass"
PARENT_OF_A_SLEEPER = (
    "import subprocess, sys\n"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)\n"
    "print(child.pid, flush=True)\n"
)


@contextmanager
def python(code: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def identity_of(pid: int) -> Process:
    process = process_of(pid)
    assert process is not None
    return process


def idle_of(looks: Looks, process: Process, monkeypatch: pytest.MonkeyPatch, looked: int = 4) -> float:
    """For how long it seems not to run, after some looks at a clock that goes as it should."""
    clock = [time.monotonic()]
    monkeypatch.setattr(running.time, "monotonic", lambda: clock[0])
    idle_s = 0.0
    for _ in range(looked):
        clock[0] += running.LOOK_S
        idle_s = looks.look([process])[process]
        time.sleep(0.3)
    monkeypatch.undo()
    return idle_s


def test_a_stopped_process_does_not_run_and_one_that_waits_or_computes_does(monkeypatch: pytest.MonkeyPatch) -> None:
    with python(WAKES) as waiting, python(COMPUTES) as computing, python(WAKES) as stopped:
        deadline_s = time.monotonic() + SOON_S
        while running.times_run(stopped.pid) < 100 and time.monotonic() < deadline_s:
            time.sleep(0.05)
        os.kill(stopped.pid, signal.SIGSTOP)
        time.sleep(0.5)
        assert idle_of(Looks(), identity_of(stopped.pid), monkeypatch) == 3 * running.LOOK_S
        assert idle_of(Looks(), identity_of(waiting.pid), monkeypatch) < 3 * running.LOOK_S
        assert idle_of(Looks(), identity_of(computing.pid), monkeypatch) < 3 * running.LOOK_S


def test_time_in_which_nobody_looked_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver may have been stopped together with all its processes."""
    with python(WAKES) as stopped:
        os.kill(stopped.pid, signal.SIGSTOP)
        time.sleep(0.5)
        looks, process = Looks(), identity_of(stopped.pid)
        looks.look([process])
        now_s = time.monotonic() + 3600.0
        monkeypatch.setattr(running.time, "monotonic", lambda: now_s)
        assert looks.look([process])[process] <= 2 * running.LOOK_S


def test_orphans_of_a_process_are_ended_and_forgotten() -> None:
    others = set(descendants())
    with adopting_orphans():
        with python(PARENT_OF_A_SLEEPER) as parent:
            assert parent.stdout is not None
            orphan = int(parent.stdout.readline())
            parent.wait(SOON_S)
            os.kill(orphan, signal.SIGSTOP)  # it would hear no other signal
            assert orphan in {process.pid for process in descendants()}
            end_all_below(others)
        assert process_of(orphan) is None
        bury_orphans([orphan])
        assert not Path(f"/proc/{orphan}").exists()


def test_the_files_of_a_session_go_with_it_and_those_of_a_dead_one_with_the_next_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orphans, "SESSIONS", tmp_path)
    code = (
        "import os, pathlib, sys\n"
        "from runtime.launch.supervision import orphans\n"
        "orphans.SESSIONS = pathlib.Path(sys.argv[1])\n"
        "with orphans.session_directory():\n"
        "    os._exit(9)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False, env={**os.environ, "PYTHONPATH": "."})
    (tmp_path / "es-of-another-program").mkdir()
    [dead] = [path for path in tmp_path.iterdir() if path.name != "es-of-another-program"]
    with session_directory() as live:
        sweep()
        assert not dead.exists()
        assert live.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["es-of-another-program"]


def test_what_ray_still_wrote_while_a_session_was_removed_goes_with_a_sweep_once_its_process_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orphans, "SESSIONS", tmp_path)
    with python(WAKES) as process:
        left = tmp_path / "es-left" / f"session_2026-11-30_22-44-38_572720_{process.pid}" / "logs"
        left.mkdir(parents=True)
        new, link = tmp_path / "es-new", left.parents[1] / "session_latest"
        new.mkdir()
        link.symlink_to(left.parent)
        sweep()
        assert left.exists()
    sweep()
    assert list(tmp_path.iterdir()) == [new], "it has no owner yet, and no session"


def test_only_the_actors_of_a_raylet_have_roles() -> None:
    """A process that an actor has forked has its title, and may sleep as long as it likes."""
    title = "ray::TrainerRank"
    with subprocess.Popen([title, "600"], executable="/bin/sleep") as fork:
        try:
            assert roles_of([os.getpid(), fork.pid]) == {identity_of(os.getpid()): Role.RAY_CLIENT}
        finally:
            fork.kill()
