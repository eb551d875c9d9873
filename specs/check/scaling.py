"""Scales a run's configuration down to scopes that can be explored completely, and says what is kept.

What matters of a number is mostly how it stands to another one: a streaming minimum below N waits for other things than
one of N, a buffer larger than required behaves otherwise than one just large enough. `scale` keeps those relations and
makes the numbers small. It notes every change (`ScaledOption`), so a verdict can say for which bounds it holds.
"""

import inspect
from functools import reduce
from typing import Any, NamedTuple

from fsm.config.blocks import CustomConfig, RunConfig
from fsm.config.parse import parse_config
from fsm.config.sampler_loading import WINDOW_OPTIONS, build_sampler, traits
from fsm.config.values import SamplerTraits, floor_groups, required_buffer, resolved_buffer, resolved_streaming_minimum
from fsm.samplers.protocol import PromptGroupSampler

LEFT_OUT = "left out here"


class Scope(NamedTuple):
    """How large the numbers of a scaled configuration may be."""

    size: int
    """Of N."""
    window: int
    steps: int
    """Steps of data beyond the window."""
    attempts: int
    """Of max_replacement_attempts."""
    epochs: int = 1
    skipped: int = 0
    """Of max_skipped_prompts."""
    search: int | None = None
    """Of dynamic_sampling_max_gen_batches; None: no limit, even if one is given."""


class ScaledOption(NamedTuple):
    """One number that is checked at another value than it is given."""

    key: str
    given: object
    checked: object
    keeps: str
    """What the two have in common."""


class Scaled(NamedTuple):
    """A configuration that is small enough."""

    config: RunConfig
    """The core's blocks alone."""
    num_prompts: int
    """An epoch."""
    window: int
    kept: tuple[ScaledOption, ...]


class _Numbers:
    """The configuration as a document that is being scaled, and its changes."""

    def __init__(self, config: RunConfig) -> None:
        document = config.model_dump(include={"grpo", "async_rl"})
        correction = config.loss_fn.use_importance_sampling_correction
        self.document: dict[str, Any] = {**document, "loss_fn": {"use_importance_sampling_correction": correction}}
        self.kept: list[ScaledOption] = []

    def put(self, path: str, value: object, keeps: str, block: dict[str, Any] | None = None) -> None:
        """Set the option at `path`, in that block if one is given, and note it if that changes it."""
        *outer, key = path.split(".")
        if block is None:
            block = reduce(lambda found, name: found[name], outer, self.document)
        if block[key] != value:
            self.kept.append(ScaledOption(path, block[key], value, keeps))
            block[key] = value


def scale(config: RunConfig, scope: Scope, num_prompts: int | None = None) -> Scaled:
    """The configuration at a scope. `num_prompts` is the length of an epoch, if it is known.

    Setup is not checked: the scaled configuration is refused for the same reasons as the given one.
    Raises ConfigError for a custom sampler that cannot be loaded.
    """
    numbers = _Numbers(config)
    sampler = build_sampler(config)
    known = traits(config, sampler)
    given_size = config.grpo.num_prompts_per_step
    size = min(given_size, scope.size)
    window = _scale_window(numbers, config, known, scope, sampler)
    numbers.put("grpo.num_prompts_per_step", size, "N, smaller")
    generations = min(config.grpo.num_generations_per_prompt, 2)
    numbers.put("grpo.num_generations_per_prompt", generations, "siblings count nowhere")
    if config.async_rl.min_groups_for_streaming_train is not None:
        minimum = resolved_streaming_minimum(config)
        keeps = _relation(minimum, given_size, "N")
        numbers.put("async_rl.min_groups_for_streaming_train", _between(minimum, given_size, size), keeps)
    _scale_losses(numbers, config, known, scope, size)
    _scale_capacities(numbers, config, known, size, window)
    _scale_ends(numbers, window, scope)
    scaled = parse_config(numbers.document, check=False)
    epoch = _num_prompts(scaled, known, scope, window, given_size, num_prompts)
    return Scaled(scaled, epoch, window, tuple(numbers.kept))


