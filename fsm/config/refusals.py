"""What setup refuses because keys don't fit together ("What setup refuses" in docs/rules.md), and what it warns of.

Each message says what, why, and what to set instead. A sampler is known by its traits, so the checks are the same for
a custom one.
"""

import math
from collections.abc import Iterator

from fsm.config.blocks import RolloutFailureConfig, RunConfig
from fsm.config.values import (
    SamplerTraits,
    floor_groups,
    longest_rollout_s,
    required_buffer,
    resolved_streaming_minimum,
)
from fsm.samplers.promises import Eligible
from fsm.wording import counted


def refusals(config: RunConfig, sampler: SamplerTraits | None) -> list[str]:
    """Everything that setup refuses under this sampler; None: what it refuses under any."""
    found = [problem for refusal in REFUSED_UNDER_ANY_SAMPLER for problem in refusal(config)]
    if sampler is not None:
        found += [problem for refusal in REFUSED_BY_SAMPLER for problem in refusal(config, sampler)]
    return found


def warnings(config: RunConfig, sampler: SamplerTraits) -> list[str]:
    """What setup accepts with a warning."""
    return [
        *_replace_without_pool(config, sampler),
        *_floor_without_loss(config, sampler),
        *_large_reserve(config, sampler),
        *_no_deadline(config),
        *_stall_below_data_attempts(config),
        *_idle_search_limit(config),
        *_never_over(config),
    ]


# Refused under any sampler


def _one_generation(config: RunConfig) -> Iterator[str]:
    """Fewer than two generations per prompt: a rollout without siblings has no advantage."""
    generations = config.grpo.num_generations_per_prompt
    if generations >= 2:
        return
    filtered = ""
    if config.grpo.use_dynamic_sampling:
        filtered = (
            ", and grpo.use_dynamic_sampling would filter every group, since one reward is always equal to itself"
        )
    yield (
        f"grpo.num_generations_per_prompt is {generations}: an advantage is a rollout's reward against those of its "
        f"siblings, so a group of one has none and nothing would be learnt{filtered}. Set num_generations_per_prompt "
        "to 2 or more."
    )


def _replace_without_means(config: RunConfig) -> Iterator[str]:
    """`on_dropped_prompt: replace` with no replacement attempts, or no reserve."""
    failure = config.async_rl.rollout_failure
    if failure.on_dropped_prompt != "replace":
        return
    for key, lack in (
        ("max_replacement_attempts", "no slot may ever have a replacement"),
        ("replacement_reserve_prompts", "no spares would be held back to replace with"),
    ):
        if getattr(failure, key) == 0:
            yield (
                f"async_rl.rollout_failure.{key} is 0 with on_dropped_prompt: replace: {lack}. "
                f"Set {key} to 1 or more, or on_dropped_prompt to shrink."
            )


def _streaming_minimum_above_n(config: RunConfig) -> Iterator[str]:
    """`min_groups_for_streaming_train` above `grpo.num_prompts_per_step`."""
    minimum, step_size = config.async_rl.min_groups_for_streaming_train, config.grpo.num_prompts_per_step
    if minimum is not None and minimum > step_size:
        yield (
            f"async_rl.min_groups_for_streaming_train is {minimum}, above grpo.num_prompts_per_step, which "
            f"is {step_size}: a chunk is a part of one step. Set it to {step_size} or less, or to null for "
            f"{step_size}."
        )


def _other_global_batch(config: RunConfig) -> Iterator[str]:
    """A `policy.train_global_batch_size` that is not prompts × generations of a step."""
    batch, generations = config.policy.train_global_batch_size, config.grpo.num_generations_per_prompt
    rollouts = config.grpo.num_prompts_per_step * generations
    if batch is None or batch == rollouts:
        return
    prompts = f"grpo.num_prompts_per_step to {batch // generations}, or " if batch % generations == 0 else ""
    yield (
        f"policy.train_global_batch_size is {batch}, but a step has {config.grpo.num_prompts_per_step} × "
        f"{generations} = {rollouts} rollouts (grpo.num_prompts_per_step × grpo.num_generations_per_prompt): "
        "the trainer would cut a step in pieces, or wait for more. Set train_global_batch_size to "
        f"{rollouts}, or {prompts}train_global_batch_size to null to leave it unchecked."
    )


