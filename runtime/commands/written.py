"""Files that commands write: whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import IO

WRONG_USE = 2
"""Exit code."""


class NotWritten(Exception):
    """The file could not be written."""


def write_beside(output: Path, write: Callable[[IO[str]], object]) -> None:
    """Write an ASCII file aside and rename it, so that one that was there stays until the new one is whole.

    Raises NotWritten.
    """
    aside = output.with_name(f".{output.name}.tmp-{os.getpid()}")
    try:
        with aside.open("w", encoding="ascii") as opened:
            write(opened)
        aside.replace(output)
    except OSError as error:
        raise NotWritten(f"{output} can't be written: {error}; give another place with -o") from error
    finally:
        aside.unlink(missing_ok=True)
