"""Choose lines in raw bytes, before any is parsed: a question about a few of a million lines then parses few.

A chooser takes a block of whole lines and yields some of them, in order. It may yield too many, never too few.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

HEADER_START = b'{"format":'
_HEAD = re.compile(rb'\{"q":(\d+),"t":([0-9.]+),(?:"w":(-?\d+),)?')

Chooser = Callable[[bytes], Iterator[bytes]]


class Head(NamedTuple):
    """How a record's line begins."""

    seq: int
    monotonic_s: float
    drift_s: float
    """How far the wall clock is ahead of the monotonic clock."""


def head_of(block: bytes, start: int = 0) -> Head | None:
    """The head of the line that begins at `start`; None if it is not a record."""
    found = _HEAD.match(block, start)
    return None if found is None else Head(int(found[1]), float(found[2]), int(found[3] or 0) / 1000)


def last_head(block: bytes) -> Head | None:
    """The head of a block's last line."""
    return head_of(block, block.rfind(b"\n", 0, len(block) - 1) + 1)


def every(block: bytes) -> Iterator[bytes]:
    """All records."""
    for line in block.splitlines(keepends=True):
        if not line.startswith(HEADER_START):
            yield line


def with_text(texts: Sequence[bytes]) -> Chooser:
    """Lines with one of these texts. Much faster than a regular expression."""

    def choose(block: bytes) -> Iterator[bytes]:
        starts = set()
        for text in texts:
            position = block.find(text)
            while position >= 0:
                starts.add(block.rfind(b"\n", 0, position) + 1)
                position = block.find(text, block.index(b"\n", position))
        yield from _lines_at(block, sorted(starts))

    return choose


def with_match(pattern: re.Pattern[bytes], keep: Callable[[re.Match[bytes]], bool] = bool) -> Chooser:
    """Lines with a match of `pattern` for which `keep` is true."""

    def choose(block: bytes) -> Iterator[bytes]:
        position = 0
        while match := pattern.search(block, position):
            position = match.end()
            if keep(match):
                start = block.rfind(b"\n", 0, match.start()) + 1
                position = block.index(b"\n", match.start()) + 1
                yield from _lines_at(block, [start])

    return choose


def both(one: Chooser, other: Chooser) -> Chooser:
    """Lines that either yields."""

    def choose(block: bytes) -> Iterator[bytes]:
        chosen = {*one(block), *other(block)}
        yield from (line for line in every(block) if line in chosen) if chosen else ()

    return choose


def between(first: int, last: int, before: Chooser) -> Chooser:
    """Lines numbered `first` to `last`, and of the lines before them those that `before` yields."""

    def choose(block: bytes) -> Iterator[bytes]:
        ends = last_head(block)
        begins = head_of(block, block.find(b'{"q":'))
        if ends is None or begins is None:
            yield from every(block)
        elif ends.seq < first:
            yield from before(block)
        elif begins.seq <= last:
            for line in every(block):
                head = head_of(line)
                if head is None or first <= head.seq <= last:
                    yield line
                elif head.seq < first:
                    yield from before(line)

    return choose


def since(monotonic_s: float, then: Chooser) -> Chooser:
    """What `then` yields, without blocks that end before a time."""

    def choose(block: bytes) -> Iterator[bytes]:
        ends = last_head(block)
        if ends is None or ends.monotonic_s >= monotonic_s:
            yield from then(block)

    return choose


def _lines_at(block: bytes, starts: Sequence[int]) -> Iterator[bytes]:
    for start in starts:
        if not block.startswith(HEADER_START, start):
            yield block[start : block.index(b"\n", start) + 1]
