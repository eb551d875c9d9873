"""The input of `evenstep check`: a run's YAML, a scenario file, or nothing; perhaps another sampler, and properties."""

import copy
import importlib
import importlib.util
import re
import sys
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from fsm.config.blocks import CustomConfig, RunConfig
from fsm.config.parse import parse_config
from fsm.config.sampler_loading import sampler_name
from fsm.config.setup import Setup, set_up
from fsm.config.strict import load_yaml
from fsm.errors import ConfigError
from fsm.events import GroupRecord
from fsm.machines.table import fire
from fsm.rules.laws import laws_of
from fsm.rules.sampler_calls import ask_label
from fsm.samplers.promises import NO_LIMIT, Promises, promises_of
from fsm.samplers.protocol import labelling
from runtime.settings import DEFAULT_RUN, Settings, read_document
from specs.check.scaling import ScaledOption
from specs.check.user_properties import load_properties
from specs.scenarios.file import ScenarioMistake, load_scenario
from specs.scenarios.run import scenario_config

_LOW = 0.01
"""A fraction whose floor is one group, for any N up to 100."""

_RECORDS = (GroupRecord(0, 16, 0.5, 0.5), GroupRecord(1, 16, 0.0, 0.0), GroupRecord(2, 8_192, 1.0, 0.0))
"""Typical groups: mixed rewards, none, and all; short and long."""


class Given(NamedTuple):
    """A configuration to check."""

    name: str
    """The file, or "the default run"."""
    config: RunConfig
    sampler: str
    num_prompts: int | None
    """Of an epoch; None if the file does not say."""
    read: tuple[Path, ...]
    """The files that it is read from: the configuration and, once loaded, the files of the user's code."""
    properties: tuple[str, ...] = ()
    """The user's own, as `module:name`."""
    promises: str | None = None
    """What a custom sampler promises, in words."""
    kept: tuple[ScaledOption, ...] = ()
    """Options that are checked at another value than given, apart from scaling."""


def read_given(
    path: Path | None, sampler: str | None, options: Sequence[str], properties: Sequence[str], *, check_setup: bool
) -> Given:
    """Read the input, and refuse what the configuration alone shows. Loads no user's code. Raises ConfigError."""
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
    name = "the default run" if path is None else str(path)
    own = tuple(_module_and_name("--property", target, "name") for target in properties)
    twice = next((target for target in own if own.count(target) > 1), None)
    if twice is not None:
        raise ConfigError(f"--property {twice} is given twice; keep one")
    return Given(name, config, sampler_name(config), num_prompts, () if path is None else (path,), own)


def load_given(given: Given, *, check_setup: bool) -> Given:
    """The same with the user's code loaded, which runs here for the first time.

    Raises ConfigError for what setup refuses, and SamplerError for a sampler that gives no label. A configuration that
    setup refuses is checked with a low floor.
    """
    config = given.config
    setup = set_up(config, given.num_prompts or config.grpo.num_prompts_per_step, check=check_setup)
    _ask_labels(setup)
    load_properties(given.properties)
    loaded = given._replace(read=(*given.read, *_files_of(given, type(setup.sampler))))
    if isinstance(config.async_rl.sampler, CustomConfig):
        loaded = loaded._replace(promises=_say_promises(promises_of(setup.sampler, setup.sampler_name)))
    if check_setup or not _is_refused(config):
        return loaded
    config, kept = _without_floor(config)
    return loaded._replace(config=config, kept=kept)


def _say_promises(promises: Promises) -> str:
    """Which promises the sampler is held to, and which it does not make."""
    made = {name: value for name, value in promises._asdict().items() if value is not None}
    said = ", ".join(f"{name} {_in_words(value)}" for name, value in made.items())
    silent = ", ".join(name for name in promises._fields if name not in made)
    return f"is held to its promises: {said or 'none'}" + (f"; it promises nothing about {silent}" if silent else "")


def _in_words(value: Enum | int) -> str:
    if isinstance(value, Enum):
        return str(value.value)
    return "no limit" if value == NO_LIMIT else str(value)


def _ask_labels(setup: Setup) -> None:
    """Ask for some labels: a check tries every label, and so never asks the sampler for one."""
    sampler = labelling(setup.sampler)
    if sampler is not None:
        laws = laws_of(setup.limits, setup.sampler, setup.sampler_name, fire)
        for record in _RECORDS:
            ask_label(laws, sampler, record)


