"""A state as one integer, and a state that notes which of its parts are read.

A state has 28 parts: the fields of `fsm.state.State`, and in the place of its balance sheet each of the sheet's
columns. Each distinct value of a part gets a number, and a state's key is those numbers side by side: about 70 bytes,
compared and hashed as an integer.

Of the sheet a key has what is in hand, what is gone for good, and not `pulled` but its excess over all other columns,
which is nothing where the sheet adds up. So a move from one column to another reads and writes those two alone. A
state without what no rule reads, the columns that are gone and the excess, is a key with 0 there (`CANONICAL`).

Above its parts a key has room for one more number, the checkpoint that a world with a checkpoint slot carries along
(`CHECKPOINT`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import accumulate, compress
from typing import Any

from fsm.prompt_group import GroupState, Tally
from fsm.state import State

_MACHINES, _COUNTS, _COLUMN = 14, 20, 12
"""Bits of a part: it may take 2 ** bits values in one exploration."""

_WIDTHS = {
    "run": _MACHINES, "source": _MACHINES, "pool": _MACHINES, "gate": _MACHINES, "trainer": _MACHINES,
    "step": _MACHINES, "queue": _MACHINES, "budgets": _MACHINES,
    "ledgers": _COUNTS, "filtered": _COUNTS, "backing_off": _COUNTS, "waiting": _COUNTS, "running": _COUNTS,
    "ready": _COUNTS, "chunk": _COUNTS, "accumulated": _COUNTS,
}  # fmt: skip

_SHEET = State._fields.index("tally")
_IN_HAND = tuple(column.value for column in GroupState if GroupState.SPARE <= column <= GroupState.SELECTED)
_PULLED = Tally._fields.index("pulled")
_PLACES = tuple(column.value for column in GroupState if column.value != _PULLED)
"""The columns that `pulled` is the sum of."""

_FIELDS = tuple(name for name in State._fields if name != "tally")
_COLUMNS = (*_IN_HAND, *(column for column in range(len(Tally._fields)) if column not in _IN_HAND))
"""The sheet's columns in the order of their parts: first what is in hand."""

NAMES = (*_FIELDS, *(f"tally.{Tally._fields[column]}" for column in _COLUMNS))
"""The parts of a state, by number."""

_FIELD_PARTS = tuple(_FIELDS.index(name) if name != "tally" else -1 for name in State._fields)
"""Per field of a state its part; -1 for the sheet."""
_COLUMN_PARTS = tuple(len(_FIELDS) + _COLUMNS.index(column) for column in range(len(Tally._fields)))
"""Per column of the sheet its part; `pulled`'s is the excess."""
_EXCESS = _COLUMN_PARTS[_PULLED]

_BITS = tuple(_WIDTHS.get(name, _COLUMN) for name in NAMES)
_SHIFTS = tuple(accumulate(_BITS, initial=0))
PART = tuple(((1 << bits) - 1) << shift for bits, shift in zip(_BITS, _SHIFTS, strict=False))
"""Per part the bits of a key that hold it."""

RUNNING = PART[NAMES.index("running")]

CHECKPOINT = _SHIFTS[-1]
"""Where in a key the number of the checkpoint starts; 0 there stands for no checkpoint."""

STATE = (1 << CHECKPOINT) - 1
"""The bits of a key that hold the state."""

CANONICAL = ~sum(PART[_COLUMN_PARTS[column]] for column in range(len(Tally._fields)) if column not in _IN_HAND)
"""The bits of a key that rules can tell apart."""

_SUMMED = sum(PART[_COLUMN_PARTS[column]] for column in (_PULLED, *_PLACES))


class TooManyValues(Exception):
    """One part took more values than a key has room for; the exploration is undetermined."""


