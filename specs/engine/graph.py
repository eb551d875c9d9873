"""What an exploration keeps: how each state was first reached, and, for `eventually`, every transition.

States are numbered in the order in which they are found, breadth first, so the number of a state is its rank by
distance. Everything is an array of integers: 8 bytes a state, and 9 a transition where transitions are kept.
"""

from array import array

import numpy as np
from numpy.typing import NDArray

MOST_EVENTUALLY = 8
"""A transition has one byte for the `eventually` properties that it reaches."""


class Graph:
    """States and transitions by number."""

    def __init__(self) -> None:
        self.parents = array("I", [0])
        """Per state the state that it was first reached from; the initial state's is itself."""
        self.by = array("I", [0])
        """Per state the answer that led to it."""
        self.offsets = array("Q")
        """Per state, in order, where its transitions start."""
        self.targets = array("I")
        self.answers = array("I")
        """Per transition its answer."""
        self.reached = bytearray()
        """Per transition the `eventually` properties that it reaches, one bit each."""
        self.over = bytearray()
        """Per state 1 where the run is over."""

    def found(self, parents: NDArray[np.int64], by: NDArray[np.int64]) -> None:
        """More states: from which each was first reached, and by which answer."""
        self.parents.frombytes(parents.astype(np.uint32).tobytes())
        self.by.frombytes(by.astype(np.uint32).tobytes())

    def keep(
        self,
        over: NDArray[np.bool_],
        counts: NDArray[np.int64],
        targets: NDArray[np.int64],
        answers: NDArray[np.int64],
        reached: NDArray[np.uint8],
    ) -> None:
        """The transitions of the next states in order: per state whether the run is over and how many it has; per
        transition where it leads, its answer, and the `eventually` properties that it reaches."""
        starts = len(self.targets) + counts.cumsum() - counts
        self.over += over.tobytes()
        self.offsets.frombytes(starts.astype(np.uint64).tobytes())
        self.targets.frombytes(targets.astype(np.uint32).tobytes())
        self.answers.frombytes(answers.astype(np.uint32).tobytes())
        self.reached += reached.tobytes()

    @property
    def states(self) -> int:
        """How many states were found."""
        return len(self.parents)

    def transitions_of(self, state: int) -> range:
        """The numbers of a state's transitions."""
        last = self.offsets[state + 1] if state + 1 < len(self.offsets) else len(self.targets)
        return range(self.offsets[state], last)

    def path(self, state: int) -> list[int]:
        """The answers that lead from the initial state to `state`, one of the shortest ways."""
        answers: list[int] = []
        while state:
            answers.append(self.by[state])
            state = self.parents[state]
        return answers[::-1]
