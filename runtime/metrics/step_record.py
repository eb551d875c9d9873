"""The metrics of one closed step, as metrics.jsonl has them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One closed step. None means unknown, such as a mean over no group.

    Rates and shares are over `wall_s`: from the end of the last step's weight sync to the end of this step's.
    """

    step: int
    time_s: float
    """Time of the end of the step's sync, since the run's start."""
    wall_s: float
    selected: int
    charged: int
    short: int
    reward: float | None
    """Mean reward of the trained rollouts, before shaping."""
    unfiltered_reward: float | None
    """Mean reward of all finished groups counted under the step, before dynamic sampling."""
    unfiltered_accuracy: float | None
    """Share of their rollouts that are correct."""
    zero_variance_fraction: float | None
    """Share of these groups whose rewards are all equal."""
    finished_prompt_groups: int
    """These groups, kept or filtered."""
    filtered_prompt_groups: int
    dropped_prompt_groups: int
    replaced_prompt_groups: int
    evicted_prompt_groups: int
    aborted_prompt_groups: int
    late_answers: int
    """Answers refused because their attempt was over (D2)."""
    staleness_mean: float | None
    """The step minus the start weight, over the selected groups."""
    staleness_max: int | None
    completion_length_mean: float | None
    """Sampled tokens a rollout, over all rollouts of finished groups counted under the step."""
    completion_length_max: int | None
    truncated_fraction: float | None
    """Share of these rollouts that the length limit cut off."""
    generation_tokens_per_s: float
    """Sampled tokens of all groups that finished during the step."""
    trained_tokens: int | None
    """Sampled tokens that the step trained on; 0 if overlong filtering left out every rollout."""
    masked_rollouts: int | None
    """Rollouts of the step that overlong filtering left out of the loss."""
    trained_tokens_per_s: float | None
    trainer_idle_share: float
    """Share of the time in which the trainer waited for groups."""
    worker_idle_share: dict[str, float]
    """Per generation worker that reported, the share of the time in which it generated nothing."""
    kl: float | None
    reference_kl: float | None
    entropy: float | None
    clip_fraction: float | None
    importance_weight_mean: float | None
    importance_weight_max: float | None
    grad_norm: float | None
    loss: float | None
    lr: float | None
    assembling_s: float
    training_s: float
    finishing_s: float
    syncing_s: float
    in_flight: int
    """This and the following: at the moment the step closed."""
    ready: int
    queued: int
    spares: int
    gate: str
    """open or closed."""

    def as_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _FIELDS}


_FIELDS = tuple(field.name for field in dataclasses.fields(StepRecord))
