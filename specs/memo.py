"""Functions of a state that are remembered by what they read.

A transition of the core reads a few parts of the state and leaves the others alone. `Memo` runs a function on a
state that notes what is read (`specs.parts.Reading`); in every later state that agrees in those parts the result is
looked up. That is exact for any deterministic function, the real rules and broken variants alike: having read
the same, it does the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from fsm.state import State
from specs.parts import Reading

R = TypeVar("R")


class Memo(Generic[R]):
    """One function of a state; it must be deterministic and may not return None."""

    __slots__ = ("_function", "_reading", "tables")

    def __init__(self, reading: Reading, function: Callable[[State], R]) -> None:
        self._reading = reading
        self._function = function
        self.tables: list[tuple[int, dict[int, R]]] = []
        """Per set of parts that was read, as bits of a key: the results by what was read. Whoever is in a hurry
        looks here, and calls `learn` where nothing is found."""

    def __call__(self, key: int) -> R:
        """The function's result in the state of `key`. What the function raises is raised, and not remembered."""
        for mask, known in self.tables:
            found = known.get(key & mask)
            if found is not None:
                return found
        return self.learn(key)

    def learn(self, key: int) -> R:
        """Run the function, and remember its result."""
        reading = self._reading
        result = self._function(reading.open(key))
        table = next((known for mask, known in self.tables if mask == reading.mask), None)
        if table is None:
            table = {}
            self.tables.append((reading.mask, table))
        table[key & reading.mask] = result
        return result


class BranchingMemo(Memo[R]):
    """The same for a function that reads now these parts and now those.

    What every run of it has read so far tells which other sets of parts to try, of which there are few.
    """

    __slots__ = ("_branches", "_common")

    def __init__(self, reading: Reading, function: Callable[[State], R]) -> None:
        super().__init__(reading, function)
        self._common = -1
        self._branches: dict[int, list[tuple[int, dict[int, R]]]] = {}

    def __call__(self, key: int) -> R:
        """As of Memo."""
        for mask, known in self._branches.get(key & self._common, ()):
            found = known.get(key & mask)
            if found is not None:
                return found
        result = self.learn(key)
        mask = self._reading.mask
        if self._common & mask != self._common:
            self._branch_by(self._common & mask)
        else:
            self._grow(key, next(known for other, known in self.tables if other == mask), mask)
        return result

    def _grow(self, key: int, known: dict[int, R], mask: int) -> None:
        branch = self._branches.setdefault(key & self._common, [])
        if all(other != mask for other, _ in branch):
            branch.append((mask, known))

    def _branch_by(self, common: int) -> None:
        self._common = common
        self._branches = {}
        for mask, known in self.tables:
            for key in known:
                self._grow(key, known, mask)


class PairMemo(Generic[R]):
    """One function of two states, before and after; the same conditions."""

    __slots__ = ("_function", "_readings", "tables")

    def __init__(self, readings: tuple[Reading, Reading], function: Callable[[State, State], R]) -> None:
        self._readings = readings
        self._function = function
        self.tables: list[tuple[int, int, dict[tuple[int, int], R]]] = []

    def __call__(self, before: int, after: int) -> R:
        """The function's result for the states of both keys."""
        for first, second, known in self.tables:
            found = known.get((before & first, after & second))
            if found is not None:
                return found
        return self.learn(before, after)

    def learn(self, before: int, after: int) -> R:
        """Run the function, and remember its result."""
        first, second = self._readings
        result = self._function(first.open(before), second.open(after))
        for mask, other, known in self.tables:
            if (mask, other) == (first.mask, second.mask):
                known[before & mask, after & other] = result
                return result
        entry = {(before & first.mask, after & second.mask): result}
        self.tables.append((first.mask, second.mask, entry))
        return result