def _stall_below_attempts(config: RunConfig) -> Iterator[str]:
    """`stall_action: abort` with a `stall_timeout_s` below what the deadline, the infra attempts and their backoffs of
    one prompt allow."""
    watchdog, failure = config.async_rl.stall_watchdog, config.async_rl.rollout_failure
    least_s = longest_rollout_s(failure, data_failures=0)
    if watchdog.stall_action != "abort" or least_s is None or watchdog.stall_timeout_s >= least_s:
        return
    yield (
        f"async_rl.stall_watchdog.stall_timeout_s is {watchdog.stall_timeout_s:g} with stall_action: abort, but the "
        f"retries of one prompt may take {least_s:g} s: {_attempts(failure, failure.max_infra_attempts_per_prompt)}. "
        f"The watchdog would stop a healthy run. Set stall_timeout_s to {_whole(least_s)} or more, or "
        "stall_action to warn, or lower rollout_timeout_s or max_infra_attempts_per_prompt."
    )


def _attempts(failure: RolloutFailureConfig, attempts: int) -> str:
    """The parts of `longest_rollout_s` in words."""
    backoffs = "" if failure.backoff_base_s == 0 or attempts == 1 else ", and the backoffs between them"
    each = "" if attempts == 1 else " each"
    return f"{counted(attempts, 'attempt')} of rollout_timeout_s = {failure.rollout_timeout_s:g} s{each}{backoffs}"


def _whole(seconds: float) -> str:
    """Rounded up, in few characters."""
    return f"{math.ceil(seconds)}" if seconds < 1e15 else f"{seconds:g}"


# Refused because of the sampler


def _trains_by_bucket(sampler: SamplerTraits) -> bool:
    return sampler.promises.selects_from is Eligible.OLDEST_BUCKET


def _bucket_with_replace(config: RunConfig, sampler: SamplerTraits) -> Iterator[str]:
    """The weight_fifo sampler with `on_dropped_prompt: replace`: no group of it may be lost."""
    if _trains_by_bucket(sampler) and config.async_rl.rollout_failure.on_dropped_prompt == "replace":
        yield (
            f"async_rl.rollout_failure.on_dropped_prompt is replace under the {sampler.name} sampler, which has "
            "nothing to replace: it allows neither dynamic sampling nor a drop budget. Prompts would be held "
            "back from training until the data is used up. Set on_dropped_prompt to shrink, or take another sampler, "
            "such as in_order or ready_first."
        )


def _bucket_with_losses(config: RunConfig, sampler: SamplerTraits) -> Iterator[str]:
    """The weight_fifo sampler with dynamic sampling, or with a drop budget above 0."""
    if not _trains_by_bucket(sampler):
        return
    why = "a bucket is trained before any later one, and a group lost from it would leave a step that it cannot fill. "
    others = "take another sampler, such as in_order or ready_first"
    if config.grpo.use_dynamic_sampling:
        yield (
            f"the {sampler.name} sampler cannot be combined with grpo.use_dynamic_sampling: {why}"
            f"Set use_dynamic_sampling to false, or {others}."
        )
    for key in ("max_consecutive_dropped_prompts", "max_skipped_prompts"):
        budget = getattr(config.async_rl.rollout_failure, key)
        if budget > 0:
            yield (
                f"the {sampler.name} sampler cannot be combined with a drop budget, and "
                f"async_rl.rollout_failure.{key} is {budget}: {why}Set {key} to 0, or {others}."
            )


def _filtered_without_replace(config: RunConfig, sampler: SamplerTraits) -> Iterator[str]:
    """Dynamic sampling without `on_dropped_prompt: replace`, but under the windowed sampler."""
    failure = config.async_rl.rollout_failure
    filters = config.grpo.use_dynamic_sampling and sampler.uses_replacement_pool
    if _trains_by_bucket(sampler):  # refused with dynamic sampling anyway
        return
    if filters and failure.on_dropped_prompt != "replace":
        yield (
            f"async_rl.rollout_failure.on_dropped_prompt is {failure.on_dropped_prompt} with "
            f"grpo.use_dynamic_sampling and the {sampler.name} sampler: every filtered group would be "
            "charged to a step, which trains short or stops at its floor. Set on_dropped_prompt to replace, "
            "with max_replacement_attempts and replacement_reserve_prompts of at least 1 (now "
            f"{failure.max_replacement_attempts} and {failure.replacement_reserve_prompts}), or take the "
            "windowed sampler, which needs no replacements."
        )


