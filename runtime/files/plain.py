"""Files that users name are plain ones: opening a FIFO waits for a writer, and a device may have no end."""

from __future__ import annotations

import stat
from pathlib import Path


def why_not_plain(path: Path) -> str | None:
    """What is there instead of a plain file, as in "is a FIFO, not a plain file". None also where nothing is there."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return None  # who opens it says why it cannot be
    if stat.S_ISREG(mode):
        return None
    kinds = ((stat.S_ISDIR, "directory"), (stat.S_ISFIFO, "FIFO"), (stat.S_ISSOCK, "socket"))
    kind = next((name for is_kind, name in kinds if is_kind(mode)), "device")
    return f"is a {kind}, not a plain file"


def refuse_not_plain(path: Path) -> None:
    """Raises OSError for what is there and is no plain file, before anybody waits for it."""
    if problem := why_not_plain(path):
        raise OSError(problem)
