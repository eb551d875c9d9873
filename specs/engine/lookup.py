"""Functions of a state that are remembered by what they read, and many of them looked up for many keys at once.

A `Memo` runs a function on a state that notes what is read (`specs.engine.reading`); in every later state that agrees
in those parts the result is looked up, which is exact (`specs.engine`).

A `Lookup` holds what memos have learned in one table of rows: the function and what it read, in
the bits that it read. A key is looked up under one after the other of the sets of parts that its function has read so
far; what is found under none of them is learned, key by key, by running the function.
"""

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from fsm.state import State
from specs.engine.parts import CHECKPOINT, WORD, WORDS
from specs.engine.reading import Reading
from specs.engine.rows import Column, Numbers, Rows, RowSet, keys_of, places, rows_of, taken
from specs.model import CORE_FAULTS

R = TypeVar("R")

_TABLE = np.uint64(CHECKPOINT % WORD)
"""Where in a row's last word the number of its table, or of its function, stands: no function reads what stands there
in a key, which is the checkpoint."""

_FEW = 128
"""So few rows are looked up one by one: an array is not worth its setting up."""


class Learned(NamedTuple, Generic[R]):
    """What a function gave, and the bits of the key that it read."""

    result: R
    mask: int


class Memo(Generic[R]):
    """One function of a key, and the numbers of its results by what it read. It must be deterministic."""

    __slots__ = ("_numbers", "run")

    def __init__(self, run: Callable[[int], Learned[R]]) -> None:
        self.run = run
        self._numbers: dict[int, dict[bytes, int]] = {}
        """Per set of parts that was read, as bits of a key: the number of the result by what was read."""

    def find(self, key: int) -> int:
        """The number of its result, -1 where that is not known."""
        for mask, numbers in self._numbers.items():
            found = numbers.get(_bytes(key & mask))
            if found is not None:
                return found
        return -1

    def remember(self, key: int, mask: int, number: int) -> None:
        """The number of the result in every key that has the same under the mask."""
        self._numbers.setdefault(mask, {})[_bytes(key & mask)] = number