def _relation(value: int, other: int, name: str) -> str:
    if value > other:
        return f"above {name}"
    if value == other:
        return f"equal to {name}"
    return f"1, below {name}" if value == 1 else f"below {name}"


def _between(value: int, given_size: int, size: int) -> int:
    """A number of groups as it stands to N: 1 stays 1, N stays N, between stays between where N has a between."""
    if value > given_size:
        return size + 1
    if value == given_size:
        return size
    if value <= 1:
        return value
    return max(min(2, size - 1), min(size - 1, -(-value * size // given_size)), 1)


def _scale_window(
    numbers: _Numbers, config: RunConfig, known: SamplerTraits, scope: Scope, sampler: PromptGroupSampler
) -> int:
    """Cap the window. A custom sampler's is the option of that name; where it has none, what its capacity tells."""
    block = numbers.document["async_rl"]["sampler"]
    options = block["options"] if isinstance(config.async_rl.sampler, CustomConfig) else block
    takes = inspect.signature(type(sampler)).parameters
    for key in WINDOW_OPTIONS:
        given = options.get(key, takes[key].default if key in takes else None)
        if type(given) is int:
            options.setdefault(key, given)
            numbers.put(f"async_rl.sampler.{key}", min(given, scope.window), "the window, capped", options)
            return int(options[key])
    capacity = known.required_buffer_capacity
    return 1 if not capacity else max(0, capacity // config.grpo.num_prompts_per_step - 1)


def _scale_losses(numbers: _Numbers, config: RunConfig, known: SamplerTraits, scope: Scope, size: int) -> None:
    """Reserve, attempts, floor and budgets."""
    failure = config.async_rl.rollout_failure
    where = "async_rl.rollout_failure"
    given_size = config.grpo.num_prompts_per_step
    if failure.on_dropped_prompt == "replace" and known.uses_replacement_pool:
        reserve, attempts = failure.replacement_reserve_prompts, failure.max_replacement_attempts
        keeps = _relation(reserve, given_size, "N")
        numbers.put(f"{where}.replacement_reserve_prompts", _between(reserve, given_size, size), keeps)
        keeps = {0: "none", 1: "one"}.get(attempts, "some, capped")
        numbers.put(f"{where}.max_replacement_attempts", min(attempts, scope.attempts), keeps)
    _scale_floor(numbers, config, size)
    dropped, skipped = min(failure.max_consecutive_dropped_prompts, 1), min(failure.max_skipped_prompts, scope.skipped)
    numbers.put(f"{where}.max_consecutive_dropped_prompts", dropped, "some")
    numbers.put(f"{where}.max_skipped_prompts", skipped, "some" if skipped else LEFT_OUT)


def _losses(size: int, floor: int) -> str:
    """How many losses a floor allows."""
    if floor >= size:
        return "no loss"
    return "all losses but one" if floor == 1 else "some losses"


def _scale_floor(numbers: _Numbers, config: RunConfig, size: int) -> None:
    """The fraction as it is written where it allows as many losses of the small N; else one that does."""
    fraction = config.async_rl.rollout_failure.min_step_batch_fraction
    given_size = config.grpo.num_prompts_per_step
    given = _losses(given_size, floor_groups(given_size, fraction))
    some = given if size > 2 else given.replace("some losses", "all losses but one")
    if size == 1 or _losses(size, floor_groups(size, fraction)) == some:
        return
    floor = {"no loss": size, "some losses": max(1, size - 1), "all losses but one": 1}[given]
    short = 1.0 if floor == size else (10 * floor // size) / 10  # a decimal f with ceil(size × f) = floor
    numbers.put("async_rl.rollout_failure.min_step_batch_fraction", short, f"allows {given}")


def _scale_capacities(numbers: _Numbers, config: RunConfig, known: SamplerTraits, size: int, window: int) -> None:
    """Buffer against what is required, in flight against N and the buffer. null stays null."""
    async_rl = numbers.document["async_rl"]
    given_size = config.grpo.num_prompts_per_step
    given_buffer, given_needed = resolved_buffer(config, known), required_buffer(config, known)
    small = parse_config(
        {**numbers.document, "async_rl": {**async_rl, "max_buffered_rollouts": None, "max_inflight_prompts": None}},
        check=False,
    )
    small_known = traits(small, build_sampler(small))
    needed = required_buffer(small, small_known)
    if async_rl["max_buffered_rollouts"] is not None:
        buffer, keeps = _capacity(given_buffer, given_needed, given_size, needed, size, window)
        numbers.put("async_rl.max_buffered_rollouts", buffer, keeps)
    else:
        buffer = resolved_buffer(small, small_known)
    inflight = async_rl["max_inflight_prompts"]
    if inflight is not None:
        if inflight >= given_buffer:
            scaled, keeps = buffer, "not below the buffer"
        elif inflight > given_size:
            scaled, keeps = max(size, min(size + 1, buffer - 1)), "above N, below the buffer"
        else:
            scaled, keeps = min(_between(inflight, given_size, size), buffer), _relation(inflight, given_size, "N")
        numbers.put("async_rl.max_inflight_prompts", scaled, keeps)


def _capacity(given: int, given_needed: int, given_size: int, needed: int, size: int, window: int) -> tuple[int, str]:
    """The buffer, as it stands to what is required."""
    if given < given_needed:
        least = size if given >= given_size else 1  # without a window no buffer holds a step and is too small
        scaled = max(least, min(needed - 1, given * needed // given_needed))
        return scaled, "below what is required" if scaled < needed else "holds a step, as it did"
    if given == given_needed:
        return needed, "what is required"
    if given < given_size and needed < size:
        return max(needed, size - 1), "not below what is required, below N"
    batches = (given - given_needed) // given_size
    if not batches:
        return needed + max(1, size // 2), "more than required, by less than a batch"
    more = min(batches, window + 1 if needed < size else 1)  # windowed requires less than a batch
    return needed + more * size, "more than required, by whole batches"


def _scale_ends(numbers: _Numbers, window: int, scope: Scope) -> None:
    """Steps, epochs and the limit of dynamic sampling."""
    grpo = numbers.document["grpo"]
    steps = grpo["max_num_steps"]
    if steps is not None:
        most = max(1, window + scope.steps - 1)
        numbers.put("grpo.max_num_steps", min(steps, most), "a limit that is reached before the data is used up")
    epochs = scope.epochs if grpo["max_num_epochs"] is None else min(grpo["max_num_epochs"], scope.epochs)
    numbers.put("grpo.max_num_epochs", epochs, "more than one" if epochs > 1 else LEFT_OUT)
    search = grpo["dynamic_sampling_max_gen_batches"]
    if search is not None:
        limit = None if scope.search is None else min(search, scope.search)
        keeps = LEFT_OUT if limit is None else "a limit"
        numbers.put("grpo.dynamic_sampling_max_gen_batches", limit, keeps)


def _num_prompts(
    scaled: RunConfig, known: SamplerTraits, scope: Scope, window: int, given_size: int, given: int | None
) -> int:
    """Prompts of an epoch: data for `window` + `scope.steps` steps over all epochs, and a trailing batch (A5).

    There is a trailing batch where the sampler takes one, unless it is known that the data has none. A reserve of
    more than a batch, which is held back before any step (P1), comes on top.
    """
    size, epochs = scaled.grpo.num_prompts_per_step, scaled.grpo.max_num_epochs or 1
    batches = -(-(window + scope.steps) // epochs)
    failure = scaled.async_rl.rollout_failure
    uses_pool = failure.on_dropped_prompt == "replace" and known.uses_replacement_pool
    takes_trailing = uses_pool or known.closes_short_at_exhaustion
    if uses_pool:
        batches += max(0, -(-failure.replacement_reserve_prompts // size) - 1)
    has_trailing = takes_trailing if given is None else given % given_size > 0
    return batches * size + (1 if has_trailing and size > 1 else 0)
