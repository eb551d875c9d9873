"""Hydra's lists of defaults, as far as verl's configurations use them.

An entry is `_self_`, a file's name, or a group with an option, `group@package: option`. A group is a folder next to the
file, or from the root of the configurations if it begins with `/`; the package is where the option's keys go.
"""

import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from fsm.errors import ConfigError
from runtime.migrate.files import document_in, text_of


class _Entry(NamedTuple):
    file: str
    """From a root, without `.yaml`."""
    package: str
    """Dotted; empty for the root of the document."""


def needs_hydra(document: dict[str, Any]) -> bool:
    """Whether `defaults` is a list of Hydra's, and not of files."""
    defaults = document.get("defaults")
    entries = defaults if isinstance(defaults, list) else []
    return any(not isinstance(each, str) or not each.endswith((".yaml", ".yml")) for each in entries)


def composed(path: Path, omegaconf: Any) -> tuple[Any, list[str]]:
    """The document (DictConfig), and the entries whose file is not here. Raises ConfigError for a circle."""
    config = omegaconf.OmegaConf.create(document_in(path))
    roots = [path.resolve().parent, *_search_path(config, path.resolve().parent)]
    not_found: list[str] = []
    whole = _compose(_Entry(path.resolve().stem, ""), roots, omegaconf, not_found, ())
    whole.pop("hydra", None)
    return whole, not_found


def _compose(entry: _Entry, roots: list[Path], omegaconf: Any, not_found: list[str], above: tuple[_Entry, ...]) -> Any:
    file = next((found for root in roots if (found := root / f"{entry.file}.yaml").is_file()), None)
    create = omegaconf.OmegaConf.create
    if file is None:
        not_found.append(entry.file)
        return create({})
    if entry in above:
        raise ConfigError(f"{file}: its defaults lead back to it")
    document = document_in(file)
    defaults = document.pop("defaults", None) or []
    if not isinstance(defaults, list) or not all(isinstance(each, str | dict) for each in defaults):
        raise ConfigError(
            f"{file}: defaults is {defaults!r:.100}; allowed: a list of files and of groups with an option"
        )
    own = create(document)
    package = _package_of(file, entry.package)
    whole = create({})
    listed = [*defaults, *([] if "_self_" in defaults else ["_self_"])]
    for each in listed:
        if each == "_self_":
            whole = omegaconf.OmegaConf.merge(whole, _at(package, own, omegaconf))
        else:
            for below in _entries(each, entry.file, package):
                part = _compose(below, roots, omegaconf, not_found, (*above, entry))
                whole = omegaconf.OmegaConf.merge(whole, part)
    return whole


def _entries(entry: Any, file: str, package: str) -> Iterator[_Entry]:
    """The files that one entry of a list names."""
    folder = PurePosixPath(file).parent
    if isinstance(entry, str):
        name, _at_sign, given = entry.partition("@")
        yield _Entry(_normal(folder, name), _joined(package, given))
        return
    for key, option in entry.items():
        group, at_sign, given = re.sub(r"^(optional|override)\s+", "", str(key)).partition("@")
        place = given if at_sign else group.replace("../", "").strip("/").replace("/", ".")
        for each in [] if option is None else [option] if isinstance(option, str) else list(option):
            yield _Entry(_normal(folder, f"{group}/{each}"), _joined(package, place))


def _normal(folder: PurePosixPath, name: str) -> str:
    """A file from the root: `/name` is from it already, others are from the folder."""
    parts: list[str] = [] if name.startswith("/") else list(folder.parts)
    for part in PurePosixPath(name.lstrip("/")).parts:
        parts = parts[:-1] if part == ".." else [*parts, part]
    return "/".join(parts)


def _joined(package: str, given: str) -> str:
    if given == "_global_":
        return ""
    return ".".join(each for each in (package, "" if given == "_here_" else given) if each)


def _package_of(file: Path, package: str) -> str:
    """The package that the file itself names in a comment, or the given one."""
    found = re.match(r"#\s*@package\s+(\S+)", text_of(file))
    return package if found is None else "" if found[1] == "_global_" else found[1]


def _at(package: str, config: Any, omegaconf: Any) -> Any:
    for key in reversed(package.split(".") if package else []):
        config = omegaconf.OmegaConf.create({key: config})
    return config


def _search_path(config: Any, folder: Path) -> Iterator[Path]:
    """`hydra.searchpath`: folders from here or from above the file, and folders of installed packages."""
    hydra = config.get("hydra") or {}
    for each in hydra.get("searchpath") or []:
        kind, _slashes, place = str(each).partition("://")
        if kind == "file":
            yield from (base / place for base in (Path.cwd(), folder, *folder.parents))
        elif kind == "pkg":
            top, *below = place.split(".")
            spec = find_spec(top) if top else None
            yield from (Path(base, *below) for base in (spec.submodule_search_locations or [] if spec else []))
