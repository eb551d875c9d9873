"""What the rest of the configuration code works with: a sampler's traits, and the numbers that null stands for."""

from fractions import Fraction
from typing import NamedTuple

from fsm.config.blocks import RolloutFailureConfig, RunConfig
from fsm.samplers.promises import Promises


class SamplerTraits(NamedTuple):
    """What setup must know of a sampler, built in or custom."""

    name: str
    uses_replacement_pool: bool
    """Filtered and dropped groups may be replaced from the spare pool (L2)."""
    closes_short_at_exhaustion: bool
    """The last step may close on fewer groups than N (X1)."""
    is_on_policy: bool
    """It admits no staleness."""
    required_buffer_capacity: int | None
    """The least `max_buffered_rollouts` (A4); None: it doesn't say."""
    default_buffer_capacity: int | None = None
    """What `max_buffered_rollouts: null` stands for; None: what is required."""
    window_option: str | None = None
    """The key of its block that sets its window, if it has one; a window of 0 makes it on-policy."""
    promises: Promises = Promises()


def resolved_streaming_minimum(config: RunConfig) -> int:
    """The eligible groups that a chunk needs: `min_groups_for_streaming_train`, or N (S1)."""
    given = config.async_rl.min_groups_for_streaming_train
    return config.grpo.num_prompts_per_step if given is None else given


def required_buffer(config: RunConfig, sampler: SamplerTraits) -> int:
    """The least `max_buffered_rollouts` with which a step can fill (A4).

    Under any sampler a chunk waits for the streaming minimum, so the buffer must hold that many.
    """
    return max(sampler.required_buffer_capacity or 0, resolved_streaming_minimum(config))


def resolved_buffer(config: RunConfig, sampler: SamplerTraits) -> int:
    """The most groups in flight or ready (D1)."""
    given = config.async_rl.max_buffered_rollouts
    if given is not None:
        return given
    step_size = config.grpo.num_prompts_per_step
    default = sampler.default_buffer_capacity
    if default is None:
        default = 2 * step_size if sampler.required_buffer_capacity is None else 0
    return max(required_buffer(config, sampler), default)


def resolved_inflight(config: RunConfig, sampler: SamplerTraits) -> int:
    """The most groups in flight (D1)."""
    given = config.async_rl.max_inflight_prompts
    return resolved_buffer(config, sampler) if given is None else given


def floor_groups(num_prompts_per_step: int, fraction: float) -> int:
    """The floor of a step, ceil(N × fraction), exact for the decimal as written: 0.55 × 100 is 55 (L6)."""
    exact = num_prompts_per_step * Fraction(repr(float(fraction)))
    return -(-exact.numerator // exact.denominator)


_DOUBLINGS = 1023
"""The largest power of two that a float holds."""


def backoff_s(failed_attempts: int, base_s: float, most_s: float) -> float:
    """Seconds before attempt `failed_attempts` + 1: min(base × 2^(k−1), most) for k failed attempts (L7)."""
    return min(base_s * 2.0 ** min(failed_attempts - 1, _DOUBLINGS), most_s)


def longest_rollout_s(failure: RolloutFailureConfig, data_failures: int) -> float | None:
    """The longest a prompt may take until it finishes or is given up on, in seconds; None without a deadline.

    Every attempt runs up to its deadline (W1, L7): first `data_failures` data failures, which start the next attempt at
    once but count for the backoffs, then all infra attempts. Weight syncs, during which a retry waits, are not counted.
    """
    if failure.rollout_timeout_s is None:
        return None
    attempts = failure.max_infra_attempts_per_prompt
    before = data_failures + 1  # the first infra failure is the prompt's failure of this number
    backoffs = [
        backoff_s(before + number, failure.backoff_base_s, failure.max_backoff_s)
        for number in range(min(attempts - 1, _DOUBLINGS + 1))
    ]
    alike = attempts - 1 - len(backoffs)  # beyond the last doubling
    return (
        (attempts + data_failures) * failure.rollout_timeout_s + sum(backoffs) + (backoffs[-1] * alike if alike else 0)
    )
