"""A configuration of another framework as it is used: with the files that it builds on, and its values resolved."""

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from fsm.config.strict import load_yaml
from fsm.errors import ConfigError
from runtime.migrate.files import document_in, text_of, with_text_keys
from runtime.migrate.hydra import composed, needs_hydra
from runtime.migrate.rows import Unresolved, put

_RESOLVERS = {
    "add": lambda *numbers: sum(numbers),
    "sub": lambda one, other: one - other,
    "mul": lambda one, other: one * other,
    "div": lambda one, other: one / other,
    "max": lambda *numbers: max(numbers),
    "min": lambda *numbers: min(numbers),
}
"""Functions of interpolations: those that NeMo-RL registers, and their like."""


class TheirFile(NamedTuple):
    """What a file says."""

    document: dict[str, Any]
    """Values may be `Unresolved`."""
    not_found: tuple[str, ...]
    """Entries of `defaults` whose file is not here."""


def read_given(path: Path, overrides: Sequence[str]) -> TheirFile:
    """The document of a file, and of the files that its `defaults` name. `overrides` are `key=value`, as in Hydra.

    Raises ConfigError.
    """
    document, text = document_in(path), text_of(path)
    changed = [_override(each) for each in overrides]
    if "defaults" not in document and not any(mark in f"{text}{overrides}" for mark in ("${", "???")):
        for key, value in changed:
            put(document, key, value)
        return TheirFile(document, ())
    omegaconf = _omegaconf(path)
    try:
        config, not_found = composed(path, omegaconf) if needs_hydra(document) else (_chained(path, omegaconf, ()), ())
        for key, value in changed:
            omegaconf.OmegaConf.update(config, key, value, force_add=True)
        return TheirFile(_resolved(config, omegaconf), tuple(not_found))
    except (omegaconf.errors.OmegaConfBaseException, yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be put together: {str(error) or type(error).__name__}") from None


def _override(text: str) -> tuple[str, Any]:
    key, equals, value = text.lstrip("+").partition("=")
    if not equals or not key:
        raise ConfigError(f"{text}: allowed is key=value, as in actor_rollout_ref.rollout.n=8")
    try:
        return key, with_text_keys(load_yaml(value))
    except yaml.YAMLError:
        return key, value


def _omegaconf(path: Path) -> Any:
    """The package, with the functions of interpolations. Raises ConfigError if it is not installed."""
    try:
        omegaconf = importlib.import_module("omegaconf")
    except ImportError:
        raise ConfigError(
            f"{path} has `defaults` or interpolation, which the package omegaconf resolves; install it in "
            "your clone: pip install -c constraints.txt -e '.[migrate]'"
        ) from None
    for name, function in _RESOLVERS.items():
        omegaconf.OmegaConf.register_resolver(name, function, replace=True)
    return omegaconf


def _chained(path: Path, omegaconf: Any, above: tuple[Path, ...]) -> Any:
    """NeMo-RL's chain: `defaults` names files by path from this one, and this one's keys go over theirs."""
    path = path.resolve()
    if path in above:
        raise ConfigError(f"{path}: its defaults lead back to it: {' → '.join(str(each) for each in (*above, path))}")
    if not path.is_file():
        found = "is a directory: name a file in it" if path.is_dir() else "is not there"
        raise ConfigError(f"{above[-1] if above else path}: defaults names {path}, which {found}")
    document = document_in(path)
    defaults = document.pop("defaults", None) or []
    parents = [defaults] if isinstance(defaults, str) else defaults
    if not isinstance(parents, list) or not all(isinstance(parent, str) for parent in parents):
        raise ConfigError(f"{path}: defaults is {defaults!r:.100}; allowed: the path of a file, or a list of them")
    config = omegaconf.OmegaConf.create(document)
    whole = omegaconf.OmegaConf.create({})
    for parent in parents:
        whole = _over(whole, _chained(path.parent / parent, omegaconf, (*above, path)), omegaconf)
    return _over(whole, config, omegaconf)


def _over(below: Any, above: Any, omegaconf: Any) -> Any:
    """`above` over `below`; a block with `_override_: true` replaces the one below it."""
    for key in list(above):
        if omegaconf.OmegaConf.is_missing(above, key) or omegaconf.OmegaConf.is_interpolation(above, key):
            continue
        block = above[key]
        if isinstance(block, omegaconf.DictConfig) and block.pop("_override_", False):
            below.pop(key, None)
    return omegaconf.OmegaConf.merge(below, above)


def _resolved(config: Any, omegaconf: Any) -> Any:
    """Plain Python values; what cannot be found out is `Unresolved`."""
    if isinstance(config, omegaconf.DictConfig):
        return {str(key): _value(config, key, omegaconf) for key in config}
    if isinstance(config, omegaconf.ListConfig):
        return [_value(config, place, omegaconf) for place in range(len(config))]
    return config


def _value(config: Any, key: Any, omegaconf: Any) -> Any:
    if omegaconf.OmegaConf.is_missing(config, key):
        return Unresolved("the file has ??? in its place: it must be given")
    try:
        value = config[key]
    except omegaconf.errors.OmegaConfBaseException as error:
        return Unresolved(f"it cannot be resolved: {str(error).splitlines()[0]}")
    return _resolved(value, omegaconf)
