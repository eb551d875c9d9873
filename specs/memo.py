"""Functions of a state that are remembered by what they read.

A transition of the core reads a few parts of the state and leaves the others alone. A `Memo` runs a function on a
state that notes what is read (`specs.reading.Reading`); in every later state that agrees in those parts the result is
looked up. That is exact for any deterministic function, the real rules and broken variants alike: having read
the same, it does the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from fsm.state import State
from specs.parts import WORD, WORDS
from specs.reading import Reading

R = TypeVar("R")


class Learned(NamedTuple, Generic[R]):
    """What a function gave, and the bits of the key that it read."""

    result: R
    mask: int


class Memo(Generic[R]):
    """One function of a key; it must be deterministic and may not return None."""

    __slots__ = ("_learn", "_tables")

    def __init__(self, learn: Callable[[int], Learned[R]]) -> None:
        self._learn = learn
        self._tables: dict[int, dict[int, R]] = {}
        """Per set of parts that was read, as bits of a key: the results by what was read."""

    def known(self, key: int) -> R | None:
        """The result, where it is remembered."""
        for mask, results in self._tables.items():
            found = results.get(key & mask)
            if found is not None:
                return found
        return None

    def learn(self, key: int) -> Learned[R]:
        """Run the function, and remember its result. What it raises is raised, and not remembered."""
        learned = self._learn(key)
        self._tables.setdefault(learned.mask, {})[key & learned.mask] = learned.result
        return learned

    def __call__(self, key: int) -> R:
        """The result."""
        found = self.known(key)
        return self.learn(key).result if found is None else found


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
