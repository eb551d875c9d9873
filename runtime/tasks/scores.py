"""What a reward worker answers."""

from __future__ import annotations

from dataclasses import dataclass

Rated = tuple[float, bool] | str
"""Reward and correctness of a rollout, or why it has no verdict."""


@dataclass(frozen=True, slots=True)
class Scored:
    """Rated groups."""

    groups: list[tuple[Rated, ...]]
    """Per group, in order, its siblings in order."""
    notice: str | None
    """What the verifier prints; a worker tells it once."""
