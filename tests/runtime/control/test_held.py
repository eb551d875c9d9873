"""A sampler that does not return is named by its line, and a process that is elsewhere, or frozen, names nothing."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from runtime.control import held

CALLS = """
import sys, time
from runtime.control.held import keep_stacks

def select_for_ever():
    while True: time.sleep(0.01)

def compute_for_ever():
    sum(iter(int, 1))

exec(compile("def apply(call):\\n    call()", "/site/fsm/core.py", "exec"))
exec(compile("def version():\\n    while True: pass", "/site/fsm/state.py", "exec"))

def ask_for_ever():
    version()

print(keep_stacks(), flush=True)
{call}
"""


@contextmanager
def process(call: str) -> Iterator[tuple[int, int]]:
    """A process that makes a call, and the descriptor of its stacks."""
    with subprocess.Popen(
        [sys.executable, "-c", CALLS.replace("{call}", call)], stdout=subprocess.PIPE, text=True
    ) as started:
        try:
            assert started.stdout is not None
            yield started.pid, int(started.stdout.readline())
        finally:
            started.kill()


@pytest.mark.parametrize("call", ["select_for_ever", "compute_for_ever", "ask_for_ever"])
def test_the_line_of_code_that_the_core_called_and_that_does_not_return_is_named(call: str) -> None:
    """Also where it never leaves C, or asks the core for something."""
    with process(f"apply({call})") as (pid, descriptor):
        for _ in range(100):
            if (line := held.held_at(pid, descriptor)) is not None:
                break
        assert line is not None
        assert line.endswith(f"in {call}")


@pytest.mark.parametrize("call", ["select_for_ever()", "apply(version)"])
def test_code_that_the_core_did_not_call_is_not_blamed(call: str) -> None:
    with process(call) as (pid, descriptor):
        assert held.held_at(pid, descriptor) is None


def test_a_frozen_process_names_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held, "_WRITTEN_S", 0.3)
    with process("apply(select_for_ever)") as (pid, descriptor):
        os.kill(pid, signal.SIGSTOP)
        assert held.held_at(pid, descriptor) is None


def test_a_process_that_has_ended_names_nothing() -> None:
    with process("raise SystemExit") as (pid, descriptor):
        os.waitpid(pid, 0)
        assert held.held_at(pid, descriptor) is None
