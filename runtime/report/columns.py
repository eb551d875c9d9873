"""Tables as typed arrays, which a browser reads directly: a hundred thousand rows take megabytes. And their texts."""

import base64
import sys
from array import array
from collections.abc import Mapping
from typing import Any

from runtime.trace.show import printable

NOT_YET = 0xFFFF_FFFF
"""In columns of times: not in this trace. In columns of row numbers and texts: none."""
NO_WORKER = 0xFFFF
ALIGNED = 8
"""Every column begins at a multiple of so many bytes."""
JAVASCRIPT: Mapping[str, str] = {
    "B": "Uint8Array", "H": "Uint16Array", "I": "Uint32Array", "i": "Int32Array", "f": "Float32Array"
}  # fmt: skip
"""By type code of an array, its type in the browser."""


def milliseconds(monotonic_s: float) -> int:
    """A time of the trace as columns hold it, enough for 49 days."""
    return round(monotonic_s * 1000)


class Columns:
    """A table: named columns of equal length, each of one type."""

    def __init__(self, types: Mapping[str, str]) -> None:
        """`types`: by column, in order, the type code of its `array`."""
        self.columns: dict[str, array[Any]] = {name: array(code) for name, code in types.items()}
        self._first = next(iter(self.columns.values()))
        self._appends = tuple(column.append for column in self.columns.values())

    def __len__(self) -> int:
        return len(self._first)

    def __getitem__(self, name: str) -> "array[Any]":
        return self.columns[name]

    def drop_from(self, name: str, least: float) -> None:
        """Drop the last rows, as long as their value of this column is at least `least`."""
        values, rows = self.columns[name], len(self)
        while rows and values[rows - 1] >= least:
            rows -= 1
        for column in self.columns.values():
            del column[rows:]

    def append(self, *values: float) -> int:
        """Append a row in the order of the columns, and return its number. Raises OverflowError."""
        for append, value in zip(self._appends, values, strict=True):
            append(value)
        return len(self._first) - 1


def packed(tables: Mapping[str, Columns]) -> tuple[dict[str, Any], str]:
    """The columns of several tables in one piece of memory.

    Returns for each table its number of rows, and by column its type and offset; and all packed bytes, in base64.
    """
    memory = bytearray()
    places: dict[str, Any] = {}
    for table_name, table in tables.items():
        columns = {}
        for name, column in table.columns.items():
            memory.extend(bytes(-len(memory) % ALIGNED))
            columns[name] = [JAVASCRIPT[column.typecode], len(memory)]
            memory.extend(_little_endian(column))
        places[table_name] = {"rows": len(table), "columns": columns}
    return places, base64.b64encode(memory).decode("ascii")


def _little_endian(column: "array[Any]") -> bytes:
    if sys.byteorder == "little":
        return column.tobytes()
    swapped = array(column.typecode, column)
    swapped.byteswap()
    return swapped.tobytes()


LONGEST = 2_000
"""Characters kept of one text."""
MOST = 5_000
"""How many different texts are kept."""
BEYOND = "(a report keeps no more texts; evenstep trace shows this one)"


class Texts:
    """Texts by number: each is kept once, printable and cut."""

    def __init__(self) -> None:
        self.kept: list[str] = []
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        """The number of a text, which is kept if it is new."""
        shown = printable(str(text), widest=LONGEST)
        if shown not in self._numbers and len(self.kept) >= MOST:
            shown = BEYOND
        if shown not in self._numbers:
            self._numbers[shown] = len(self.kept)
            self.kept.append(shown)
        return self._numbers[shown]