def _buffer_too_small(config: RunConfig, sampler: SamplerTraits) -> Iterator[str]:
    """A `max_buffered_rollouts` below what the sampler requires (A4)."""
    given, required = config.async_rl.max_buffered_rollouts, required_buffer(config, sampler)
    if given is None or given >= required:
        return
    yield (
        f"async_rl.max_buffered_rollouts is {given}, but the {sampler.name} sampler needs {required} "
        f"({_required_because(config, sampler)}): the run would wait forever for groups that have no "
        f"place. Set it to {required} or more, or to null for what is needed{_smaller_window(config, sampler, given)}."
    )


def _required_because(config: RunConfig, sampler: SamplerTraits) -> str:
    step_size, minimum = config.grpo.num_prompts_per_step, resolved_streaming_minimum(config)
    if (sampler.required_buffer_capacity or 0) < minimum:
        if config.async_rl.min_groups_for_streaming_train is None:
            return f"a chunk of grpo.num_prompts_per_step, the default of min_groups_for_streaming_train: {minimum}"
        return f"a chunk of async_rl.min_groups_for_streaming_train: {minimum}"
    batches = _batches_of_window(config, sampler)
    if batches is None:
        return f"what its required_buffer_capacity says for {counted(step_size, 'group')} a step"
    return f"grpo.num_prompts_per_step × ({sampler.window_option} + 1) = {step_size} × {batches}"


def _smaller_window(config: RunConfig, sampler: SamplerTraits, buffer: int) -> str:
    """The window that a buffer is enough for."""
    batches = buffer // config.grpo.num_prompts_per_step
    if _batches_of_window(config, sampler) is None or batches < 1:
        return ""
    return f", or async_rl.sampler.{sampler.window_option} to {batches - 1}"


def _batches_of_window(config: RunConfig, sampler: SamplerTraits) -> int | None:
    """How many batches the buffer must hold where an option of the sampler sets that; else None."""
    lead = sampler.promises.max_lead_versions
    if lead is None or sampler.window_option is None:
        return None
    return lead + 1 if sampler.required_buffer_capacity == config.grpo.num_prompts_per_step * (lead + 1) else None


def _stale_without_correction(config: RunConfig, sampler: SamplerTraits) -> Iterator[str]:
    """A sampler that admits stale groups without `loss_fn.use_importance_sampling_correction`."""
    if config.loss_fn.use_importance_sampling_correction:
        return
    said = "loss_fn.use_importance_sampling_correction is false, but the"
    if sampler.promises.selects_from is Eligible.ANY:
        yield (
            f"{said} {sampler.name} sampler takes any ready group, whatever its start weight: the loss would "
            "take groups of earlier weights for fresh ones. Set use_importance_sampling_correction to true."
        )
    elif not sampler.is_on_policy:
        on_policy = f", or async_rl.sampler.{sampler.window_option} to 0" if sampler.window_option else ""
        yield (
            f"{said} {sampler.name} sampler admits stale groups: the loss would take groups of earlier "
            f"weights for fresh ones. Set use_importance_sampling_correction to true{on_policy}."
        )


REFUSED_UNDER_ANY_SAMPLER = (
    _one_generation,
    _replace_without_means,
    _streaming_minimum_above_n,
    _other_global_batch,
    _stall_below_attempts,
)
"""Each refusal, which says in its docstring what is refused."""

REFUSED_BY_SAMPLER = (
    _bucket_with_losses,
    _bucket_with_replace,
    _filtered_without_replace,
    _buffer_too_small,
    _stale_without_correction,
)
"""The refusals that depend on the sampler."""


# Accepted, with a warning


def _replace_without_pool(config: RunConfig, sampler: SamplerTraits) -> Iterator[str]:
    if config.async_rl.rollout_failure.on_dropped_prompt == "replace" and not sampler.uses_replacement_pool:
        yield (
            f"async_rl.rollout_failure.on_dropped_prompt is replace, but the {sampler.name} sampler uses no "
            "spare pool: no prompt is held back and no lost group is replaced; further batches make up for "
            "them. shrink says the same."
        )


