"""A persistent sorted mapping, as plain nested tuples; the state keeps its counts per class in it.

A mapping is a tuple of pages. A page is a tuple of at most `PAGE_ENTRIES` pairs (key, value), sorted by key. An update
copies one page and the tuple of pages, so it costs little, and older values stay as they were. Mappings of at most
`PAGE_ENTRIES` keys have one page, so equal contents are equal tuples.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar, cast

PAGE_ENTRIES = 64

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")

Pages = tuple[tuple[tuple[K, V], ...], ...]


def _first_key(page: tuple[tuple[Any, Any], ...]) -> Any:
    return page[0][0]


def _locate(pages: Pages[K, V], key: K) -> tuple[int, int, bool]:
    """Where `key` is or belongs: the page, the position in it, and whether it is there."""
    number = 0
    if len(pages) > 1:
        number = max(bisect_right(pages, cast(Any, key), key=_first_key) - 1, 0)
    page = pages[number]
    position = bisect_left(cast(Any, page), (key,))
    return number, position, position < len(page) and page[position][0] == key


def get(pages: Pages[K, V], key: K, default: D) -> V | D:
    """The value of `key`, or `default`."""
    if not pages:
        return default
    number, position, found = _locate(pages, key)
    return pages[number][position][1] if found else default


def put(pages: Pages[K, V], key: K, value: V) -> Pages[K, V]:
    """`pages` with `key` set to `value`."""
    if not pages:
        return (((key, value),),)
    number, position, found = _locate(pages, key)
    return _set(pages, number, position, found, (key, value))


def _set(pages: Pages[K, V], number: int, position: int, found: bool, entry: tuple[K, V]) -> Pages[K, V]:
    page = pages[number]
    new = (*page[:position], entry, *page[position + found :])
    if len(new) <= PAGE_ENTRIES:
        return (new,) if len(pages) == 1 else (*pages[:number], new, *pages[number + 1 :])
    # Keys mostly arrive in ascending order: a page that overflows at its end stays full.
    cut = PAGE_ENTRIES if position == PAGE_ENTRIES else PAGE_ENTRIES // 2
    return (*pages[:number], new[:cut], new[cut:], *pages[number + 1 :])


def drop(pages: Pages[K, V], key: K) -> Pages[K, V]:
    """`pages` without `key`, which must be there (KeyError)."""
    if not pages:
        raise KeyError(key)
    number, position, found = _locate(pages, key)
    if not found:
        raise KeyError(key)
    return _unset(pages, number, position)


def _unset(pages: Pages[K, V], number: int, position: int) -> Pages[K, V]:
    page = pages[number]
    new = page[:position] + page[position + 1 :]
    before, after = pages[:number], pages[number + 1 :]
    # Neighbours that fit one page are joined, as far as it goes: what fits one page is in one page.
    while after and len(new) + len(after[0]) <= PAGE_ENTRIES:
        new, after = new + after[0], after[1:]
    while before and len(before[-1]) + len(new) <= PAGE_ENTRIES:
        new, before = before[-1] + new, before[:-1]
    return (*before, new, *after) if new else before + after


def add(pages: Pages[K, int], key: K, groups: int) -> Pages[K, int]:
    """`pages` with `groups` (which may be negative) added to the count of `key`; a count of 0 is not kept.

    Raises ValueError where the count would fall below 0.
    """
    if len(pages) == 1:  # by far the most frequent: one page that holds the key, and keeps it
        page = pages[0]
        position = bisect_left(cast(Any, page), (key,))
        if position < len(page) and page[position][0] == key:
            old, count = page[position]
            if count + groups > 0:
                return ((*page[:position], (old, count + groups), *page[position + 1 :]),)
    if not pages:
        number, position, found, count = 0, 0, False, groups
    else:
        number, position, found = _locate(pages, key)
        count = pages[number][position][1] + groups if found else groups
    if count > 0:
        return _set(pages, number, position, found, (key, count)) if pages else (((key, count),),)
    if count < 0:
        raise ValueError(f"{key} would count {count} groups")
    return _unset(pages, number, position) if found else pages


def items(pages: Pages[K, V]) -> Iterator[tuple[K, V]]:
    """All pairs, in order of their keys."""
    for page in pages:
        yield from page


def items_from(pages: Pages[K, V], key: K) -> Iterator[tuple[K, V]]:
    """The pairs from the first key that is at least `key`, in order."""
    if not pages:
        return
    number, position, _ = _locate(pages, key)
    yield from pages[number][position:]
    for page in pages[number + 1 :]:
        yield from page


def first(pages: Pages[K, V]) -> tuple[K, V] | None:
    """The pair with the smallest key, or None."""
    return pages[0][0] if pages else None


def total(pages: Pages[K, int]) -> int:
    """The sum of all counts."""
    return sum(count for page in pages for _, count in page)


def of(pairs: Iterable[tuple[K, int]]) -> Pages[K, int]:
    """Counts from pairs, in any order; pairs with the same key add up."""
    pages: Pages[K, int] = ()
    for key, count in pairs:
        pages = add(pages, key, count)
    return pages
