"""The outcome of a validation, apart from the code that needs transformers: the controller reads it too."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What the policy is worth on some prompts. `start_weight` and `end_weight` differ when a sync fell in between."""

    accuracy: float
    """Share of rollouts that are correct."""
    mean_reward: float
    prompts: int
    rollouts: int
    start_weight: int
    end_weight: int
