"""What an exploration keeps: how each state was first reached, and, for `eventually`, every transition.

States are numbered in the order in which they are found, breadth first, so the number of a state is its rank by
distance. Everything is an array of integers: 8 bytes a state, and 9 a transition where transitions are kept.
"""

from __future__ import annotations

from array import array

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
