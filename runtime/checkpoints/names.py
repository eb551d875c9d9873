"""The names of checkpoints, and which there are. It imports nothing of what reads or writes one."""

from __future__ import annotations

import re
from pathlib import Path

CHECKPOINTS = "checkpoints"
"""The folder of a run's checkpoints in its output directory."""
_NAME = re.compile(r"checkpoint-(\d+)-step-(\d+)")


def is_checkpoint_name(name: str) -> bool:
    """A name that a checkpoint has once it is complete."""
    return _NAME.fullmatch(name) is not None


def serial_of(path: Path) -> int:
    """The serial number of a checkpoint, by which checkpoints are ordered; -1 for another name."""
    match = _NAME.fullmatch(path.name)
    return int(match[1]) if match else -1


def step_of(path: Path) -> int:
    """The optimizer steps that a checkpoint is after; -1 for another name."""
    match = _NAME.fullmatch(path.name)
    return int(match[2]) if match else -1


def list_checkpoints(directory: Path) -> list[Path]:
    """All checkpoints in a directory, newest first, whole or not. None in a directory that does not exist."""
    if not directory.is_dir():
        return []
    found = (path for path in directory.iterdir() if is_checkpoint_name(path.name))
    return sorted(found, key=serial_of, reverse=True)