class Parts:
    """The numbers of all values that the parts of a state have taken in one exploration."""

    def __init__(self) -> None:
        self._numbers: list[dict[Any, int]] = [{} for _ in NAMES]
        self.values: list[list[Any]] = [[] for _ in NAMES]
        """Per part its values, by number."""
        for part in _COLUMN_PARTS:
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
        return number << _SHIFTS[part]

    def value(self, part: int, key: int) -> Any:
        """The value of a part in a key."""
        return self.values[part][(key & PART[part]) >> _SHIFTS[part]]

    def pack(self, state: State) -> int:
        """The key of a state."""
        key = 0
        for part, value in zip(_FIELD_PARTS, state, strict=True):
            if part >= 0:
                key |= self.bits(part, value)
        sheet = state.tally
        excess = sheet.pulled - sum(sheet[column] for column in _PLACES)
        for column, part in enumerate(_COLUMN_PARTS):
            key |= self.bits(part, excess if column == _PULLED else sheet[column])
        return key

    def pulled(self, key: int) -> int:
        """The column of that name in a key."""
        return sum(self.value(_COLUMN_PARTS[column], key) for column in (_PULLED, *_PLACES))

    def unpack(self, key: int) -> State:
        """The state of a key."""
        columns = [self.value(part, key) for part in _COLUMN_PARTS]
        columns[_PULLED] = self.pulled(key)
        sheet = Tally._make(columns)
        return State._make(sheet if part < 0 else self.value(part, key) for part in _FIELD_PARTS)


class Reading:
    """A state that notes which of its parts are read: those of the key that was opened last.

    The state is made of `Unread` tokens, one a part. New states that are made of it carry the tokens of the parts that
    they leave alone. What a function does with it depends on the parts read alone, so in every state that has
    the same there it does the same again (`specs.memo`). Fields yield values only while `noting_reads` is on.
    """

    __slots__ = ("key", "mask", "parts", "state", "values")

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.values = parts.values
        self.key = 0
        self.mask = 0
        """The parts that have been read, as bits of a key."""
        sheet = Tally._make(Pulled(self) if part == _EXCESS else Unread(self, part) for part in _COLUMN_PARTS)
        self.state = State._make(sheet if part < 0 else Unread(self, part) for part in _FIELD_PARTS)

    def open(self, key: int) -> State:
        """The state of `key`, nothing read yet."""
        self.key, self.mask = key, 0
        return self.state

    def read(self, part: int) -> Any:
        """The value of a part, noted as read."""
        self.mask |= PART[part]
        return self.parts.value(part, self.key)

    def pulled(self) -> int:
        """The column of that name, which is noted as a reading of all that it is the sum of."""
        self.mask |= _SUMMED
        return self.parts.pulled(self.key)


def _on_value(operation: Callable[[Any, Any], Any]) -> Callable[[Unread, Any], Any]:
    return lambda unread, other: operation(unread.read(), other.read() if isinstance(other, Unread) else other)


def _on_other(operation: Callable[[Any, Any], Any]) -> Callable[[Unread, Any], Any]:
    return lambda unread, other: operation(other, unread.read())


def _itself(value: Any) -> Any:
    return value


class Unread:
    """Stands where a part's value is that nobody has looked at. Whoever compares, counts or prints it has looked.

    Nobody may keep it as if it were the value: it has no hash, and whatever is kept is hashed.
    """

    __slots__ = ("part", "reading")
    __hash__ = None  # type: ignore[assignment]  # says just that

    def __init__(self, reading: Reading, part: int) -> None:
        self.reading = reading
        self.part = part

    def read(self) -> Any:
        """The value, noted as read."""
        return self.reading.read(self.part)

    def __eq__(self, other: object) -> bool:
        return other is self or bool(self.read() == (other.read() if isinstance(other, Unread) else other))

    def __bool__(self) -> bool:
        return bool(self.read())

    def __repr__(self) -> str:
        return repr(self.read())

    def __reduce__(self) -> tuple[Callable[[Any], Any], tuple[Any]]:
        """Whoever copies it has looked, and has the value."""
        return _itself, (self.read(),)

    __add__, __radd__ = _on_value(operator.add), _on_other(operator.add)
    __sub__, __rsub__ = _on_value(operator.sub), _on_other(operator.sub)
    __or__, __ror__ = _on_value(operator.or_), _on_other(operator.or_)
    __lt__, __le__ = _on_value(operator.lt), _on_value(operator.le)
    __gt__, __ge__ = _on_value(operator.gt), _on_value(operator.ge)


