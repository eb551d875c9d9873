"""A state that notes which of its parts are read: what functions of it can be remembered by (`specs.engine.memo`)."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import compress
from typing import Any, NamedTuple

from fsm.machines.prompt_group import Tally
from fsm.state import GroupClass, State, View
from fsm.values import pages
from specs.engine.parts import (
    COLUMN_PARTS,
    EXCESS,
    FIELD_PARTS,
    NAMES,
    PART,
    PLACES,
    PULLED,
    RUNNING,
    SHIFTS,
    SUMMED,
    Parts,
)

Additions = tuple[tuple[GroupClass, int], ...]
"""Groups that come to a class each, in order."""


class Reading:
    """A state that notes which of its parts are read: those of the key that was opened last.

    The state is made of `Unread` tokens, one a part. New states that are made of it carry the tokens of the parts that
    they leave alone. What a function does with it depends on the parts read alone, so in every state that has
    the same there it does the same again. Fields yield values only while `noting_reads` is on.
    """

    __slots__ = ("key", "mask", "parts", "state", "values")

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.values = parts.values
        self.key = 0
        self.mask = 0
        """The parts that have been read, as bits of a key."""
        sheet = Tally._make(Pulled(self) if part == EXCESS else Unread(self, part) for part in COLUMN_PARTS)
        self.state = State._make(sheet if part < 0 else Unread(self, part) for part in FIELD_PARTS)

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
        self.mask |= SUMMED
        return self.parts.pulled(self.key)


class Starting(Reading):
    """The same for functions that start groups: to those that run more can be added without a look at them.

    Their field yields `Running` then, which `fsm.values.pages` can do with; only the core's own functions are shown it.
    """

    __slots__ = ()

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self.state = self.state._replace(running=Running(self))  # type: ignore[arg-type]  # a token

    def shown(self, state: State, elsewhere: Elsewhere) -> State:
        """A state of these tokens for whoever may look at anything; what was added to is `elsewhere`."""
        token: Any = tuple.__getitem__(state, _RUNNING_FIELD)
        if type(token) is not Running:
            return state
        plain: Any = elsewhere if token.more else Unread(self, _RUNNING)
        return state._replace(running=plain)


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
        super().__init__(reading, EXCESS)
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


class PulledAfter(Pulled):
    """`pulled` of a second state: how many more than in the first can be told from the columns that changed."""

    __slots__ = ("changed", "first")

    def __init__(self, second: Reading, first: Reading, changed: tuple[int, ...]) -> None:
        super().__init__(second)
        self.first, self.changed = first, changed

    def __sub__(self, other: Any) -> Any:
        if type(other) is Pulled and other.reading is self.first:
            return sum(self.reading.read(part) - self.first.read(part) for part in self.changed) - other.more
        return super().__sub__(other)


SHEET_PARTS = tuple(sorted(COLUMN_PARTS))
"""The parts that are columns of the sheet."""


def beside(first: Reading, second: Reading, changed: int) -> State:
    """The second of two states: what did not change of the sheet are the first one's tokens.

    `changed` has one bit for each of `SHEET_PARTS`, which says whether it is another number in the second.
    """
    others = tuple(part for bit, part in enumerate(SHEET_PARTS) if changed >> bit & 1)
    before, after = first.state.tally, second.state.tally
    columns: list[Any] = [
        tuple.__getitem__(after if part in others else before, column) for column, part in enumerate(COLUMN_PARTS)
    ]
    if others:
        columns[PULLED] = PulledAfter(second, first, tuple(part for part in others if SUMMED & PART[part]))
    return second.state._replace(tally=Tally._make(columns))


_RUNNING = NAMES.index("running")
_RUNNING_FIELD = State._fields.index("running")


class Running(Unread):
    """The groups that run, and more that were started: which ones can be told without having looked at the others."""

    __slots__ = ("more",)

    def __init__(self, reading: Reading, more: Additions = ()) -> None:
        super().__init__(reading, _RUNNING)
        self.more = more

    def read(self) -> Any:
        """The counts with what was added, noted as read."""
        return _added(self.reading.read(_RUNNING), self.more)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.read())

    def __len__(self) -> int:
        return len(self.read())

    def __getitem__(self, place: Any) -> Any:
        return self.read()[place]


def _added(counts: Any, more: Additions) -> Any:
    for group_class, groups in more:
        counts = pages.add(counts, group_class, groups)
    return counts


class NotHere(Exception):
    """Somebody looked at a part of a state that has `Elsewhere` there."""


def _look(elsewhere: Elsewhere, *_: object) -> Any:
    elsewhere.looked_at = True
    raise NotHere


class Elsewhere:
    """Stands where a part's value is that is not to be had from the key at hand."""

    __slots__ = ("looked_at",)
    __eq__ = __repr__ = __bool__ = __iter__ = __len__ = __getitem__ = __reduce__ = look = _look
    __hash__ = None  # type: ignore[assignment]  # as of Unread

    def __init__(self) -> None:
        self.looked_at = False
        """Whether somebody did, who may have caught NotHere."""


