"""Keys as rows of an array: many at once, each numbered once.

A row is a key's words of 64 bits, the lowest first (`specs.engine.parts`); an array of n rows has the shape (n, words).
Whatever is looked up here is compared word by word: a hash says where to look, never what is there.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specs.engine.parts import WORD

Rows = NDArray[np.uint64]
Numbers = NDArray[np.int64]

_HALF = np.uint64(WORD // 2)
_SEED = 20260101
"""Of the multipliers of hashes: any will do, and the same one makes runs alike."""
_SCATTER = np.uint64(0xFF51AFD7ED558CCD)
_FEWEST_SLOTS = 1_024
_AT_ONCE = 65_536
"""Rows of a set that are hashed at a time, since all at once would take as much memory again."""
_SLOTS_A_ROW = 4
"""At least so many, so that most rows are found at once."""


def rows_of(keys: Iterable[int], words: int) -> Rows:
    """The rows of keys; of a negative one its lowest bits."""
    bits = (1 << words * WORD) - 1
    data = b"".join((key & bits).to_bytes(words * WORD // 8, "little") for key in keys)
    return np.frombuffer(data, "<u8").reshape(-1, words)


def keys_of(rows: Rows) -> list[int]:
    """The keys of rows."""
    data, width = rows.tobytes(), rows.shape[1] * WORD // 8
    return [int.from_bytes(data[first : first + width], "little") for first in range(0, len(data), width)]


def taken(rows: NDArray[Any], places: Numbers) -> NDArray[Any]:
    """Those rows, which must be there; faster than an index, since that looks whether they are."""
    return np.take(rows, places, axis=0, mode="clip")


def places(holds: NDArray[np.bool_]) -> Numbers:
    """Where something holds."""
    return np.flatnonzero(holds)


class Column:
    """An array that grows at its end."""

    __slots__ = ("_data", "size")

    def __init__(self, like: NDArray[Any]) -> None:
        """An empty one, of the type and of the width of `like`, which has one dimension more than an entry."""
        self._data = np.empty((0, *like.shape[1:]), like.dtype)
        self.size = 0

    @property
    def all(self) -> NDArray[Any]:
        """Its entries."""
        return self._data[: self.size]

    def extend(self, entries: NDArray[Any]) -> None:
        """More entries."""
        size = self.size + len(entries)
        if size > len(self._data):
            room = np.empty((max(size, len(self._data) * 3 // 2), *self._data.shape[1:]), self._data.dtype)
            room[: self.size] = self.all
            self._data = room
        self._data[self.size : size] = entries
        self.size = size


class Added(NamedTuple):
    """The places of rows that were given to a set, and which of them are new."""

    numbers: Numbers
    """The number of each."""
    new: Numbers
    """The places of those that the set did not have, each once: they got the next numbers in this order."""


class RowSet:
    """A set of rows, numbered from 0 in the order in which they came: an open hash table with linear probing."""

    def __init__(self, words: int) -> None:
        self._rows = Column(np.empty((0, words), np.uint64))
        self._slots = np.zeros(_FEWEST_SLOTS, np.int32)
        """A row's number and 1 more; 0 where there is none."""
        drawn = np.random.default_rng(_SEED).integers(0, 1 << WORD, (2, words), np.uint64)
        self._low, self._high = drawn | np.uint64(1)

    def __len__(self) -> int:
        return self._rows.size

    @property
    def rows(self) -> Rows:
        """All rows, by number."""
        return self._rows.all

    def find(self, rows: Rows) -> Numbers:
        """The number of each row; -1 where it is not there."""
        return self._find(rows, self.hashed(rows))

    def add(self, rows: Rows) -> Added:
        """The number of each row, which gets the next one where it is not there."""
        hashed = self.hashed(rows)
        numbers = self._find(rows, hashed)
        absent = places(numbers < 0)
        new = [absent[:0]]
        while absent.size:
            first = np.unique(hashed[absent], return_index=True)[1]
            fresh = absent[np.sort(first)]
            self._insert(rows[fresh], hashed[fresh])
            new.append(fresh)
            numbers[absent] = self._find(rows[absent], hashed[absent])
            absent = absent[numbers[absent] < 0]  # another row of the same hash
        return Added(numbers, np.concatenate(new))

    def append(self, rows: Rows) -> None:
        """Rows that are not there, each once: they get the next numbers in this order."""
        self._insert(rows, self.hashed(rows))

    def hashed(self, rows: Rows) -> Rows:
        """A number of 64 bits for each row."""
        hashed: Rows = rows @ self._low
        hashed += (rows >> _HALF) @ self._high
        hashed ^= hashed >> _HALF
        hashed *= _SCATTER
        return hashed

    def _find(self, rows: Rows, hashed: Rows) -> Numbers:
        if not len(self):
            return np.full(len(rows), -1, np.int64)
        at = self._at(hashed)
        numbers, other = self._probe(at, rows)
        looking = places(other)
        at = at[looking]
        while looking.size:
            at = self._next(at)
            numbers[looking], other = self._probe(at, taken(rows, looking))
            looking, at = looking[other], at[other]
        return numbers

    def _probe(self, at: Numbers, rows: Rows) -> tuple[Numbers, NDArray[np.bool_]]:
        """The numbers of the rows that are there, -1 of others, and whether another row is."""
        numbers = taken(self._slots, at).astype(np.int64) - 1
        other = numbers >= 0
        same = _same(taken(self.rows, numbers), rows)  # of an empty slot some row is compared, in vain
        same &= other
        other ^= same
        return np.where(same, numbers, -1), other

    def _insert(self, rows: Rows, hashed: Rows) -> None:
        """Rows that are not there, each once."""
        first = len(self)
        self._rows.extend(rows)
        if len(self) * _SLOTS_A_ROW <= len(self._slots):
            self._fill(first, hashed)
            return
        self._slots = np.zeros(1 << (len(self) * _SLOTS_A_ROW).bit_length(), np.int32)
        for first in range(0, len(self), _AT_ONCE):
            self._fill(first, self.hashed(self.rows[first : first + _AT_ONCE]))

    def _fill(self, first: int, hashed: Rows) -> None:
        filled = np.arange(first + 1, first + 1 + len(hashed), dtype=np.int32)
        at = self._at(hashed)
        while filled.size:
            empty = places(taken(self._slots, at) == 0)
            self._slots[at[empty]] = filled[empty]
            left = places(taken(self._slots, at) != filled)  # taken, by one that was there or by another of these
            at, filled = self._next(at[left]), filled[left]

    def _at(self, hashed: Rows) -> Numbers:
        """Where to look first: the highest bits, which all of a row's bits have a part in."""
        bits = len(self._slots).bit_length() - 1
        return (hashed >> np.uint64(WORD - bits)).astype(np.int64)

    def _next(self, at: Numbers) -> Numbers:
        return (at + 1) & (len(self._slots) - 1)


def _same(rows: Rows, others: Rows) -> NDArray[np.bool_]:
    """Per row whether all words are the same."""
    words = (rows == others).view(np.uint64) == _ALL_SAME  # words come in eights: one byte each
    same: NDArray[np.bool_] = words.all(axis=1) if words.shape[1] > 1 else words[:, 0]
    return same


_ALL_SAME = np.uint64(0x0101010101010101)
