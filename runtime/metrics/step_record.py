"""The metrics of one closed step, as they are written to metrics.jsonl."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One closed step. None is "not known", such as a mean over no group.

    Rates and shares are over `wall_s`: from the end of the last step's weight sync to the end of this one's.
    """

    step: int
    time_s: float
    """Since the meter was made, when the step's sync was over."""
    wall_s: float
    selected: int
    charged: int
    short: int
    reward: float | None
    """Mean over the rollouts that were trained, as the verifier gave them."""
    unfiltered_reward: float | None
    """Mean over the rollouts of all finished groups counted under the step, before dynamic sampling."""
    unfiltered_accuracy: float | None
    """Share of those rollouts that are correct."""
    zero_variance_fraction: float | None
    """Share of those groups whose rewards are all equal."""
    finished_prompt_groups: int
    """Those groups, kept or filtered."""
    filtered_prompt_groups: int
    dropped_prompt_groups: int
    replaced_prompt_groups: int
    evicted_prompt_groups: int
    aborted_prompt_groups: int
    late_answers: int
    """Answers refused because their attempt was over (D2)."""
    staleness_mean: float | None
    """Of the selected groups: the step minus their start weight."""
    staleness_max: int | None
    completion_length_mean: float | None
    """Sampled tokens a rollout, over all rollouts of finished groups counted under the step."""
    completion_length_max: int | None
    truncated_fraction: float | None
    """Share of those rollouts that the length limit cut off."""
    generation_tokens_per_s: float
    """Sampled tokens of all groups that finished during the step."""
    trained_tokens: int | None
    """Sampled tokens that the step trained on; 0 where overlong filtering left every rollout out, and then the weights
    stayed."""
    masked_rollouts: int | None
    """Rollouts of the step that overlong filtering left out of the loss."""
    trained_tokens_per_s: float | None
    trainer_idle_share: float
    """Share of the time in which the trainer waited for groups: neither training, finishing, nor syncing."""
    worker_idle_share: dict[str, float]
    """Per generation worker that has reported, the share of the time in which it generated nothing."""
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
    """This and the following: when the step was closed."""
    ready: int
    queued: int
    spares: int
    gate: str
    """open or closed."""

    def as_json(self) -> dict[str, Any]:
        """All fields by name, plain JSON."""
        return {name: getattr(self, name) for name in _FIELDS}


_FIELDS = tuple(field.name for field in dataclasses.fields(StepRecord))
