"""What `evenstep check` is given: a run's YAML, a scenario file, or nothing, and perhaps another sampler."""

from __future__ import annotations

import copy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from fsm.config import RunConfig, parse_config
from fsm.errors import ConfigError
from fsm.samplers.loading import sampler_name
from fsm.setup import set_up
from fsm.strict_yaml import load_yaml
from runtime.settings import DEFAULT_RUN, Settings, read_document
from specs.bounds import Kept
from specs.scenario import scenario_config
from specs.scenario_file import ScenarioMistake, load_scenario

_LOW = 0.01
"""A fraction whose floor is one group, for any N up to 100."""


class Given(NamedTuple):
    """A configuration to check."""

    name: str
    """The file, or "the default run"."""
    config: RunConfig
    sampler: str
    num_prompts: int | None
    """Of an epoch; None where the file does not say."""
    kept: tuple[Kept, ...] = ()
    """What is checked otherwise than given, before anything is scaled."""


def read_given(path: Path | None, sampler: str | None, options: Sequence[str], *, check_setup: bool) -> Given:
    """Read it, and refuse what setup refuses. Raises ConfigError."""
    document = copy.deepcopy(DEFAULT_RUN) if path is None else read_document(path)
    model: type[RunConfig] = Settings
    num_prompts: int | None = None
    if path is not None and "config" in document:
        try:
            scenario = load_scenario(path)
        except ScenarioMistake as mistake:
            raise ConfigError(f"the scenario {path}: {mistake}") from None
        document, model = scenario_config(scenario.config), RunConfig
        num_prompts = scenario.num_prompts or None
    if sampler is not None:
        async_rl = document.setdefault("async_rl", {})
        if not isinstance(async_rl, dict):
            raise ConfigError(f"async_rl is {async_rl!r}, so it can be given no sampler; allowed: a mapping of keys")
        async_rl["sampler"] = _sampler_block(sampler, options)
    elif options:
        raise ConfigError(f"--sampler-option {options[0]} goes with --sampler module:ClassName")
    config = parse_config(document, model=model, check=check_setup)
    set_up(config, num_prompts or config.grpo.num_prompts_per_step, check=check_setup)
    name = "the default run" if path is None else str(path)
    kept: tuple[Kept, ...] = ()
    if not check_setup and _is_refused(config):
        config, kept = _without_floor(config)
    return Given(name, config, sampler_name(config), num_prompts, kept)


def _is_refused(config: RunConfig) -> bool:
    try:
        set_up(config, config.grpo.num_prompts_per_step)
    except ConfigError:
        return True
    return False


def _without_floor(config: RunConfig) -> tuple[RunConfig, tuple[Kept, ...]]:
    """With a floor of one group: a run that is stopped at its first loss (L6) never shows why setup refuses it."""
    given = config.async_rl.rollout_failure.min_step_batch_fraction
    document = config.model_dump(include={"grpo", "async_rl"})
    correction = config.loss_fn.use_importance_sampling_correction
    document["loss_fn"] = {"use_importance_sampling_correction": correction}
    document["async_rl"]["rollout_failure"]["min_step_batch_fraction"] = _LOW
    keeps = "setup refuses the run; a stop at the floor would hide why"
    note = Kept("async_rl.rollout_failure.min_step_batch_fraction", given, _LOW, keeps)
    return parse_config(document, check=False), (note,)


def _module_of(file: Path) -> str:
    """The module in a file, which can be imported then: by its path from here, or from its own folder."""
    here = Path.cwd()
    if file.is_relative_to(here):
        folder, parts = here, file.relative_to(here).with_suffix("").parts
    else:
        folder, parts = file.parent, (file.stem,)
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    return ".".join(parts)


def _sampler_block(target: str, options: Sequence[str]) -> dict[str, Any]:
    """The block of a custom sampler, from the command line."""
    place, _, class_name = target.rpartition(":")
    if place.endswith(".py"):
        file = Path(place)
        if not file.is_file():
            raise ConfigError(
                f"--sampler {target}: there is no file {file}; allowed: module:ClassName, or a file's path"
            )
        place = _module_of(file.resolve())
    block: dict[str, Any] = {"name": "custom", "target": f"{place}:{class_name}"}
    for option in options:
        key, equals, text = option.partition("=")
        if not equals or not key:
            raise ConfigError(f"--sampler-option {option}: allowed is key=value")
        try:
            block[key] = load_yaml(text)
        except yaml.YAMLError as error:
            raise ConfigError(f"--sampler-option {option}: the value is not YAML: {error}") from None
    return block