class Pulled(Unread):
    """The sheet's `pulled`, and so many more: how many more can be told without having looked at it."""

    __slots__ = ("more",)

    def __init__(self, reading: Reading, more: int = 0) -> None:
        super().__init__(reading, _EXCESS)
        self.more = more

    def read(self) -> Any:
        """The value, noted as read."""
        return self.reading.pulled() + self.more

    def __add__(self, other: Any) -> Any:
        return Pulled(self.reading, self.more + other) if type(other) is int else super().__add__(other)

    def __sub__(self, other: Any) -> Any:
        if isinstance(other, Pulled) and other.reading is self.reading:
            return self.more - other.more
        return super().__sub__(other)


class NotHere(Exception):
    """Somebody looked at a part of a state that has `Elsewhere` there."""


def _not_here(*_: object) -> Any:
    raise NotHere


class Elsewhere:
    """Stands where a part's value is that is not to be had from the key at hand."""

    __slots__ = ()
    __eq__ = __repr__ = __bool__ = __iter__ = __len__ = __getitem__ = __reduce__ = _not_here
    __hash__ = None  # type: ignore[assignment]  # as of Unread


def _field(position: int) -> property:
    number = _FIELD_PARTS[position]
    part, shift = PART[number], _SHIFTS[number]

    def get(state: State) -> Any:
        item: Any = tuple.__getitem__(state, position)
        if type(item) is not Unread:
            if type(item) is Elsewhere:
                raise NotHere(State._fields[position])
            return item
        reading = item.reading  # what follows is `item.read()`, which is called too often to be called
        reading.mask |= part
        return reading.values[number][(reading.key & part) >> shift]

    return property(get)


def _column(position: int) -> property:
    def get(sheet: Tally) -> Any:
        item: Any = tuple.__getitem__(sheet, position)
        return item if type(item) is int else item.read()

    return property(get)


_NOTING: tuple[tuple[type, str, property], ...] = (
    *((State, name, _field(position)) for position, name in enumerate(State._fields) if name != "tally"),
    *((Tally, name, _column(position)) for position, name in enumerate(Tally._fields)),
)
_PLAIN = tuple((owner, name, vars(owner)[name]) for owner, name, _ in _NOTING)


@contextmanager
def noting_reads() -> Iterator[None]:
    """While it lasts, a field of any State or Tally that is an `Unread` token yields its value, and notes it as read.

    The core's functions make new states of old ones item by item, whatever their class, so the fields themselves are
    the one place where every read passes.
    """
    for owner, name, noting in _NOTING:
        setattr(owner, name, noting)
    try:
        yield
    finally:
        for owner, name, plain in _PLAIN:
            setattr(owner, name, plain)


_NUMBERED_FIELDS = tuple(enumerate(_FIELD_PARTS))


def written(state: State, reading: Reading) -> tuple[int, int]:
    """What became of a state of tokens: the bits of a key that stay, and those that take the place of the others."""
    kept, bits = -1, 0
    for position, part in compress(_NUMBERED_FIELDS, map(operator.is_not, state, reading.state)):
        if position == _SHEET:
            stays, sheet = _sheet_written(state.tally, reading)
            kept &= stays
            bits |= sheet
        else:
            kept &= ~PART[part]
            bits |= reading.parts.bits(part, tuple.__getitem__(state, position))
    return kept, bits


def _sheet_written(sheet: Tally, reading: Reading) -> tuple[int, int]:
    kept, bits, excess = -1, 0, 0
    for column in compress(range(len(Tally._fields)), map(operator.is_not, sheet, reading.state.tally)):
        part, value = _COLUMN_PARTS[column], sheet[column]
        change = value - reading.state.tally[column]
        if column == _PULLED:
            excess += change
            continue
        if column in _PLACES:
            excess -= change
        kept &= ~PART[part]
        bits |= reading.parts.bits(part, value)
    if excess:
        kept &= ~PART[_EXCESS]
        bits |= reading.parts.bits(_EXCESS, reading.read(_EXCESS) + excess)
    return kept, bits
