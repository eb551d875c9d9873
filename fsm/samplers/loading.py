"""From configuration to a sampler: the built-in ones by name, one from outside by `module:ClassName`."""

from __future__ import annotations

import difflib
import importlib
import inspect
from typing import Any

from fsm.config_blocks import (
    CustomConfig,
    InOrderConfig,
    ReadyFirstConfig,
    RunConfig,
    WeightFifoConfig,
    WindowedConfig,
)
from fsm.config_values import SamplerTraits
from fsm.errors import ConfigError
from fsm.samplers.builtin import InOrder, ReadyFirst, WeightFifo, Windowed
from fsm.samplers.protocol import DropAccountingSampler, GatedSampler, PromptGroupSampler

_REQUIRED = (
    "admit", "select", "evict", "should_abort_inflight", "is_on_policy", "required_buffer_capacity"
)  # fmt: skip


def build_sampler(config: RunConfig) -> PromptGroupSampler:
    """The sampler of a run. Raises ConfigError for a custom one that cannot be loaded or does not fit."""
    sampler = config.async_rl.sampler
    if isinstance(sampler, InOrderConfig):
        return InOrder(sampler.window)
    if isinstance(sampler, ReadyFirstConfig):
        return ReadyFirst(sampler.window)
    if isinstance(sampler, WeightFifoConfig):
        return WeightFifo(sampler.window)
    if isinstance(sampler, WindowedConfig):
        minimum = config.async_rl.min_groups_for_streaming_train
        return Windowed(sampler.window, sampler.sample_freshest_first, minimum)
    return load_custom(sampler)


def sampler_name(config: RunConfig) -> str:
    """How a run's sampler is called in messages and checkpoints."""
    sampler = config.async_rl.sampler
    return f"custom {sampler.target}" if isinstance(sampler, CustomConfig) else sampler.name


def load_custom(config: CustomConfig) -> PromptGroupSampler:
    """An instance of the class that `target` names, made with the extra keys of its block."""
    where = f"async_rl.sampler.target {config.target}"
    module_name, _, class_name = config.target.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ImportError as cause:
        raise ConfigError(
            f"{where}: module {module_name} can't be imported ({cause}). Its folder must be on the Python path: "
            f"run from there, install it, or set PYTHONPATH"
        ) from cause
    if class_name not in vars(module):
        classes = [name for name, value in vars(module).items() if inspect.isclass(value)]
        near = difflib.get_close_matches(class_name, classes, n=1)
        hint = f"; did you mean {near[0]}?" if near else f"; it has {', '.join(classes) or 'no class'}"
        raise ConfigError(f"{where}: module {module_name} has no {class_name}{hint}")
    found = vars(module)[class_name]
    if not inspect.isclass(found):
        raise ConfigError(f"{where} is a {type(found).__name__}, not a class")
    missing = [name for name in _REQUIRED if inspect.getattr_static(found, name, None) is None]
    if missing:
        raise ConfigError(
            f"{where} is no PromptGroupSampler: it lacks {', '.join(missing)}. "
            f"Derive it from fsm.samplers.protocol.GatedSampler, which has defaults, and write the rest"
        )
    return _construct(found, config.options, where)


def _construct(found: type[Any], options: dict[str, Any], where: str) -> PromptGroupSampler:
    signature = inspect.signature(found)
    try:
        signature.bind(**options)
    except TypeError as cause:
        raise ConfigError(
            f"{where} can't be made with {sorted(options)}: {cause}; its constructor takes {signature}"
        ) from cause
    sampler = found(**options)
    if not isinstance(sampler, PromptGroupSampler):
        raise ConfigError(f"{where} made a {type(sampler).__name__}, which is no PromptGroupSampler")
    labels = sampler.labels if isinstance(sampler, GatedSampler) else 1
    if not isinstance(labels, int) or labels < 1:
        raise ConfigError(f"{where}: labels is {labels!r}; allowed: a whole number of at least 1")
    return sampler


def traits(config: RunConfig, sampler: PromptGroupSampler) -> SamplerTraits:
    """What setup must know of a sampler."""
    accounting = sampler if isinstance(sampler, DropAccountingSampler) else GatedSampler()
    return SamplerTraits(
        name=sampler_name(config),
        uses_replacement_pool=accounting.uses_replacement_pool,
        closes_short_at_exhaustion=accounting.closes_short_at_exhaustion,
        is_on_policy=sampler.is_on_policy,
        required_buffer_capacity=sampler.required_buffer_capacity(config.grpo.num_prompts_per_step),
        stamps_bucket=isinstance(config.async_rl.sampler, WeightFifoConfig),
    )
