"""A priority queue by dispatch number, for things that are added nearly in that order.

Taking from one heap of a million entries walks through cold memory. So there is a heap for every block of dispatch
numbers, of which only the first and the newest are in use at any time, and a heap of the blocks.
"""

from collections.abc import Iterator
from heapq import heappop, heappush
from operator import itemgetter
from typing import Generic, TypeVar

T = TypeVar("T")

BLOCK_BITS = 8
"""A block has 256 dispatch numbers."""


class DispatchOrder(Generic[T]):
    """A collection in order of dispatch numbers, which are unique."""

    __slots__ = ("_blocks", "_numbers")

    def __init__(self) -> None:
        self._blocks: dict[int, list[tuple[int, T]]] = {}
        """Per block its heap; none is empty."""
        self._numbers: list[int] = []
        """A heap of the blocks' numbers."""

    def add(self, dispatch: int, thing: T) -> None:
        """Put one in."""
        number = dispatch >> BLOCK_BITS
        block = self._blocks.get(number)
        if block is None:
            self._blocks[number] = [(dispatch, thing)]
            heappush(self._numbers, number)
        else:
            heappush(block, (dispatch, thing))

    def take(self, most: int) -> list[T]:
        """Take out the first `most` of them, or all where there are fewer."""
        taken: list[T] = []
        blocks, numbers = self._blocks, self._numbers
        while numbers and len(taken) < most:
            block = blocks[numbers[0]]
            taken += [heappop(block)[1] for _ in range(min(len(block), most - len(taken)))]
            if not block:
                del blocks[heappop(numbers)]
        return taken

    def __len__(self) -> int:
        return sum(len(block) for block in self._blocks.values())

    def __bool__(self) -> bool:
        return bool(self._numbers)

    def __iter__(self) -> Iterator[T]:
        """All of them, in order."""
        for number in sorted(self._numbers):
            for _, thing in sorted(self._blocks[number], key=itemgetter(0)):
                yield thing
