"""The outcome of a validation, apart from the code that needs transformers: the controller reads it too."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What the policy is worth on some prompts. `start_weight` and `end_weight` differ when a sync fell in between."""

    accuracy: float
    """Share of rollouts that are correct; one without a verdict is not."""
    mean_reward: float
    """One without a verdict has reward 0."""
    prompts: int
    rollouts: int
    start_weight: int
    end_weight: int
    without_verdict: int = 0
    """Rollouts whose verifier failed."""
    first_failure: str | None = None
    """Why one of them has no verdict, with file and line of its data."""
    notices: tuple[str, ...] = ()
    """What reward workers had to say."""
