"""A state that notes which of its parts are read: what functions of it can be remembered by (`specs.engine.lookup`).

The core and the properties are given a `TracedState`, which is a `State`: its fields yield plain values, each noted as
read, and its `_replace` makes another one, in which what was left alone is still unread. Its balance sheet is a
`TracedSheet` in the same way; the sheet's items, which updates copy, are `UnreadColumn`s until somebody looks at them.
"""

import operator
from collections.abc import Callable, Iterator
from itertools import compress
from typing import Any, SupportsIndex

from fsm.machines.prompt_group import BalanceSheet
from fsm.state import State
from specs.engine.parts import (
    COLUMN_PARTS,
    EXCESS,
    FIELD_PARTS,
    PART,
    PLACES,
    PULLED,
    SHEET,
    SHIFTS,
    SUMMED,
    Parts,
)

_items = tuple.__getitem__
_all_items = tuple.__iter__
_FIELDS = {name: position for position, name in enumerate(State._fields)}
_COLUMNS = {name: column for column, name in enumerate(BalanceSheet._fields)}


class Reading:
    """One key and which of its parts have been read. In the items of a `TracedState` it stands for "unread"."""

    __slots__ = ("key", "mask", "parts", "sheet", "state", "values")

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.values = parts.values
        self.key = 0
        self.mask = 0
        """The parts that have been read, as bits of a key."""
        columns = [UnreadPulled(self) if part == EXCESS else UnreadColumn(self, part) for part in COLUMN_PARTS]
        self.sheet: Any = tuple.__new__(TracedSheet, columns)
        """The sheet of a state of which nothing has been read."""
        self.state: Any = tuple.__new__(TracedState, [self.sheet if part < 0 else self for part in FIELD_PARTS])

    def open(self, key: int) -> State:
        """The state of `key`, nothing read yet. The states of earlier keys must not be used any more."""
        self.key, self.mask = key, 0
        state: State = self.state
        return state

    def read(self, part: int) -> Any:
        """The value of a part, noted as read."""
        self.mask |= PART[part]
        return self.values[part][(self.key & PART[part]) >> SHIFTS[part]]

    def pulled(self) -> int:
        """The sheet's `pulled`: all that it is the sum of is noted as read."""
        self.mask |= SUMMED
        return self.parts.pulled(self.key)


def _field(position: int) -> property:
    number = FIELD_PARTS[position]
    if number < 0:
        return property(lambda state: _items(state, position))
    part, shift = PART[number], SHIFTS[number]

    def get(state: TracedState) -> Any:
        item: Any = _items(state, position)
        if type(item) is not Reading:
            return item
        item.mask |= part  # this and the next line are `item.read(number)`, which is too slow to be called here
        return item.values[number][(item.key & part) >> shift]

    return property(get)


def _column(column: int) -> property:
    def get(sheet: TracedSheet) -> Any:
        item: Any = _items(sheet, column)
        return item if type(item) is int else item.read()

    return property(get)


def _replaced(traced: Any, places: dict[str, int], changes: dict[str, Any]) -> Any:
    items = list(_all_items(traced))
    for name, value in changes.items():
        items[places[name]] = (
            value if type(value) is not BalanceSheet else tuple.__new__(TracedSheet, _all_items(value))
        )
    return tuple.__new__(type(traced), items)


class TracedState(State):
    """A state whose items are values, or the Reading that has them. Whoever looks at it in any way has read it."""

    __slots__ = ()

    def _replace(self, **changes: Any) -> Any:
        return _replaced(self, _FIELDS, changes)

    def __iter__(self) -> Iterator[Any]:
        return iter([getattr(self, name) for name in State._fields])

    def __repr__(self) -> str:
        return repr(State(*self))

    def __reduce_ex__(self, _: SupportsIndex) -> Any:
        """A copy is a plain state."""
        return State, tuple(self)


def _on_values(name: str) -> Callable[..., Any]:
    """A method of tuples, which would find the items themselves, on the values of a traced state."""
    method = getattr(tuple, name)
    return lambda *operands: method(*(tuple(each) if isinstance(each, TracedState) else each for each in operands))


class TracedSheet(BalanceSheet):
    """The balance sheet of such a state: its items are numbers, or columns that nobody has looked at."""

    __slots__ = ()

    def _replace(self, **changes: Any) -> Any:
        return _replaced(self, _COLUMNS, changes)

    def __hash__(self) -> int:
        return hash(tuple(map(int, self)))

    def __repr__(self) -> str:
        return repr(BalanceSheet(*self))

    def __reduce_ex__(self, _: SupportsIndex) -> Any:
        return BalanceSheet, tuple(map(int, self))


for _name in ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__hash__", "__getitem__", "__contains__",
              "__add__", "__mul__", "__rmul__", "count", "index"):  # fmt: skip
    setattr(TracedState, _name, _on_values(_name))
for _name, _place in _FIELDS.items():
    setattr(TracedState, _name, _field(_place))
for _name, _place in _COLUMNS.items():
    setattr(TracedSheet, _name, _column(_place))


def _on_value(operation: Callable[[Any, Any], Any]) -> "Callable[[UnreadColumn, Any], Any]":
    return lambda column, other: operation(column.read(), other.read() if isinstance(other, UnreadColumn) else other)