def _is_refused(config: RunConfig) -> bool:
    try:
        set_up(config, config.grpo.num_prompts_per_step)
    except ConfigError:
        return True
    return False


def _without_floor(config: RunConfig) -> tuple[RunConfig, tuple[ScaledOption, ...]]:
    """A floor of one group: a run that is stopped at its first loss (L6) would never show why setup refuses it."""
    given = config.async_rl.rollout_failure.min_step_batch_fraction
    document = config.model_dump(include={"grpo", "async_rl"})
    correction = config.loss_fn.use_importance_sampling_correction
    document["loss_fn"] = {"use_importance_sampling_correction": correction}
    document["async_rl"]["rollout_failure"]["min_step_batch_fraction"] = _LOW
    keeps = "setup refuses the run; a stop at the floor would hide why"
    note = ScaledOption("async_rl.rollout_failure.min_step_batch_fraction", given, _LOW, keeps)
    return parse_config(document, check=False), (note,)


def _files_of(given: Given, sampler: type[object]) -> tuple[Path, ...]:
    """The files of the user's code: of the modules that are named, and of the one that has the sampler's class."""
    custom = given.config.async_rl.sampler
    modules = {target.partition(":")[0] for target in given.properties}
    if isinstance(custom, CustomConfig):
        modules |= {custom.target.partition(":")[0], sampler.__module__}
    files = (vars(sys.modules[module]).get("__file__") for module in modules)
    return tuple(Path(file) for file in files if file is not None)


def _module_and_name(option: str, target: str, name: str) -> str:
    """`module:name` of an option that may also name a file. Raises ConfigError."""
    place, _, named = target.rpartition(":")
    if not place or not named:
        builtin = "; a built-in sampler is named in the configuration, in async_rl.sampler.name"
        raise ConfigError(
            f"{option} {target}: allowed: module:{name}, or file.py:{name}{builtin if option == '--sampler' else ''}"
        )
    if place.endswith(".py"):
        file = Path(place)
        if not file.is_file():
            raise ConfigError(f"{option} {target}: there is no file {file}; allowed: module:{name}, or a file's path")
        place = _module_of(file.resolve(), f"{option} {target}")
    return f"{place}:{named}"


def _module_of(file: Path, given: str) -> str:
    """The module of a file, made importable: by its path from here, or from its own folder.

    Raises ConfigError if no module can have its name, or another one has it.
    """
    folder, parts = file.parent, [file.stem]
    if file.is_relative_to(Path.cwd()):
        from_here = list(file.relative_to(Path.cwd()).with_suffix("").parts)
        if all(part.isidentifier() for part in from_here):
            folder, parts = Path.cwd(), from_here
    if not file.stem.isidentifier():
        named = re.sub(r"\W", "_", file.stem)
        raise ConfigError(
            f"{given}: {file.stem} cannot be a module's name; rename the file: letters, digits and _, and no "
            f"digit first, as in {named if named.isidentifier() else f'sampler_{named}'}.py"
        )
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    found = None if parts[0] == "__main__" else importlib.util.find_spec(parts[0])
    is_package = len(parts) > 1
    places = [] if found is None else (found.submodule_search_locations or []) if is_package else [str(found.origin)]
    if (folder / parts[0] if is_package else file) not in [Path(place).resolve() for place in places]:
        other = "one that is loaded already" if found is None else f"that of {found.origin or ', '.join(places)}"
        raise ConfigError(
            f"{given}: its module would be {'.'.join(parts)}, but module {parts[0]} is {other}; "
            f"rename the {'folder' if is_package else 'file'}"
        )
    return ".".join(parts)


def _sampler_block(target: str, options: Sequence[str]) -> dict[str, Any]:
    target = _module_and_name("--sampler", target, "ClassName")
    given: dict[str, Any] = {}
    for option in options:
        key, equals, text = option.partition("=")
        if not equals or not key:
            raise ConfigError(f"--sampler-option {option}: allowed is key=value")
        if key in CustomConfig.model_fields:
            raise ConfigError(f"--sampler-option {option}: {key} is a key of the sampler's block, set by --sampler")
        if key in given:
            raise ConfigError(f"--sampler-option {option}: {key} is given twice; keep one")
        try:
            given[key] = load_yaml(text)
        except yaml.YAMLError as error:
            raise ConfigError(f"--sampler-option {option}: the value is not YAML: {error}") from None
    return {"name": "custom", "target": target, "options": given}
