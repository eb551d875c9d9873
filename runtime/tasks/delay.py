"""A verifier that takes its time, for benchmarks: a slow tool with a long tail, without the tool."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence

from runtime.tasks.base import Task, Verdict
from runtime.tasks.config import DelayConfig
from runtime.tasks.seeds import derive_seed


class DelayedTask(Task):
    """Another task, whose verdicts come `delay_s` late. The verdicts are the same."""

    def __init__(self, task: Task, delay: DelayConfig, seed: int):
        self._inner = task
        self._delay = delay
        self._seed = seed

    @property
    def num_prompts(self) -> int:
        """As of the task inside, like all that follows."""
        return self._inner.num_prompts

    @property
    def is_listed(self) -> bool:
        """Whether the items are there from the start."""
        return self._inner.is_listed

    def where(self, index: int) -> str:
        """Where a person finds the item."""
        return self._inner.where(index)

    def prompt(self, index: int) -> str:
        """The item's opening text."""
        return self._inner.prompt(index)

    def reference(self, index: int) -> str | None:
        """A completion that verifies."""
        return self._inner.reference(index)

    def respond(self, index: int, turns: Sequence[str]) -> str | None:
        """The environment's turn, at once."""
        return self._inner.respond(index, turns)

    def delay_s(self, index: int, sibling: int) -> float:
        """How long the verdict on this rollout takes, in seconds: the same in every run with this seed."""
        delay = self._delay
        deviate = random.Random(derive_seed(self._seed, "delay", index, sibling)).gauss()
        return min(delay.max_s, max(delay.min_s, delay.median_s * math.exp(delay.sigma * deviate)))

    def verify(self, index: int, turns: Sequence[str], sibling: int) -> Verdict:
        """Sleep, then rate. Sleeping lets go of the interpreter, as waiting for a real tool would."""
        time.sleep(self.delay_s(index, sibling))
        return self._inner.verify(index, turns, sibling)