def _on_other(operation: Callable[[Any, Any], Any]) -> "Callable[[UnreadColumn, Any], Any]":
    return lambda column, other: operation(other, column.read())


class UnreadColumn:
    """A column of the sheet, until somebody counts, compares or prints it; it does all that an int does in the core.

    It has no hash, so that nobody can keep it in the place of the number.
    """

    __slots__ = ("part", "reading")
    __hash__ = None  # type: ignore[assignment]  # says just that

    def __init__(self, reading: Reading, part: int) -> None:
        self.reading = reading
        self.part = part

    def read(self) -> int:
        """The number, noted as read."""
        number: int = self.reading.read(self.part)
        return number

    def __eq__(self, other: object) -> bool:
        return other is self or bool(self.read() == (other.read() if isinstance(other, UnreadColumn) else other))

    def __bool__(self) -> bool:
        return bool(self.read())

    def __index__(self) -> int:
        return self.read()

    __int__ = __index__

    def __repr__(self) -> str:
        return repr(self.read())

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        return int, (self.read(),)

    __add__, __radd__ = _on_value(operator.add), _on_other(operator.add)
    __sub__, __rsub__ = _on_value(operator.sub), _on_other(operator.sub)
    __mul__, __rmul__ = _on_value(operator.mul), _on_other(operator.mul)
    __floordiv__, __mod__ = _on_value(operator.floordiv), _on_value(operator.mod)
    __or__, __ror__ = _on_value(operator.or_), _on_other(operator.or_)
    __lt__, __le__ = _on_value(operator.lt), _on_value(operator.le)
    __gt__, __ge__ = _on_value(operator.gt), _on_value(operator.ge)


class UnreadPulled(UnreadColumn):
    """The sheet's `pulled`, and so many more: more can be pulled without a look at how many were."""

    __slots__ = ("more",)

    def __init__(self, reading: Reading, more: int = 0) -> None:
        super().__init__(reading, EXCESS)
        self.more = more

    def read(self) -> int:
        """The number, noted as read."""
        return self.reading.pulled() + self.more

    def __add__(self, other: Any) -> Any:
        return UnreadPulled(self.reading, self.more + other) if type(other) is int else super().__add__(other)

    def __sub__(self, other: Any) -> Any:
        if isinstance(other, UnreadPulled) and other.reading is self.reading:
            return self.more - other.more
        return super().__sub__(other)


class PulledAfter(UnreadPulled):
    """`pulled` of a second state: how many more than in the first can be told from the columns that changed."""

    __slots__ = ("changed", "first")

    def __init__(self, second: Reading, first: Reading, changed: tuple[int, ...]) -> None:
        super().__init__(second)
        self.first, self.changed = first, changed

    def __sub__(self, other: Any) -> Any:
        if type(other) is UnreadPulled and other.reading is self.first:
            return sum(self.reading.read(part) - self.first.read(part) for part in self.changed) - other.more
        return super().__sub__(other)


SHEET_PARTS = tuple(sorted(COLUMN_PARTS))
"""The parts that are columns of the sheet."""


def second_of(first: Reading, second: Reading, changed: int) -> State:
    """The second of two states: what did not change of the sheet are the first one's columns.

    `changed` has one bit for each of `SHEET_PARTS`, which says whether it is another number in the second.
    """
    others = tuple(part for bit, part in enumerate(SHEET_PARTS) if changed >> bit & 1)
    columns = [_items(second.sheet if part in others else first.sheet, at) for at, part in enumerate(COLUMN_PARTS)]
    if others:
        columns[PULLED] = PulledAfter(second, first, tuple(part for part in others if SUMMED & PART[part]))
    after: State = second.state._replace(**{SHEET: tuple.__new__(TracedSheet, columns)})
    return after


_POSITIONS, _PLACES = range(len(State._fields)), range(len(BalanceSheet._fields))


def written(state: State, reading: Reading) -> tuple[int, int]:
    """What a function made of the key that was opened last: the bits of it that stay, and those that replace the
    others. Raises TooManyValues."""
    kept, bits = -1, 0
    for position in compress(_POSITIONS, map(operator.is_not, _all_items(state), _all_items(reading.state))):
        part, item = FIELD_PARTS[position], _items(state, position)
        stays, new = _sheet_written(item, reading) if part < 0 else (~PART[part], reading.parts.bits(part, item))
        kept &= stays
        bits |= new
    return kept, bits


def _sheet_written(sheet: Any, reading: Reading) -> tuple[int, int]:
    kept, bits, excess = -1, 0, 0
    for column in compress(_PLACES, map(operator.is_not, _all_items(sheet), _all_items(reading.sheet))):
        item: Any = _items(sheet, column)
        part, change = COLUMN_PARTS[column], item - _items(reading.sheet, column)
        if column == PULLED:
            excess += change
            continue
        if column in PLACES:
            excess -= change
        kept &= ~PART[part]
        bits |= reading.parts.bits(part, item if type(item) is int else item.read())
    if excess:
        kept &= ~PART[EXCESS]
        bits |= reading.parts.bits(EXCESS, reading.read(EXCESS) + excess)
    return kept, bits
