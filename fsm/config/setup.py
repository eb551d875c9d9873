"""From a checked configuration to the limits and the sampler that the core runs under."""

from typing import NamedTuple

from fsm.config.blocks import RunConfig
from fsm.config.parse import refuse_any
from fsm.config.refusals import refusals, warnings
from fsm.config.sampler_loading import build_sampler, traits
from fsm.config.values import floor_groups, resolved_buffer, resolved_inflight, resolved_streaming_minimum
from fsm.errors import ConfigError
from fsm.samplers.protocol import PromptGroupSampler
from fsm.state import NONE, Limits
from fsm.wording import counted

NO_LIMIT_OF_EPOCHS = 1 << 62
"""What `max_num_epochs: null` stands for: more than a run can read."""


class Setup(NamedTuple):
    """A run that may start."""

    config: RunConfig
    limits: Limits
    sampler: PromptGroupSampler
    sampler_name: str
    notices: tuple[str, ...]
    """What the run says when it starts: warnings, and prompts that will never be pulled (A5)."""


def set_up(config: RunConfig, num_prompts: int, *, check: bool = True) -> Setup:
    """Load the sampler, refuse what cannot run, and reduce the configuration to integers.

    `num_prompts` is the length of one epoch. `check=False` skips the refusals. Raises ConfigError.
    """
    if num_prompts < 0:
        raise ConfigError(f"the data has {counted(num_prompts, 'prompt')}; allowed: 0 or more")
    sampler = build_sampler(config)
    known = traits(config, sampler)
    if check:
        refuse_any(refusals(config, known))
    grpo, failure = config.grpo, config.async_rl.rollout_failure
    size = grpo.num_prompts_per_step
    uses_pool = failure.on_dropped_prompt == "replace" and known.uses_replacement_pool
    batches = grpo.dynamic_sampling_max_gen_batches
    limits = Limits(
        size=size,
        min_groups=resolved_streaming_minimum(config),
        max_inflight=resolved_inflight(config, known),
        max_buffered=resolved_buffer(config, known),
        reserve=failure.replacement_reserve_prompts if uses_pool else 0,
        max_replacements=failure.max_replacement_attempts if uses_pool else 0,
        floor=floor_groups(size, failure.min_step_batch_fraction),
        max_steps=NONE if grpo.max_num_steps is None else grpo.max_num_steps,
        max_filtered=NONE if batches is None else batches * size,
        prompts_per_epoch=num_prompts,
        epochs=NO_LIMIT_OF_EPOCHS if grpo.max_num_epochs is None else grpo.max_num_epochs,
        max_consecutive_dropped=failure.max_consecutive_dropped_prompts,
        max_skipped=failure.max_skipped_prompts,
        dynamic_sampling=int(grpo.use_dynamic_sampling),
        closes_short=int(known.closes_short_at_exhaustion),
    )
    notices = [*warnings(config, known), *_data_notices(limits)]
    return Setup(config, limits, sampler, known.name, tuple(notices))


def _data_notices(limits: Limits) -> list[str]:
    trailing = limits.prompts_per_epoch % limits.size
    if not trailing or not limits.skips_trailing:
        return []
    return [
        f"each epoch's last {trailing} of {limits.prompts_per_epoch} prompts are never pulled: they are fewer than "
        f"num_prompts_per_step = {limits.size}, and this sampler trains whole batches only (A5)"
    ]
