"""A table as typed arrays: a hundred thousand rows take megabytes, and a browser reads them as they are."""

from __future__ import annotations

import base64
import sys
from array import array
from collections.abc import Mapping
from typing import Any

NOT_YET = 0xFFFF_FFFF
"""Stands for "not in this trace" in columns of times, and for "none" in those of row numbers and texts."""
NO_WORKER = 0xFFFF
ALIGNED = 8
"""Bytes; every column begins at a multiple of it."""
JAVASCRIPT: Mapping[str, str] = {
    "B": "Uint8Array", "H": "Uint16Array", "I": "Uint32Array", "i": "Int32Array", "f": "Float32Array"
}  # fmt: skip
"""What a browser reads an array of each type code as."""


def milliseconds(monotonic_s: float) -> int:
    """A time of the trace as its columns hold it: enough for 49 days."""
    return round(monotonic_s * 1000)


class Columns:
    """A table: named columns of one length, each of one type."""

    def __init__(self, types: Mapping[str, str]) -> None:
        """`types` gives the type code of `array` per column, in order."""
        self.columns: dict[str, array[Any]] = {name: array(code) for name, code in types.items()}
        self._first = next(iter(self.columns.values()))
        self._appends = tuple(column.append for column in self.columns.values())

    def __len__(self) -> int:
        return len(self._first)

    def __getitem__(self, name: str) -> array[Any]:
        return self.columns[name]

    def append(self, *values: float) -> int:
        """Add a row, its values in order of the columns. Returns its number. Raises OverflowError."""
        for append, value in zip(self._appends, values, strict=True):
            append(value)
        return len(self._first) - 1

    def last(self, name: str) -> Any:
        """The value of a column in the last row."""
        return self.columns[name][-1]


class Packing:
    """Columns of several tables, one after the other in one piece of memory."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def add(self, table: Columns) -> dict[str, Any]:
        """Pack a table. Returns where it is: `rows`, and per column its type and the offset of its first byte."""
        places: dict[str, list[str | int]] = {}
        for name, column in table.columns.items():
            self._bytes.extend(bytes(-len(self._bytes) % ALIGNED))
            places[name] = [JAVASCRIPT[column.typecode], len(self._bytes)]
            self._bytes.extend(_little_endian(column))
        return {"rows": len(table), "columns": places}

    def base64(self) -> str:
        """Everything that was packed."""
        return base64.b64encode(self._bytes).decode("ascii")


def _little_endian(column: array[Any]) -> bytes:
    if sys.byteorder == "little":
        return column.tobytes()
    swapped = array(column.typecode, column)
    swapped.byteswap()
    return swapped.tobytes()
