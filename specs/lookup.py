"""Many functions looked up for many keys at once.

A `Lookup` holds what memos (`specs.memo`) have learned in one table of rows: the function and what it read, in the bits
that it read. A key is looked up under one after the other of the sets of parts that its function has read so far; what
is found under none of them is learned, key by key, by running the function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

import numpy as np

from specs.memo import Memo
from specs.model import CORE_FAULTS
from specs.parts import CHECKPOINT, WORD, WORDS
from specs.rows import Column, Numbers, Rows, RowSet, key_of, places, rows_of, taken

R = TypeVar("R")

_TABLE = np.uint64(CHECKPOINT % WORD)
"""Where in a row's last word the number of its table stands: no function reads what stands there in a key."""


_LOOK_EVERY = 64
"""Functions that are run between two looks."""


class Fault(Exception):
    """A function of the model raised something: what, and for which of the rows that were looked up."""

    def __init__(self, place: int, fault: Exception) -> None:
        super().__init__(str(fault))
        self.place, self.fault = place, fault


class Lookup(Generic[R]):
    """The results of many functions of a key, by function and by what it read: each is an entry with a number."""

    def __init__(self, store: Callable[[list[R]], None], look: Callable[[], None], words: int = WORDS) -> None:
        """`store` is given the results of new entries, in the order of their numbers. `look` is called now and then
        while there is much to learn, and may raise."""
        self._store, self._look, self._words = store, look, words
        self._memos: list[Memo[R]] = []
        self._known = RowSet(words)
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
        """Per row the entry of its function. Raises Fault for the first row whose function raises."""
        entries = self._find(functions, rows)
        missing = places(entries < 0)
        while missing.size:  # what some of them teach, the others need not learn
            self._learn(missing[self._unlike(functions[missing], rows[missing])], functions, rows)
            entries[missing] = self._find(functions[missing], rows[missing])
            missing = missing[entries[missing] < 0]
        return entries

    def _find(self, functions: Numbers, rows: Rows) -> Numbers:
        entries = np.full(len(rows), -1, np.int64)
        tables = self._first[functions]
        looking = places(tables >= 0)
        tables = tables[looking]
        while looking.size:
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

    def _learn(self, missing: Numbers, functions: Numbers, rows: Rows) -> None:
        tables: list[int] = []
        keys: list[int] = []
        results: list[R] = []
        touched: set[int] = set()
        try:
            for place in missing.tolist():
                if len(keys) % _LOOK_EVERY == 0:
                    self._look()
                function, key = int(functions[place]), key_of(rows[place])
                memo = self._memos[function]
                if memo.known(key) is None:
                    try:
                        result, mask = memo.learn(key)
                    except CORE_FAULTS as fault:
                        raise Fault(place, fault) from fault
                    tables.append(self._table(function, mask))
                    touched.add(function)
                    keys.append(key)
                    results.append(result)
        finally:
            if keys:
                self._known.add(self._read(np.array(tables), rows_of(keys, self._words)))
                self._store(results)
                self._chain(touched)

    def _table(self, function: int, mask: int) -> int:
        table = self._tables.get((function, mask))
        if table is None:
            table = self._tables[function, mask] = self._masks.size
            self._masks.extend(rows_of([mask], self._words))
            self._next, self._hits = np.append(self._next, -1), np.append(self._hits, 0)
            before = self._chains.setdefault(function, [])
            self._read_so_far.all[function] = self._masks.all[table] | (
                self._read_so_far.all[function] if before else 0
            )
            before.append(table)
        return table

    def _chain(self, functions: set[int]) -> None:
        """Put the tables of these functions in the order in which they are looked into."""
        for function in functions:
            chain = sorted(self._chains[function], key=lambda table: -int(self._hits[table]))
            self._first[function] = chain[0]
            self._next[chain] = [*chain[1:], -1]


def _marked(rows: Rows, numbers: Numbers) -> Rows:
    rows[:, -1] |= numbers.astype(np.uint64) << _TABLE
    return rows


@contextmanager
def at(places: Numbers) -> Iterator[None]:
    """Faults are of these rows."""
    try:
        yield
    except Fault as fault:
        raise Fault(int(places[fault.place]), fault.fault) from fault.fault
