"""The environment interface. Position and seed are all the state there is.

Item i of a task is a pure function of the configuration and i: nothing is drawn in passing, so a run resumes from a
number and a prompt can be asked for twice, on any machine.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a rollout is worth. Accuracy counts `correct`; training uses `reward`, in [0, 1]."""

    reward: float
    correct: bool


class Task(ABC):
    """Prompts and their verifier, one split of them (training or held out).

    `turns` is always what the policy said, one text a turn, without special tokens; most tasks have one turn.
    """

    @property
    @abstractmethod
    def num_prompts(self) -> int:
        """How many items there are; indices below are in [0, num_prompts)."""

    @property
    def is_listed(self) -> bool:
        """All items are there from the start, as a file's lines are; false where one is drawn when it is asked for."""
        return False

    def where(self, index: int) -> str:
        """Where a person finds item `index`: file and line, where there are any."""
        return f"item {index} ({self.prompt(index)!r:.80})"

    @abstractmethod
    def prompt(self, index: int) -> str:
        """The text that opens item `index`."""

    @abstractmethod
    def verify(self, index: int, turns: Sequence[str], sibling: int) -> Verdict:
        """Rate a rollout of item `index`. It may take long, and runs where that holds up nothing.

        sibling: which rollout of its group this is; it must not change the verdict.
        Raises VerifierFailed, which names the item.
        """

    def respond(self, index: int, turns: Sequence[str]) -> str | None:
        """What the environment says after the last of `turns`; None ends the rollout.

        One that does not fit into `generation.max_prompt_tokens` with all before it ends the rollout as truncated.
        """
        return None

    def reference(self, index: int) -> str | None:
        """A completion that verifies, for supervised warm-up; None where the task knows none."""
        return None
