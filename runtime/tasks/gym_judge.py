"""The scorer of a reasoning-gym dataset, in a process of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from runtime.tasks.judges import Rate, Verdict


@dataclass(frozen=True, slots=True)
class GymJudge:
    """A dataset's own scorer, and what its scores mean as rewards."""

    dataset: str
    options: dict[str, Any]
    seed: int
    size: int
    correct_at: float
    reward: Literal["binary", "score"]
    junk_at_most: float

    @property
    def name(self) -> str:
        """With the dataset's name."""
        return f"the scorer of reasoning_gym {self.dataset!r}"

    def open(self) -> Rate:
        """Make the dataset."""
        import reasoning_gym

        dataset = reasoning_gym.create_dataset(self.dataset, size=self.size, seed=self.seed, **self.options)

        def rate(answer: str | None, entry: dict[str, Any]) -> Verdict:
            """None for a completion without an answer."""
            if answer is None:
                return Verdict(reward=0.0, correct=False)
            score = float(dataset.score_answer(answer=answer, entry=entry))
            correct = score >= self.correct_at
            if self.reward == "binary":
                return Verdict(reward=float(correct), correct=correct)
            return Verdict(reward=0.0 if score <= self.junk_at_most else min(score, 1.0), correct=correct)

        return rate
