"""A state as one integer, and a state that notes which of its parts are read.

A state has 17 parts (the fields of `fsm.state.State`). Each distinct value of a part gets a number, and a state's key
is those numbers side by side, `BITS` bits each: about 70 bytes, compared and hashed as an integer. Above them a key
has room for one more number, the checkpoint that a world with a checkpoint slot carries along (`CHECKPOINT`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import compress
from operator import is_not
from typing import Any

from fsm.state import State

BITS = 20
"""A part may take 2 ** BITS values in one exploration."""

FIELDS = State._fields
PART = tuple(((1 << BITS) - 1) << (BITS * number) for number in range(len(FIELDS)))
"""Per part the bits of a key that hold it."""

STATE = (1 << (BITS * len(FIELDS))) - 1
"""The bits of a key that hold the state."""

CHECKPOINT = BITS * len(FIELDS)
"""Where in a key the number of the checkpoint starts; 0 there stands for no checkpoint."""

_ONE = (1 << BITS) - 1


class TooManyValues(Exception):
    """One part took more values than a key has room for; the exploration is undetermined."""


class Parts:
    """The numbers of all values that the parts of a state have taken in one exploration."""

    def __init__(self) -> None:
        self._numbers: list[dict[Any, int]] = [{} for _ in FIELDS]
        self.values: list[list[Any]] = [[] for _ in FIELDS]
        """Per part its values, by number."""

    def bits(self, part: int, value: object) -> int:
        """`value` of a part, where it stands in a key. Raises TooManyValues."""
        numbers = self._numbers[part]
        number = numbers.get(value)
        if number is None:
            number = numbers[value] = len(numbers)
            if number > _ONE:
                raise TooManyValues(f"{FIELDS[part]} took more than {_ONE + 1:,} values")
            self.values[part].append(value)
        return number << (BITS * part)

    def value(self, part: int, key: int) -> Any:
        """The value of a part in a key."""
        return self.values[part][(key >> (BITS * part)) & _ONE]

    def pack(self, state: State) -> int:
        """The key of a state."""
        key = 0
        for part, value in enumerate(state):
            key |= self.bits(part, value)
        return key

    def unpack(self, key: int) -> State:
        """The state of a key."""
        return State._make(self.value(part, key) for part in range(len(FIELDS)))


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
        self.state = State._make(Unread(self, part) for part in range(len(FIELDS)))

    def open(self, key: int) -> State:
        """The state of `key`, nothing read yet."""
        self.key, self.mask = key, 0
        return self.state


class Unread:
    """Stands where a part's value is that nobody has looked at. Whoever compares or prints it has looked."""

    __slots__ = ("part", "reading")

    def __init__(self, reading: Reading, part: int) -> None:
        self.reading = reading
        self.part = part

    def read(self) -> Any:
        """The value, noted as read."""
        reading = self.reading
        reading.mask |= PART[self.part]
        return reading.parts.value(self.part, reading.key)

    def __eq__(self, other: object) -> bool:
        return bool(self.read() == (other.read() if isinstance(other, Unread) else other))

    def __hash__(self) -> int:
        return hash(self.read())

    def __repr__(self) -> str:
        return repr(self.read())


def _field(number: int) -> property:
    part, shift = PART[number], BITS * number

    def get(state: State) -> Any:
        item: Any = tuple.__getitem__(state, number)
        if type(item) is not Unread:
            return item
        reading = item.reading  # what follows is `item.read()`, which is called too often to be called
        reading.mask |= part
        return reading.values[number][(reading.key >> shift) & _ONE]

    return property(get)


_NOTING = {name: _field(number) for number, name in enumerate(FIELDS)}
_PLAIN = {name: vars(State)[name] for name in FIELDS}


@contextmanager
def noting_reads() -> Iterator[None]:
    """While it lasts, a field of any State that is an `Unread` token yields its value, and notes it as read.

    The core's functions make new states of old ones item by item, whatever their class, so the fields themselves are
    the one place where every read passes.
    """
    for name, field in _NOTING.items():
        setattr(State, name, field)
    try:
        yield
    finally:
        for name, field in _PLAIN.items():
            setattr(State, name, field)


_POSITIONS = range(len(FIELDS))


def written(state: State, reading: Reading) -> tuple[int, int]:
    """What became of a state of tokens: the bits of a key that stay, and those that take the place of the others."""
    kept, bits = -1, 0
    for part in compress(_POSITIONS, map(is_not, state, reading.state)):
        kept &= ~PART[part]
        bits |= reading.parts.bits(part, tuple.__getitem__(state, part))
    return kept, bits
