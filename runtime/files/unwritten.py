"""Files that could not be written: which, why, and what was kept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fsm.errors import EvenstepError


class FileNotWritten(EvenstepError):
    """The disk, or its permissions, refused a file of a run."""

    def __init__(self, path: Path, reason: str, kept: str) -> None:
        self.path, self.reason, self.kept = path, reason, kept
        super().__init__(f"{path} could not be written: {reason}; {kept}")

    def __reduce__(self) -> tuple[type[FileNotWritten], tuple[Path, str, str]]:
        return type(self), (self.path, self.reason, self.kept)  # it crosses processes


@contextmanager
def writing(path: Path, kept: str, also: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Raise FileNotWritten where the system refuses what is done here.

    Args:
        path: What is written.
        kept: What is left without it, and what becomes of the run; the end of the error's sentence.
        also: What a library raises instead of the system's error.
    """
    try:
        yield
    except OSError as error:
        raise FileNotWritten(path, reason_of(error), kept) from error
    except also as error:
        raise FileNotWritten(path, str(error), kept) from error


def reason_of(error: OSError) -> str:
    """What the system says, without its number."""
    return error.strerror or str(error) or type(error).__name__