def _field(position: int) -> property:
    number = FIELD_PARTS[position]
    part, shift = PART[number], SHIFTS[number]

    def get(state: State) -> Any:
        item: Any = tuple.__getitem__(state, position)
        kind = type(item)
        if kind is not Unread:
            return item.look() if kind is Elsewhere else item
        if item.part != number:
            return item.read()
        reading = item.reading  # what follows is `item.read()`, which is called too often to be called
        reading.mask |= part
        return reading.values[number][(reading.key & part) >> shift]

    return property(get)


def _column(position: int) -> property:
    def get(sheet: Tally) -> Any:
        item: Any = tuple.__getitem__(sheet, position)
        return item if type(item) is int else item.read()

    return property(get)


def _running_in_view(view: View) -> Any:
    running: Any = view._state.running
    return running.read() if type(running) is Running else running


_NOTING: tuple[tuple[type, str, property], ...] = (
    (View, "running", property(_running_in_view)),
    *((State, name, _field(position)) for position, name in enumerate(State._fields) if name != "tally"),
    *((Tally, name, _column(position)) for position, name in enumerate(Tally._fields)),
)
_PLAIN = tuple((owner, name, vars(owner)[name]) for owner, name, _ in _NOTING)


@contextmanager
def noting_reads() -> Iterator[None]:
    """While it lasts, a field of any State or Tally that is an `Unread` token yields its value, and notes it as read.

    The core's functions make new states of old ones item by item, whatever their class, so the fields themselves are
    the one place where every read passes. Groups that `pages.add` adds to `Running` are no look.
    """
    plain_add: Any = pages.add

    def add(counts: Any, key: Any, groups: int) -> Any:
        if type(counts) is Running and groups > 0:
            return Running(counts.reading, (*counts.more, (key, groups)))
        return plain_add(counts, key, groups)

    for owner, name, noting in _NOTING:
        setattr(owner, name, noting)
    pages.add = add  # type: ignore[assignment]  # it takes tokens too
    try:
        yield
    finally:
        pages.add = plain_add
        for owner, name, plain in _PLAIN:
            setattr(owner, name, plain)


class Written(NamedTuple):
    """What became of a state of tokens."""

    kept: int
    """The bits of a key that stay."""
    bits: int
    """Those that take the place of the others."""
    started: Additions
    """What is to be added to the groups that run, where those were not looked at."""


_NUMBERED_FIELDS = tuple(enumerate(FIELD_PARTS))
_SHEET = State._fields.index("tally")


def written(state: State, reading: Reading) -> Written:
    """What became of a state of tokens, of the key that was opened last. Raises TooManyValues."""
    kept, bits = -1, 0
    started: Additions = ()
    for position, part in compress(_NUMBERED_FIELDS, map(operator.is_not, state, reading.state)):
        if position == _SHEET:
            stays, sheet = _sheet_written(state.tally, reading)
            kept &= stays
            bits |= sheet
            continue
        value: Any = tuple.__getitem__(state, position)
        if type(value) is Running:
            if part == _RUNNING and not reading.mask & RUNNING:
                started = value.more
                continue
            value = value.read()
        kept &= ~PART[part]
        bits |= reading.parts.bits(part, value)
    return Written(kept, bits, started)


def _sheet_written(sheet: Tally, reading: Reading) -> tuple[int, int]:
    kept, bits, excess = -1, 0, 0
    for column in compress(range(len(Tally._fields)), map(operator.is_not, sheet, reading.state.tally)):
        part, value = COLUMN_PARTS[column], sheet[column]
        change = value - reading.state.tally[column]
        if column == PULLED:
            excess += change
            continue
        if column in PLACES:
            excess -= change
        kept &= ~PART[part]
        bits |= reading.parts.bits(part, value)
    if excess:
        kept &= ~PART[EXCESS]
        bits |= reading.parts.bits(EXCESS, reading.read(EXCESS) + excess)
    return kept, bits
