"""The environment interface. Position and seed are all the state there is.

Item i of a task is a pure function of the configuration and i: nothing is drawn in passing, so a run resumes from a
number and a prompt can be asked for twice, on any machine.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from runtime.tasks.judges import Judge, Verdict


@dataclass(frozen=True, slots=True)
class VerdictFault:
    """Why there is no verdict: what happened, as in "raised ValueError", and what to do about it."""

    happened: str
    remedy: str


class Task(ABC):
    """Prompts, one split of them (training or held out). Nothing here runs a verifier, or imports users' code.

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

    def respond(self, index: int, turns: Sequence[str]) -> str | None:
        """What the environment says after the last of `turns`; None ends the rollout.

        One that does not fit into `generation.max_prompt_tokens` with all before it ends the rollout as truncated.
        """
        return None

    def reference(self, index: int) -> str | None:
        """A completion that verifies, for supervised warm-up; None where the task knows none."""
        return None


class OwnTask(Task):
    """A task whose verdicts are quick and the package's own: they are made where they are asked for."""

    @abstractmethod
    def verify(self, index: int, turns: Sequence[str], sibling: int) -> Verdict:
        """Rate a rollout of item `index`.

        sibling: which rollout of its group this is; it must not change the verdict.
        """


class JudgedTask(Task):
    """A task whose verdicts are made by users' or other packages' code, in processes that can be killed."""

    @property
    @abstractmethod
    def judge(self) -> Judge:
        """What rates."""

    @property
    @abstractmethod
    def verdict_timeout_s(self) -> float:
        """Deadline of a verdict, in seconds."""

    @abstractmethod
    def case(self, index: int, turns: Sequence[str]) -> tuple[Any, ...]:
        """What the judge is given to rate a rollout of item `index`; it is pickled."""

    @abstractmethod
    def blame(self, index: int, turns: Sequence[str], fault: VerdictFault) -> str:
        """Why a rollout of item `index` has no verdict, with the item, the completion and the remedy."""


Rated = tuple[float, bool] | str
"""Reward and correctness of a rollout, or why it has no verdict."""


@dataclass(frozen=True, slots=True)
class Scored:
    """Rated groups."""

    groups: list[tuple[Rated, ...]]
    """Per group, in order, its siblings in order."""
    notice: str | None
    """What the verifier prints; a worker tells it once."""
