"""A state as one integer.

A state has 28 parts: the fields of `fsm.state.State`, and in the place of its balance sheet each of the sheet's
columns. Each distinct value of a part gets a number, and a state's key is those numbers side by side, in words of 64
bits: compared and hashed as an integer, or one row of an array of words (`specs.engine.rows`).

Of the sheet a key has what is in hand, what is gone for good, and not `pulled` but its excess over all other columns,
which is nothing where the sheet adds up. So a move from one column to another reads and writes those two alone. A
state without what no rule reads, the columns that are gone and the excess, is a key with 0 there (`CANONICAL`).

Above its parts a key has room for one more number, the checkpoint that a world with a checkpoint slot carries along
(`CHECKPOINT`).
"""

from collections.abc import Iterable, Iterator
from typing import Any

from fsm.machines.prompt_group import BalanceSheet, GroupState
from fsm.state import State

_VALUE, _COUNTS, _COLUMN = 16, 21, 12
"""Bits of a part, by what it is: it may take 2 ** bits values in one exploration. Counts per class take the most."""

WORD = 64
"""Bits of a word. No part lies in two of them."""

WORDS = 8
"""Words of a key."""

_IN_HAND = tuple(column.value for column in GroupState if GroupState.SPARE <= column <= GroupState.SELECTED)
PULLED = BalanceSheet._fields.index("pulled")
PLACES = tuple(column.value for column in GroupState if column.value != PULLED)
"""The columns that `pulled` is the sum of."""

SHEET = "sheet"
"""The field of a state that is its balance sheet."""

_FIELDS = tuple(name for name in State._fields if name != SHEET)
_COLUMNS = (*_IN_HAND, *(column for column in range(len(BalanceSheet._fields)) if column not in _IN_HAND))
"""The sheet's columns in the order of their parts: first what is in hand."""

NAMES = (*_FIELDS, *(f"{SHEET}.{BalanceSheet._fields[column]}" for column in _COLUMNS))
"""The parts of a state, by number."""

FIELD_PARTS = tuple(_FIELDS.index(name) if name != SHEET else -1 for name in State._fields)
"""Per field of a state its part; -1 for the sheet."""
COLUMN_PARTS = tuple(len(_FIELDS) + _COLUMNS.index(column) for column in range(len(BalanceSheet._fields)))
"""Per column of the sheet its part; `pulled`'s is the excess."""
EXCESS = COLUMN_PARTS[PULLED]

_BITS = (
    *(_COUNTS if type(State._field_defaults[name]) is tuple else _VALUE for name in _FIELDS),
    *(_COLUMN for _ in _COLUMNS),
)


def _shifts(widths: Iterable[int]) -> Iterator[int]:
    shift = 0
    for bits in widths:
        if shift // WORD != (shift + bits - 1) // WORD:
            shift += -shift % WORD
        yield shift
        shift += bits


SHIFTS = tuple(_shifts(_BITS))
"""Per part where in a key it starts."""
PART = tuple(((1 << bits) - 1) << shift for bits, shift in zip(_BITS, SHIFTS, strict=True))
"""Per part the bits of a key that hold it."""

CHECKPOINT = WORDS * WORD - 32
"""Where in a key the number of the checkpoint starts; 0 there stands for no checkpoint."""

if SHIFTS[-1] + _BITS[-1] > CHECKPOINT:
    raise AssertionError("the parts of a state fill more words than a key has")

STATE = (1 << CHECKPOINT) - 1
"""The bits of a key that hold the state."""

KEY = (1 << WORDS * WORD) - 1
"""All bits of a key."""

CANONICAL = KEY & ~sum(
    PART[COLUMN_PARTS[column]] for column in range(len(BalanceSheet._fields)) if column not in _IN_HAND
)
"""The bits of a key that rules can tell apart."""

SUMMED = sum(PART[COLUMN_PARTS[column]] for column in (PULLED, *PLACES))
"""The bits of a key that `pulled` is made of."""


class TooManyValues(Exception):
    """One part took more values than a key has room for; the exploration is undetermined."""


class Parts:
    """The numbers of all values that the parts of a state have taken in one exploration."""

    def __init__(self) -> None:
        self._numbers: list[dict[Any, int]] = [{} for _ in NAMES]
        self.values: list[list[Any]] = [[] for _ in NAMES]
        """Per part its values, by number."""
        for part in COLUMN_PARTS:
            self.bits(part, 0)  # 0 groups are number 0

    def bits(self, part: int, value: object) -> int:
        """`value` of a part, where it stands in a key. Raises TooManyValues."""
        numbers = self._numbers[part]
        number = numbers.get(value)
        if number is None:
            number = numbers[value] = len(numbers)
            if number >> _BITS[part]:
                raise TooManyValues(f"{NAMES[part]} took more than {1 << _BITS[part]:,} values")
            self.values[part].append(value)
        return number << SHIFTS[part]

    def value(self, part: int, key: int) -> Any:
        """The value of a part in a key."""
        return self.values[part][(key & PART[part]) >> SHIFTS[part]]

    def pack(self, state: State) -> int:
        """The key of a state."""
        key = 0
        for part, value in zip(FIELD_PARTS, state, strict=True):
            if part >= 0:
                key |= self.bits(part, value)
        sheet = getattr(state, SHEET)
        excess = sheet.pulled - sum(sheet[column] for column in PLACES)
        for column, part in enumerate(COLUMN_PARTS):
            key |= self.bits(part, excess if column == PULLED else sheet[column])
        return key

    def pulled(self, key: int) -> int:
        """The column of that name in a key."""
        return sum(self.value(COLUMN_PARTS[column], key) for column in (PULLED, *PLACES))

    def unpack(self, key: int) -> State:
        """The state of a key."""
        columns = [self.value(part, key) for part in COLUMN_PARTS]
        columns[PULLED] = self.pulled(key)
        sheet = BalanceSheet._make(columns)
        return State._make(sheet if part < 0 else self.value(part, key) for part in FIELD_PARTS)
