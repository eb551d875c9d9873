"""JSON lines: row i is line i + 1, read at its byte offset. Blank lines are no rows but keep their numbers."""

import json
import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path

import numpy as np
import numpy.typing as npt

from runtime.tasks.base import TaskError
from runtime.tasks.rows.table import Row, RowsChanged

_BLOCK = 1 << 24
"""Bytes that are searched for line ends at a time."""
_READ_LINES = 1_000
"""Lines that are read at a time."""
_MARK = "\ufeff"
"""What some editors write at the start of a UTF-8 file; `json` skips it in bytes."""
_ALSO = 4
"""How many lines a message names besides the first that is wrong, of those that are read with it."""
Starts = npt.NDArray[np.int64]
"""Of a file: the offset of each line, and at last the file's size."""


class JsonLines:
    """Lines of one or several files. Keeps the files open; reads small ones whole."""

    def __init__(self, files: Sequence[Path], starts: Sequence[Starts], *, in_memory: bool) -> None:
        """starts: of each file, from `line_starts`. Raises OSError."""
        self.files = files
        self._starts = starts
        self._ends = list(accumulate(len(each) - 1 for each in starts))
        self._descriptors = [os.open(file, os.O_RDONLY) for file in files]
        self._stamps = [_stamp(descriptor) for descriptor in self._descriptors]
        self._texts = [file.read_bytes() for file in files] if in_memory else None

    def __del__(self) -> None:
        for descriptor in self.__dict__.get("_descriptors", ()):  # absent if a file could not be opened
            os.close(descriptor)

    def __len__(self) -> int:
        return self._ends[-1]

    @property
    def size_bytes(self) -> int:
        return sum(int(each[-1]) for each in self._starts)

    def where(self, number: int) -> str:
        file, line = self._place(number)
        return f"{self.files[file]}:{line + 1}"

    def row(self, number: int) -> Row:
        file, line = self._place(number)
        if self._texts is None and _stamp(self._descriptors[file]) != self._stamps[file]:
            raise RowsChanged(
                f"{self.where(number)}: the file was changed while the run reads from it; put the old one back, and "
                "replace files of a run only by renaming new ones to their names"
            )
        row: Row = json.loads(self._bytes(file, line, line + 1))
        return row

    def rows(self, start: int, stop: int, columns: frozenset[str]) -> Iterator[Row | None]:
        """As RowTable says; rows have all their columns."""
        while start < stop:
            file, line = self._place(start)
            until = min(line + _READ_LINES, line + stop - start, len(self._starts[file]) - 1)
            found = self._bytes(file, line, until)
            try:
                text = found.decode()
            except UnicodeDecodeError as error:
                wrong = self.where(start + found.count(b"\n", 0, error.start))
                raise TaskError(f"{wrong}: cannot be read as UTF-8 text: {error}; save the file as UTF-8") from error
            lines = (text if line else text.removeprefix(_MARK)).split("\n")
            for offset in range(until - line):
                try:
                    row = self._parse(lines[offset], start + offset)
                except TaskError as error:
                    raise TaskError(f"{error}{self._also(lines[: until - line], start, offset + 1)}") from error
                yield row
            start += until - line

    def _also(self, lines: Sequence[str], start: int, offset: int) -> str:
        """Which of the lines from an offset on are wrong too, the first few."""
        wrong: list[str] = []
        for number in range(offset, len(lines)):
            try:
                self._parse(lines[number], start + number)
            except TaskError:
                wrong.append(str(self._place(start + number)[1] + 1))
                if len(wrong) == _ALSO:
                    break
        return f" (also wrong: line {', '.join(wrong)})" if wrong else ""

    def _parse(self, line: str, number: int) -> Row | None:
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:  # ValueError: also an integer of more digits than Python reads
            if not line or line.isspace():
                return None
            raise TaskError(f"{self.where(number)}: is not JSON ({error}); write one object a line") from error
        if not isinstance(value, dict):
            found = type(value).__name__
            raise TaskError(f'{self.where(number)}: is a {found}; write an object {{"prompt": …, "answer": …}}')
        return value

    def _place(self, number: int) -> tuple[int, int]:
        """The file of a row, and its line there, counted from 0."""
        file = bisect_right(self._ends, number)
        return file, number - (self._ends[file - 1] if file else 0)

    def _bytes(self, file: int, line: int, until: int) -> bytes:
        start, stop = int(self._starts[file][line]), int(self._starts[file][until])
        if self._texts is not None:
            return self._texts[file][start:stop]
        return os.pread(self._descriptors[file], stop - start, start)


def line_starts(file: Path) -> Starts:
    """The offset of each line of a file, and at last its size. Reads all of it, at about 1 GB/s. Raises OSError."""
    found = [np.zeros(1, np.int64)]
    size = 0
    with file.open("rb", buffering=0) as opened:
        while block := opened.read(_BLOCK):
            found.append(np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n")) + (size + 1))
            size += len(block)
    starts = np.concatenate(found)
    return starts if starts[-1] == size else np.append(starts, size)  # the last line may have no end


def _stamp(descriptor: int) -> tuple[int, int]:
    found = os.fstat(descriptor)
    return found.st_size, found.st_mtime_ns
