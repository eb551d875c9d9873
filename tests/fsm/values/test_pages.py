"""`fsm.values.pages` against a plain dict: the persistent counts that the core's state is made of."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsm.state import GroupClass
from fsm.values import pages
from fsm.values.pages import PAGE_ENTRIES
from tests.fsm.helpers import examples

KEYS = st.integers(0, 400)
PUTS = st.lists(st.tuples(KEYS, st.integers(1, 9)), max_size=300)


def built(pairs: list[tuple[int, int]]) -> pages.Pages[int, int]:
    value: pages.Pages[int, int] = ()
    for key, count in pairs:
        value = pages.put(value, key, count)
    return value


def well_formed(value: Any) -> bool:
    """Pages are neither empty nor over-full, and their keys ascend within a page and from one to the next."""
    keys = [key for page in value for key, _ in page]
    sizes_hold = all(1 <= len(page) <= PAGE_ENTRIES for page in value)
    return sizes_hold and keys == sorted(set(keys))


@settings(max_examples=examples(100), deadline=None)
@given(PUTS)
def test_what_was_put_is_found_and_listed_in_order(pairs: list[tuple[int, int]]) -> None:
    value, plain = built(pairs), dict(pairs)
    assert list(pages.items(value)) == sorted(plain.items())
    assert all(pages.get(value, key, None) == plain.get(key) for key in range(-1, 402))
    assert pages.total(value) == sum(plain.values())
    assert pages.first(value) == (min(plain.items()) if plain else None)
    assert well_formed(value)


@settings(max_examples=examples(100), deadline=None)
@given(PUTS, st.integers(-1, 401))
def test_items_from_a_key_are_those_at_or_above_it(pairs: list[tuple[int, int]], start: int) -> None:
    at_or_above = [pair for pair in sorted(dict(pairs).items()) if pair[0] >= start]
    assert list(pages.items_from(built(pairs), start)) == at_or_above


@settings(max_examples=examples(100), deadline=None)
@given(PUTS, st.randoms(use_true_random=False))
def test_keys_are_dropped_in_any_order_until_nothing_is_left(pairs: list[tuple[int, int]], random: Any) -> None:
    value, plain = built(pairs), dict(pairs)
    order = sorted(plain)
    random.shuffle(order)
    for key in order:
        value = pages.drop(value, key)
        del plain[key]
        assert pages.get(value, key, None) is None
        assert well_formed(value)
        assert list(pages.items(value)) == sorted(plain.items())
    assert value == ()


CHANGES = st.lists(st.tuples(st.integers(0, 150), st.integers(-3, 3)), max_size=400)


@settings(max_examples=examples(100), deadline=None)
@given(CHANGES)
def test_adding_keeps_counts_as_a_dict_does_and_drops_what_comes_to_zero(changes: list[tuple[int, int]]) -> None:
    value: pages.Pages[int, int] = ()
    plain: dict[int, int] = {}
    for key, change in changes:
        wanted = plain.get(key, 0) + change
        if wanted < 0:
            with pytest.raises(ValueError, match="would count"):
                pages.add(value, key, change)
            continue
        value = pages.add(value, key, change)
        plain[key] = wanted
        if not wanted:
            del plain[key]
        assert well_formed(value)
    assert list(pages.items(value)) == sorted(plain.items())


@settings(max_examples=examples(50), deadline=None)
@given(CHANGES)
def test_an_update_leaves_every_earlier_value_as_it_was(changes: list[tuple[int, int]]) -> None:
    value: pages.Pages[int, int] = ()
    history: list[tuple[pages.Pages[int, int], list[tuple[int, int]]]] = []
    for key, change in changes:
        history.append((value, list(pages.items(value))))
        enough = pages.get(value, key, 0) + change >= 0
        value = pages.add(value, key, change) if enough else pages.put(value, key, 1)
    assert all(list(pages.items(old)) == listed for old, listed in history)


@settings(max_examples=examples(50), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 5)), max_size=60), st.randoms(use_true_random=False))
def test_equal_contents_of_one_page_are_equal_values_in_whatever_order_they_came(
    pairs: list[tuple[int, int]], random: Any
) -> None:
    shuffled = list(pairs)
    random.shuffle(shuffled)
    assert pages.of(pairs) == pages.of(shuffled)
    assert hash(pages.of(pairs)) == hash(pages.of(shuffled))


def test_a_key_that_is_not_there_cannot_be_dropped() -> None:
    for value in ((), pages.of([(1, 1), (3, 1)])):
        with pytest.raises(KeyError):
            pages.drop(value, 2)


def test_ten_thousand_classes_are_kept_in_full_pages_and_found_again() -> None:
    value: pages.Pages[GroupClass, int] = ()
    for number in range(10_000):
        value = pages.put(value, GroupClass(target_step=number % 100, start_weight=number // 100), number + 1)
    assert well_formed(value)
    assert len(value) <= 2 * 10_000 / PAGE_ENTRIES
    listed = list(pages.items(value))
    assert len(listed) == 10_000
    assert listed == sorted(listed)
    assert pages.get(value, GroupClass(target_step=7, start_weight=42), 0) == 4208
    ascending = pages.of((key, 1) for key in range(10_000))
    assert len(ascending) == -(-10_000 // PAGE_ENTRIES)
    for key in range(0, 10_000, 2):
        ascending = pages.drop(ascending, key)
    assert [key for key, _ in pages.items(ascending)] == list(range(1, 10_000, 2))
    assert well_formed(ascending)
