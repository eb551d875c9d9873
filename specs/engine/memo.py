"""Functions of a state that are remembered by what they read.

A transition of the core reads a few parts of the state and leaves the others alone. A `Memo` runs a function on a
state that notes what is read (`specs.engine.reading.Reading`); in every later state that agrees in those parts the
result is looked up. That is exact for any deterministic function, the real rules and broken variants alike: having read
the same, it does the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from fsm.state import State
from specs.engine.parts import WORD, WORDS
from specs.engine.reading import Reading

R = TypeVar("R")


class Learned(NamedTuple, Generic[R]):
    """What a function gave, and the bits of the key that it read."""

    result: R
    mask: int


class Memo(Generic[R]):
    """One function of a key, and the numbers of its results by what it read. It must be deterministic."""

    __slots__ = ("_numbers", "run")

    def __init__(self, run: Callable[[int], Learned[R]]) -> None:
        self.run = run
        self._numbers: dict[int, dict[int, int]] = {}
        """Per set of parts that was read, as bits of a key: the number of the result by what was read."""

    def find(self, key: int) -> int:
        """The number of its result, -1 where that is not known."""
        for mask, numbers in self._numbers.items():
            found = numbers.get(key & mask)
            if found is not None:
                return found
        return -1

    def remember(self, key: int, mask: int, number: int) -> None:
        """The number of the result in every key that has the same under the mask."""
        self._numbers.setdefault(mask, {})[key & mask] = number


def of_state(reading: Reading, function: Callable[[State], R]) -> Memo[R]:
    """A function of one state."""

    def learn(key: int) -> Learned[R]:
        result = function(reading.open(key))
        return Learned(result, reading.mask)

    return Memo(learn)


BESIDE = WORDS * WORD
"""Where in the key of two states the second starts."""


def of_two_states(readings: tuple[Reading, Reading], after: State, function: Callable[[State, State], R]) -> Memo[R]:
    """A function of two states, whose keys stand beside each other; `after` is the second, of tokens of both."""
    first, second = readings

    def learn(key: int) -> Learned[R]:
        second.open(key >> BESIDE)
        result = function(first.open(key), after)
        return Learned(result, first.mask | second.mask << BESIDE)

    return Memo(learn)
