"""A set of rows numbers each row once, whatever their hashes are."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specs.engine.parts import WORDS
from specs.engine.rows import Column, RowSet, keys_of, rows_of

KEYS = st.lists(st.integers(0, (1 << 64 * WORDS) - 1) | st.integers(0, 3), max_size=40)


@given(KEYS)
def test_keys_are_what_their_rows_are(keys):
    assert keys_of(rows_of(keys, WORDS)) == keys


@given(st.lists(KEYS, max_size=4))
def test_every_row_has_one_number_and_every_number_one_row(batches):
    rows, numbers = RowSet(WORDS), {}
    for batch in batches:
        added = rows.add(rows_of(batch, WORDS))
        for key, number in zip(batch, added.numbers.tolist(), strict=True):
            assert numbers.setdefault(key, number) == number
        assert [numbers[batch[place]] for place in added.new] == list(
            range(len(numbers) - len(added.new), len(numbers))
        )

    assert sorted(numbers.values()) == list(range(len(rows)))
    assert keys_of(rows.rows) == sorted(numbers, key=numbers.__getitem__)


@pytest.mark.parametrize("bits", [0, 1, 3])
def test_rows_of_one_hash_are_told_apart(bits, monkeypatch):
    hashed = RowSet.hashed
    monkeypatch.setattr(RowSet, "hashed", lambda rows, given: hashed(rows, given) & np.uint64((1 << bits) - 1))
    keys = list(range(300))
    rows = RowSet(WORDS)

    assert rows.add(rows_of(keys + keys, WORDS)).numbers[:300].tolist() == rows.find(rows_of(keys, WORDS)).tolist()
    assert rows.find(rows_of(range(300, 400), WORDS)).tolist() == [-1] * 100
    assert len(rows) == 300


def test_a_set_finds_its_rows_after_it_has_grown():
    rows = RowSet(WORDS)
    for first in range(0, 200_000, 50_000):
        rows.add(rows_of((key << 100 for key in range(first, first + 50_000)), WORDS))

    assert rows.find(rows_of((key << 100 for key in range(200_001)), WORDS)).tolist() == [*range(200_000), -1]


def test_a_column_keeps_what_it_was_given():
    column = Column(np.empty((0, 2), np.int64))
    for size in (0, 1, 5, 100):
        column.extend(np.full((size, 2), size))

    assert column.all.tolist() == [[1, 1]] + [[5, 5]] * 5 + [[100, 100]] * 100
