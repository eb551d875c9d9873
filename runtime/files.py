"""Files of a run: written so that they survive a power cut, refused by name, and never a FIFO that would block.

Start with `write_json_aside` (replace a file in one go) and `writing` (turn the system's refusal into FileNotWritten).
"""

import hashlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fsm.errors import EvenstepError

Json = dict[str, Any]
_EXPECTED = "a file is expected, but it is a {}"


class FileNotWritten(EvenstepError):
    """The disk, or its permissions, refused a file of a run."""

    def __init__(self, path: Path, reason: str, kept: str) -> None:
        self.path, self.reason, self.kept = path, reason, kept
        super().__init__(f"{path} could not be written: {reason}; {kept}")

    def __reduce__(self) -> "tuple[type[FileNotWritten], tuple[Path, str, str]]":
        return type(self), (self.path, self.reason, self.kept)  # it crosses processes


@contextmanager
def writing(path: Path, kept: str, also: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Raise FileNotWritten when the system refuses a write inside the block.

    `kept` ends the error's sentence: what is left without `path`, and how the run continues. `also` are errors that a
    library raises in place of OSError.
    """
    try:
        yield
    except OSError as error:
        raise FileNotWritten(path, reason_of(error), kept) from error
    except also as error:
        raise FileNotWritten(path, str(error), kept) from error


def reason_of(error: OSError) -> str:
    """The system's message, without its number; of a directory in place of a file, what was expected."""
    if isinstance(error, IsADirectoryError):
        return _EXPECTED.format("directory")
    return error.strerror or str(error) or type(error).__name__


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write JSON that reads back equal: sorted keys, the same text for equal values.

    Raises ValueError for a value that would read back changed. JSON turns tuples into lists and number keys into text,
    so a state that holds some would come back as another.
    """
    try:
        text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    except TypeError as error:
        raise ValueError(f"{error}; give plain JSON: mappings with text keys, lists, numbers, text, None") from error
    back = json.loads(text)
    if back != value:
        changed = next((key for key in value if back.get(key) != value[key]), "a key")
        raise ValueError(
            f"{changed!r} would not come back from JSON unchanged (a tuple, a key that is not text, or NaN); "
            f"give lists and text keys"
        )
    path.write_text(text + "\n", encoding="utf-8")


def write_json_aside(path: Path, value: Mapping[str, Any]) -> None:
    """Replace a JSON file in one go: readers see the old file or the new one, whole."""
    write_text_aside(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def aside_of(path: Path) -> Path:
    """Where this process writes a file before it replaces the one at `path`."""
    return path.with_name(f".{path.name}.tmp-{os.getpid()}")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields `aside_of(path)`. What the block writes there replaces `path`, unless the block raises."""
    aside = aside_of(path)
    try:
        yield aside
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def write_text_aside(path: Path, text: str) -> None:
    """Replace a text file in one go."""
    with replacing(path) as aside:
        aside.write_text(text, encoding="utf-8")
        sync_path(aside)
    sync_path(path.parent)


def sync_path(path: Path) -> None:
    """Flush a file, or the entries of a directory, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(root: Path) -> None:
    """Flush every file and directory below `root`, and `root` itself, the deepest first."""
    for folder, _, names in os.walk(root, topdown=False):
        for name in sorted(names):
            sync_path(Path(folder) / name)
        sync_path(Path(folder))


def give_usual_mode(path: Path) -> Path:
    """Let the umask decide who reads a file, as of any other: safetensors makes its files for their owner alone.

    A new file tells what the umask is: reading it would change it for the other threads.
    """
    probe = path.with_name(f".{path.name}.mode-{os.getpid()}")
    probe.touch(exist_ok=True)
    mode = stat.S_IMODE(probe.stat().st_mode)
    probe.unlink()
    path.chmod(mode)
    return path


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def why_not_plain(path: Path) -> str | None:
    """A phrase such as "a file is expected, but it is a FIFO"; None for a plain file or a missing one.

    Opening a FIFO that a user names would wait for a writer, and reading a device may never end.
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):  # ValueError: a null character
        return None  # opening it gives the better message
    if stat.S_ISREG(mode):
        return None
    kinds = ((stat.S_ISDIR, "directory"), (stat.S_ISFIFO, "FIFO"), (stat.S_ISSOCK, "socket"))
    kind = next((name for is_kind, name in kinds if is_kind(mode)), "device")
    return _EXPECTED.format(kind)


def refuse_not_plain(path: Path) -> None:
    """Raise OSError for a path that exists and is no plain file."""
    if problem := why_not_plain(path):
        raise OSError(problem)
