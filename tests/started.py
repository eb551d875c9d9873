"""Processes that this session of tests started, and theirs.

Two sessions run beside each other under `pytest -n 2`, so a test that looks at the machine must know its own.
"""

import os
from pathlib import Path

SESSION = "EVENSTEP_TESTS_SESSION"
"""A variable of the environment, which every process hands to those that it starts."""


def mark_session() -> None:
    os.environ[SESSION] = str(os.getpid())


def started(*words: str) -> list[str]:
    """Ids of this session's processes with all `words` in their command, without those that wait to be reaped."""
    mark = f"{SESSION}={os.environ[SESSION]}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes()
                environment = (entry / "environ").read_bytes().split(b"\0")
            except OSError:
                continue  # it has ended since, or it is another user's
            if mark in environment and all(word.encode() in command for word in words):
                found.append(entry.name)
    return found
