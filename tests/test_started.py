"""Tests that look at the machine see the processes of their own session alone."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.started import SESSION, started

WORD = "seen_by_its_own_session"


@pytest.fixture
def sleepers() -> Iterator[tuple[subprocess.Popen[bytes], subprocess.Popen[bytes]]]:
    command = [sys.executable, "-c", f"import time; time.sleep(60)  # {WORD}"]
    with (
        subprocess.Popen(command) as ours,
        subprocess.Popen(command, env={**os.environ, SESSION: "another"}) as theirs,
    ):
        yield ours, theirs
        ours.kill()
        theirs.kill()


def test_a_process_of_a_session_that_runs_beside_this_one_is_not_ours(
    sleepers: tuple[subprocess.Popen[bytes], subprocess.Popen[bytes]],
) -> None:
    ours, theirs = sleepers
    assert started(WORD) == [str(ours.pid)]
    ours.kill()
    ours.wait()
    assert started(WORD) == []
    assert theirs.poll() is None
