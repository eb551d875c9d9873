"""The interface of a table of rows."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from runtime.tasks.base import DataFailure

Row = Mapping[str, Any]


class RowsChanged(DataFailure):
    """A file was changed while a run reads from it. The message names it."""


class RowTable(Protocol):
    """Rows of one or several files, numbered from 0 in their order. Any process that opens it finds the same ones."""

    def __len__(self) -> int:
        """The number of rows; blank lines count."""

    @property
    def files(self) -> Sequence[Path]:
        """The files that the rows are read from."""

    @property
    def size_bytes(self) -> int:
        """Bytes of all rows, as they are stored."""

    def row(self, number: int) -> Row:
        """All columns of a row. Raises RowsChanged."""

    def rows(self, start: int, stop: int, columns: frozenset[str]) -> Iterator[Row | None]:
        """The rows from `start` to before `stop`, with at least those of `columns` that exist; None for a blank line.

        Raises TaskError with file and line of a row that cannot be read.
        """

    def where(self, number: int) -> str:
        """Where a person finds a row: file and line, or file and row."""