def _bytes(key: int) -> bytes:
    """Keys as integers share their hashes: those of parts that lie 61 bits apart add up."""
    return key.to_bytes(2 * WORDS * WORD // 8, "little")


def of_state(reading: Reading, function: Callable[[State], R]) -> Memo[R]:
    """A function of one state."""

    def learn(key: int) -> Learned[R]:
        result = function(reading.open(key))
        return Learned(result, reading.mask)

    return Memo(learn)


BESIDE = WORDS * WORD
"""Where in the key of two states the second starts."""


def of_two_states(readings: tuple[Reading, Reading], after: State, function: Callable[[State, State], R]) -> Memo[R]:
    """A function of two states, whose keys stand side by side; `after` is the second one, as `second_of` gives it."""
    first, second = readings

    def learn(key: int) -> Learned[R]:
        second.open(key >> BESIDE)
        result = function(first.open(key), after)
        return Learned(result, first.mask | second.mask << BESIDE)

    return Memo(learn)


class LookupFault(Exception):
    """A function of the model raised something: what, and for which of the rows that were looked up."""

    def __init__(self, place: int, fault: Exception) -> None:
        super().__init__(str(fault))
        self.place, self.fault = place, fault


class Lookup(Generic[R]):
    """The results of many functions of a key, by function and by what it read: each is an entry with a number."""

    def __init__(self, store: Callable[[list[R]], None], look: Callable[[], None], words: int = WORDS) -> None:
        """`store` is given the results of new entries, in the order of their numbers. `look` is called before
        every run of a function, and may raise."""
        self._store, self._look, self._words = store, look, words
        self._memos: list[Memo[R]] = []
        self._entries = 0
        self._known = RowSet(words)
        """The entries, by number, but for those that were learned since."""
        self._since: list[tuple[int, int]] = []
        """The table and the key of each entry that was learned since."""
        self._masks = Column(np.empty((0, words), np.uint64))
        """Per table the bits of a row that its function read."""
        self._read_so_far = Column(np.empty((0, words), np.uint64))
        """Per function the bits of a row that it has read in some table; all where there is none."""
        self._next = np.empty(0, np.int64)
        """Per table the next one of its function; -1 after the last."""
        self._first = np.empty(0, np.int64)
        """Per function its first table; -1 where there is none."""
        self._tables: dict[tuple[int, int], int] = {}
        """The number of a table by its function and mask."""
        self._owner: list[int] = []
        """Per table its function."""
        self._chains: dict[int, list[int]] = {}
        """Per function its tables."""
        self._hits = np.empty(0, np.int64)
        """Per table how much was found in it: what is found often is looked for first."""

    def function(self, memo: Memo[R]) -> int:
        """The number of one more function."""
        self._memos.append(memo)
        self._first = np.append(self._first, -1)
        self._read_so_far.extend(rows_of([-1], self._words))
        return len(self._memos) - 1

    def __call__(self, functions: Numbers, rows: Rows) -> Numbers:
        """Per row the entry of its function. Raises Fault for a row whose function raises."""
        entries = np.full(len(rows), -1, np.int64)
        missing = np.arange(len(rows))
        while missing.size > _FEW:
            entries[missing] = self._find(functions[missing], rows[missing])
            missing = missing[entries[missing] < 0]
            if missing.size > _FEW:  # what some of them teach, the others need not learn
                self._learn(missing[self._unlike(functions[missing], rows[missing])], functions, rows, entries)
                missing = missing[entries[missing] < 0]
        self._learn(missing, functions, rows, entries)
        return entries

    def _find(self, functions: Numbers, rows: Rows) -> Numbers:
        self._take_in()
        entries = np.full(len(rows), -1, np.int64)
        tables = self._first[functions]
        looking = places(tables >= 0)
        tables = tables[looking]
        while looking.size > _FEW:
            found = self._known.find(self._read(tables, taken(rows, looking)))
            entries[looking] = found
            self._hits += np.bincount(tables[found >= 0], minlength=len(self._hits))
            tables = self._next[tables]
            on = places((found < 0) & (tables >= 0))
            looking, tables = looking[on], tables[on]
        return entries

    def _unlike(self, functions: Numbers, rows: Rows) -> Numbers:
        """Places of rows that differ in what their functions have read so far: the others are likely to be the same."""
        hashed = self._known.hashed(_marked(taken(self._read_so_far.all, functions) & rows, functions))
        return np.sort(np.unique(hashed, return_index=True)[1])

    def _read(self, tables: Numbers, rows: Rows) -> Rows:
        return _marked(taken(self._masks.all, tables) & rows, tables)

    def _learn(self, missing: Numbers, functions: Numbers, rows: Rows, entries: Numbers) -> None:
        """The entries of some rows, one by one."""
        results: list[R] = []
        try:
            for place, function, key in zip(
                missing.tolist(), functions[missing].tolist(), keys_of(rows[missing]), strict=True
            ):
                memo = self._memos[function]
                entry = memo.find(key)
                if entry < 0:
                    self._look()
                    try:
                        result, mask = memo.run(key)
                    except CORE_FAULTS as fault:
                        raise LookupFault(place, fault) from fault
                    entry = self._entries
                    memo.remember(key, mask, entry)
                    self._entries += 1
                    self._since.append((self._table(function, mask), key))
                    results.append(result)
                entries[place] = entry
        finally:
            if results:
                self._store(results)

    def _table(self, function: int, mask: int) -> int:
        table = self._tables.get((function, mask))
        if table is None:
            table = self._tables[function, mask] = self._masks.size
            self._masks.extend(rows_of([mask], self._words))
            self._next, self._hits = np.append(self._next, -1), np.append(self._hits, 0)
            self._owner.append(function)
            chain = self._chains.setdefault(function, [])
            before = self._read_so_far.all[function] if chain else np.uint64(0)
            self._read_so_far.all[function] = self._masks.all[table] | before
            chain.append(table)
        return table

    def _take_in(self) -> None:
        """What was learned since, and the tables of each function in the order in which they are looked into."""
        if not self._since:
            return
        tables = np.array([table for table, _ in self._since])
        self._known.append(self._read(tables, rows_of([key for _, key in self._since], self._words)))
        self._since.clear()
        for function in {self._owner[table] for table in np.unique(tables).tolist()}:
            chain = self._chains[function]
            chain.sort(key=lambda table: -int(self._hits[table]))
            self._first[function] = chain[0]
            self._next[chain] = [*chain[1:], -1]


def _marked(rows: Rows, numbers: Numbers) -> Rows:
    rows[:, -1] |= numbers.astype(np.uint64) << _TABLE
    return rows
