"""The metrics of one closed step, as metrics.jsonl has them."""

import dataclasses
from dataclasses import dataclass
from typing import Any

PASS_RATES = ("0", "0-0.25", "0.25-0.5", "0.5-0.75", "0.75-1", "1")
"""None correct, all correct, and quarters between; each quarter includes its lower end."""
RATE_WINDOW_S = 30.0
RESTARTED = ("generation", "quarantined", "reward", "store")
"""What is restarted: all generation workers, those of them that were quarantined, reward workers, the group store."""


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One closed step. None means unknown, such as a mean over no group.

    Shares of time are over `wall_s`: from the end of the last step's weight sync to the end of this step's.
    """

    step: int
    time_s: float
    """Time of the end of the step's sync, since this process began or resumed the run."""
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
    """Sampled tokens of finished groups, over the last steps that cover RATE_WINDOW_S: groups come in bursts."""
    trained_tokens: int | None
    """Sampled tokens that the step trained on; 0 if overlong filtering left out every rollout."""
    masked_rollouts: int | None
    """Rollouts of the step that overlong filtering left out of the loss."""
    trained_tokens_per_s: float | None
    """Over the same steps; None if the trainer reported none of them."""
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
    reward_parts: dict[str, float] = dataclasses.field(default_factory=dict)
    """The mean of each part of the reward, by name, over the rollouts of `unfiltered_reward`."""
    completion_length_correct: float | None = None
    """Mean of the correct rollouts alone. Traces older than this field and the following end before it."""
    completion_length_wrong: float | None = None
    """Mean of the others."""
    repetition: float | None = None
    """Mean share of a rollout's 4-grams of tokens that occurred in it before."""
    pass_rate_histogram: dict[str, int] = dataclasses.field(default_factory=dict)
    """How many of the finished groups have which share of correct rollouts; keys are `PASS_RATES`."""
    dropped_by_kind: dict[str, int] = dataclasses.field(default_factory=dict)
    """The dropped groups: `infra` and `data` failures (L7), and `claim`, groups whose data could not be read (S5)."""
    retries: dict[str, int] = dataclasses.field(default_factory=dict)
    """Failed attempts that were retried since the last record, `infra` and `data`."""
    dropped_in_a_row_max: int = 0
    """Most prompts in a row given up on after infra failures, since the last record (L7)."""
    clip_fraction_low: float | None = None
    clip_fraction_high: float | None = None
    logprob_mismatch_mean: float | None = None
    logprob_mismatch_max: float | None = None
    logprob_mismatch_share: float | None = None
    restarts: dict[str, int] = dataclasses.field(default_factory=dict)
    """Restarts since the last record, by `RESTARTED`. Traces older than this field and the following end before it."""
    workers_serving: int | None = None
    """Generation workers that served when the step closed."""
    not_finite: str | None = None
    """Why the step was not applied: the first number that was not finite, with microbatch and prompts; None if it was
    applied. Metrics that are not finite themselves are None."""

    def as_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _FIELDS}


_FIELDS = tuple(field.name for field in dataclasses.fields(StepRecord))