def _floor_without_loss(config: RunConfig, sampler: SamplerTraits) -> Iterator[str]:
    failure, step_size = config.async_rl.rollout_failure, config.grpo.num_prompts_per_step
    if floor_groups(step_size, failure.min_step_batch_fraction) < step_size:
        return
    budgets = [
        f"{key}: {getattr(failure, key)}"
        for key in ("max_consecutive_dropped_prompts", "max_skipped_prompts")
        if getattr(failure, key) > 0
    ]
    if not budgets:
        return
    if sampler.closes_short_at_exhaustion:
        means = "a last step that is short of even one group is not trained, and its groups are left over"
    else:
        means = (
            "the first dropped prompt that isn't replaced stops the run below its floor, although the budget allows it"
        )
    enough = f"; {_fraction_for_one_loss(step_size)} allows one lost group a step" if step_size > 1 else ""
    yield (
        f"async_rl.rollout_failure.min_step_batch_fraction {failure.min_step_batch_fraction} of {step_size} "
        f"groups, rounded up, is {step_size}: it allows no loss, although there is {' and '.join(budgets)}, so "
        f"{means}{enough}."
    )


def _fraction_for_one_loss(step_size: int) -> float:
    """A short decimal whose floor is N − 1: (N − 1) / N cut off where the rest is below 1 / N."""
    scale = int(10 ** len(str(step_size)))
    return (step_size - 1) * scale // step_size / scale


def _large_reserve(config: RunConfig, sampler: SamplerTraits) -> Iterator[str]:
    failure, step_size = config.async_rl.rollout_failure, config.grpo.num_prompts_per_step
    reserve = failure.replacement_reserve_prompts
    if failure.on_dropped_prompt == "replace" and sampler.uses_replacement_pool and reserve > step_size:
        yield (
            f"async_rl.rollout_failure.replacement_reserve_prompts is {reserve}, more than one batch of "
            f"{step_size}: {-(-reserve // step_size)} batches are diverted into the spare pool before the "
            "first is admitted, and what isn't used up is trained only once the data is."
        )


NO_DEADLINE = "rollouts have no deadline (async_rl.rollout_failure.rollout_timeout_s is null)"
"""How the notice begins."""


def _no_deadline(config: RunConfig) -> Iterator[str]:
    if config.async_rl.rollout_failure.rollout_timeout_s is None:
        watchdog = config.async_rl.stall_watchdog
        warns = watchdog.stall_action == "warn"
        does = "warns" if warns else "stops the run"
        also = "" if warns else ", also where a sound rollout takes that long"
        yield (
            f"{NO_DEADLINE}: an attempt that never answers holds "
            f"its slot for the rest of the run; only the watchdog {does}, {watchdog.stall_timeout_s:g} s "
            f"after the last progress{also}."
        )


def _stall_below_data_attempts(config: RunConfig) -> Iterator[str]:
    """Data failures usually come long before the deadline, so what they add to the bound is a warning, no refusal."""
    watchdog, failure = config.async_rl.stall_watchdog, config.async_rl.rollout_failure
    data_failures = failure.max_data_attempts_per_prompt - 1
    most_s, least_s = longest_rollout_s(failure, data_failures), longest_rollout_s(failure, data_failures=0)
    if watchdog.stall_action != "abort" or most_s is None or least_s is None:
        return
    if least_s <= watchdog.stall_timeout_s < most_s:
        attempts = failure.max_infra_attempts_per_prompt + data_failures
        yield (
            f"async_rl.stall_watchdog.stall_timeout_s is {watchdog.stall_timeout_s:g} with stall_action: abort: a "
            f"prompt whose data failures come as late as its deadline may take {most_s:g} s "
            f"({_attempts(failure, attempts)}), and the watchdog would stop such a run; {_whole(most_s)} "
            "is enough for all of its retries."
        )


def _idle_search_limit(config: RunConfig) -> Iterator[str]:
    limit = config.grpo.dynamic_sampling_max_gen_batches
    if limit is not None and not config.grpo.use_dynamic_sampling:
        yield (
            f"grpo.dynamic_sampling_max_gen_batches is {limit}, but grpo.use_dynamic_sampling is false: no "
            "group is filtered, and the limit means nothing."
        )


def _never_over(config: RunConfig) -> Iterator[str]:
    if config.grpo.max_num_steps is None and config.grpo.max_num_epochs is None:
        yield (
            "grpo.max_num_steps and grpo.max_num_epochs are null: nothing ends the run but a stop by you or by a "
            "limit of failures. Set either."
        )
