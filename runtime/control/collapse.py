"""Tells the user once that nothing is left to learn: a policy that collapsed, or data that it has solved.

Seen from receipts, since under dynamic sampling groups without variance are filtered and no step closes any more.
"""

from collections import deque
from pathlib import Path

from runtime.groups import GroupReceipt
from runtime.wording import counted

FEWEST_GROUPS, STEPS = 32, 3
"""It is told after so many steps' worth of groups, and at least this many groups, in a row."""


class CollapseWatch:
    """Looks at the last groups of a run."""

    def __init__(self, num_prompts_per_step: int, run: Path) -> None:
        """run: its directory, which the message names."""
        most = max(FEWEST_GROUPS, STEPS * num_prompts_per_step)
        self._recent: deque[GroupReceipt] = deque(maxlen=most)
        self._run = run
        self._told = False
        """Since a time in which half of the groups could be learned from."""

    def receive(self, receipt: GroupReceipt) -> str | None:
        """A notice if this group completes the evidence, and the like has not been told."""
        self._recent.append(receipt)
        if len(self._recent) < (self._recent.maxlen or 0):
            return None
        learnable = sum(not recent.zero_variance for recent in self._recent)
        if 2 * learnable >= len(self._recent):
            self._told = False
        if learnable or self._told:
            return None
        self._told = True
        return f"{self._what()}; look at what the policy says: evenstep samples {self._run}. {self._remedy()}"

    def _what(self) -> str:
        last = f"the last {counted(len(self._recent), 'group')}"
        if self._solved == len(self._recent):
            return f"nothing is left to learn: every completion of {last} is right"
        if self._mostly_solved:
            return (
                f"little is left to learn: of {last}, {self._solved} have only right completions, and in each of the "
                "others all rewards are equal"
            )
        rewards = {reward for recent in self._recent for reward in recent.rewards}
        worth = f", and each reward is {rewards.pop():g}" if len(rewards) == 1 else ""
        if all(tokens <= 1 for recent in self._recent for tokens in recent.completion_tokens):
            return f"the policy has collapsed: every completion of {last} is empty{worth}"
        if all(recent.distinct == 1 for recent in self._recent):
            return f"the policy has collapsed: in each of {last} all completions are the same{worth}"
        return f"nothing can be learned from {last}: in each of them all rewards are equal{worth}"

    def _remedy(self) -> str:
        if self._mostly_solved:
            return "Give harder data, or end the run"
        return (
            "If it spoke sense before, resume from an earlier checkpoint with a lower optimizer.lr; if it never did, "
            "check the verifier with evenstep try, and give easier prompts or more grpo.num_generations_per_prompt"
        )

    @property
    def _solved(self) -> int:
        """Groups whose completions are all right."""
        return sum(all(recent.correct) for recent in self._recent)

    @property
    def _mostly_solved(self) -> bool:
        """A policy that is right about most prompts and sure about the others has not collapsed."""
        return 2 * self._solved >= len(self._recent)
