"""Open the table of a source, in any process."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from runtime.tasks.base import TaskError
from runtime.tasks.rows.json_lines import JsonLines, Starts, line_starts
from runtime.tasks.rows.source import RowSource
from runtime.tasks.rows.table import RowTable

DIGESTS = "digests.npy"
"""In the folder of an index."""


def open_table(source: RowSource, folder: Path | None) -> RowTable:
    """The table of a source. Raises TaskError.

    folder: of its index, which has the starts of its lines; None to find them and read the files whole.
    """
    if source.format != "json lines":
        from runtime.tasks.rows.hugging_face import open_hugging_face

        return open_hugging_face(source)
    starts = find_starts(source) if folder is None else load_starts(source, folder)
    return open_lines(source, starts, in_memory=folder is None)


def open_lines(source: RowSource, starts: Sequence[Starts], *, in_memory: bool) -> JsonLines:
    """JSON lines whose starts are known. Raises TaskError."""
    try:
        return JsonLines(source.files, starts, in_memory=in_memory)
    except OSError as error:
        raise TaskError(f"{source.name}: cannot be read: {error}; check {source.key}") from error


def find_starts(source: RowSource) -> list[Starts]:
    """Where the lines of each file start. Reads all files. Raises TaskError."""
    try:
        return [line_starts(file) for file in source.files]
    except OSError as error:
        raise TaskError(f"{source.name}: cannot be read: {error}; check {source.key}") from error


def save_starts(starts: Sequence[Starts], folder: Path) -> None:
    """Keep them in the folder of an index. Raises OSError."""
    for number, each in enumerate(starts):
        np.save(folder / f"starts-{number}.npy", each)


def load_starts(source: RowSource, folder: Path) -> list[Starts]:
    """Those that `save_starts` has kept, mapped into memory."""
    return [np.load(folder / f"starts-{number}.npy", mmap_mode="r") for number in range(len(source.files))]
