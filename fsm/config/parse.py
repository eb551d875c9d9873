"""The run configuration: one strict YAML document, checked as a whole before anything starts.

`parse_config` is the entry. The blocks are in `fsm.config.blocks`, what null stands for in `fsm.config.values`, which
keys must fit together in `fsm.config.refusals`.
"""

from collections.abc import Mapping
from typing import TypeVar, overload

from pydantic import ValidationError

from fsm.config.blocks import RunConfig
from fsm.config.refusals import refusals
from fsm.config.sampler_loading import traits_of
from fsm.config.wording import given_as, problems
from fsm.errors import ConfigError

Config = TypeVar("Config", bound=RunConfig)


@overload
def parse_config(mapping: object, *, check: bool = True) -> RunConfig: ...


@overload
def parse_config(mapping: object, *, model: type[Config], check: bool = True) -> Config: ...


def parse_config(mapping: object, *, model: type[RunConfig] = RunConfig, check: bool = True) -> RunConfig:
    """The configuration in a YAML document. Raises one ConfigError that lists everything that is wrong with it.

    An empty document (None) is all defaults. `check=False` skips the refusals of keys that don't fit together. For a
    custom sampler, those that depend on its class come when it is loaded (`fsm.config.setup.set_up`).
    """
    document = {} if mapping is None else mapping
    if not isinstance(document, Mapping):
        keys = ", ".join(model.model_fields)
        raise ConfigError(_listed([f"the configuration is {given_as(document)}; allowed: a mapping of {keys}"]))
    try:
        config = model.model_validate(dict(document))
    except ValidationError as error:
        found = problems(error, model, model.foreign_keys)
        raise ConfigError(_listed(found) + _if_many_are_foreign(found, model.foreign_keys)) from None
    if check:
        refuse_any(refusals(config, traits_of(config)))
    return config


def refuse_any(found: list[str]) -> None:
    """Raise one ConfigError that lists what was found, if anything was."""
    if found:
        raise ConfigError(_listed(found))


def _listed(found: list[str]) -> str:
    if len(found) == 1:
        return f"configuration refused: {found[0]}"
    return "\n  - ".join([f"configuration refused, {len(found)} problems:", *found])


_MANY = 3
"""Keys of another framework that make a file one of its files."""


def _if_many_are_foreign(found: list[str], foreign_keys: Mapping[str, str]) -> str:
    said = set(foreign_keys.values())
    foreign = sum(sentence in each for each in found for sentence in said)
    return f"\n  {foreign_keys['*']}" if foreign >= _MANY else ""
