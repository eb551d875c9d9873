"""What is wrong with a configuration, in words: the key, what was given, what is allowed.

pydantic finds the problems, and this puts them into words. It knows blocks only as pydantic models, so it speaks of the
runtime's blocks in the same way.
"""

import difflib
import re
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

Model = type[BaseModel]

UNIONS = (Union, types.UnionType)
NUMBER = r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?"


class Place(NamedTuple):
    """A place in the configuration."""

    path: str
    """Dotted, as the user would write it: async_rl.sampler.name."""
    parent: str
    """The path without its last key."""
    owner: Model | None
    """The block that the last key is in; None if the place is in no block."""
    owner_words: str
    """That block in words: async_rl.rollout_failure, the windowed sampler."""
    shape: Any
    """The annotation of the last key; None for an unknown key."""
    constraints: tuple[Any, ...]
    """The bounds of the annotation."""
    description: str
    """What the last key is, in a sentence; empty where it has no description."""


def problems(error: ValidationError, model: Model, foreign_keys: Mapping[str, str]) -> list[str]:
    """One sentence for each thing that is wrong, in the order in which pydantic found them.

    `foreign_keys` says what another framework's keys are here (`RunConfig.foreign_keys`).
    """
    found = [_problem(each, model, foreign_keys) for each in error.errors(include_url=False)]
    return list(dict.fromkeys(found))  # a plain union reports each of its branches


def given_as(value: object) -> str:
    """A value as the user wrote it, with its kind where that is not obvious."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return f'the text "{value}"' if len(value) <= 60 else f'the text "{value[:60]}…"'
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    return f"{value!r} ({type(value).__name__})"


def allowed_as(shape: Any, constraints: Sequence[Any] = ()) -> str | None:
    """What an annotation allows, in words; None where there are no words for it."""
    origin, arguments = get_origin(shape), get_args(shape)
    if origin is Annotated:
        inner, *beside = arguments
        bounds = [each for one in beside for each in (one.metadata if isinstance(one, FieldInfo) else [one])]
        return allowed_as(inner, (*constraints, *bounds))
    if origin in UNIONS:
        parts = [allowed_as(part, constraints) for part in arguments]
        return _or(dict.fromkeys(part for part in parts if part)) if all(parts) else None
    if origin is Literal:
        return _or(value if isinstance(value, str) else given_as(value) for value in arguments)
    if shape is int or shape is float:
        return ("a whole number" if shape is int else "a number") + _bounds(constraints)
    if isinstance(shape, type) and issubclass(shape, BaseModel):
        return "a mapping of its keys"
    if origin in (dict, Mapping):
        return "a mapping"
    if origin in (list, tuple, set, frozenset):
        return "a list"
    words = {bool: "true or false", str: "text", Path: "a path", types.NoneType: "null"}
    return words.get(shape)


def _bounds(constraints: Sequence[Any]) -> str:
    words = {"gt": "above", "ge": "of at least", "lt": "below", "le": "at most"}
    bounds = [
        f"{word} {getattr(constraint, name)}"
        for name, word in words.items()
        for constraint in constraints
        if getattr(constraint, name, None) is not None
    ]
    return " " + " and ".join(bounds) if bounds else ""


def _or(words: Iterable[str]) -> str:
    *others, last = words
    return f"{', '.join(others)} or {last}" if others else last


def nearest(word: str, known: Sequence[str], otherwise: str) -> str:
    """Which known word may be meant, as a question; `otherwise` where none is near."""
    near = nearest_of(word, known)
    return otherwise if near is None else f"did you mean {near}?"


def nearest_of(word: str, known: Iterable[str], alike: float = 0.66) -> str | None:
    """The known word that this one may be misspelt for; None if none is near.

    alike: the least likeness of the two, by difflib. At 0.66 about a third of the letters may differ.
    """
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=alike)
    return near[0] if near else None


def _problem(error: Any, model: Model, foreign_keys: Mapping[str, str]) -> str:
    kind, given, location = error["type"], error["input"], error["loc"]
    if location and location[-1] == "[key]":  # of a mapping with free keys: pydantic names the key before
        return f"{_place(model, location[:-2]).path} has the key {given_as(given)}; allowed: text"
    place = _place(model, location)
    path = place.path or "the configuration"
    if kind in ("extra_forbidden", "invalid_key"):
        if kind == "extra_forbidden":
            return _unknown_key(place, location[-1], given, model, foreign_keys)
        return _unknown_key(place, given, None, model, foreign_keys)
    if kind == "missing":
        return f"{path} is missing; allowed: {_allowed(place)}{_meaning(place)}{_misspelt(place, given)}"
    if kind in ("union_tag_not_found", "union_tag_invalid"):
        return _unknown_tag(place, str(error["ctx"]["discriminator"]).strip("'"), given)
    if kind in ("value_error", "assertion_error"):
        reason = error["ctx"]["error"]
        return f"{path}: {reason}" if isinstance(given, Mapping) else f"{path} is {given_as(given)}; {reason}"
    return f"{path} is {given_as(given)}; allowed: {_allowed(place) or error['msg']}{_hint(place, given)}"


def _allowed(place: Place) -> str | None:
    return allowed_as(place.shape, place.constraints)


def _hint(place: Place, given: object) -> str:
    """What the user most likely meant."""
    blocks = list(models_in(place.shape))
    if given is None and blocks:
        return " (leave the key out for its defaults)"
    if not isinstance(given, str):
        return ""
    if "${" in given:
        return " (interpolation is resolved by `evenstep migrate`)"
    tagged_by = [name for block in blocks for name in block.model_fields if given in tags_of(block, name)]
    if tagged_by:
        return f" (as in {{{tagged_by[0]}: {given}}})"
    if (_allowed(place) or "").startswith(("a number", "a whole number")) and re.fullmatch(NUMBER, given):
        return " (without quotes)"
    return ""


def _unknown_key(place: Place, key: object, given: object, model: Model, foreign_keys: Mapping[str, str]) -> str:
    path = f"{place.parent}.{_as_key(key)}" if place.parent else _as_key(key)
    said = f"{path} is not a known key" + (f" of {place.owner_words}" if place.owner_words else "")
    if path in foreign_keys:
        inside = _foreign_inside(path, given, foreign_keys)
        left = len(inside) - _MOST_KEYS
        more = f"; and {left} more key{'' if left == 1 else 's'}" if left > 0 else ""
        return "; ".join([said, *(inside[:_MOST_KEYS] or [foreign_keys[path]])]) + more
    places: dict[Model, str] = {}
    for block, words in _blocks(model):
        places.setdefault(block, words)  # a block may occur twice
    elsewhere = [words for block, words in places.items() if key in block.model_fields]
    theirs = foreign_keys.get(f"**.{key}" if elsewhere else f"*.{key}")
    if theirs is not None:
        return f"{said}; {theirs}" + (f"; it is a key of {_or(elsewhere)}" if elsewhere else "")
    if elsewhere:
        said += f"; it is a key of {_or(elsewhere)}"
    known = list(place.owner.model_fields) if place.owner else []
    known_keys = ", ".join(known)
    return f"{said}; {nearest(str(key), known, f'the known keys are {known_keys}')}"


def _foreign_inside(path: str, given: object, foreign_keys: Mapping[str, str]) -> list[str]:
    """What is said of the keys in a block of another framework."""
    if not isinstance(given, Mapping):
        return [foreign_keys[path]] if path in foreign_keys else []
    return [said for key, inner in given.items() for said in _foreign_inside(f"{path}.{key}", inner, foreign_keys)]


_MOST_KEYS = 4
"""Of a block of another framework: how many keys a message explains."""


def _as_key(key: object) -> str:
    return key if isinstance(key, str) else given_as(key)


def _unknown_tag(place: Place, discriminator: str, given: object) -> str:
    known = [str(tag) for block in models_in(place.shape) for tag in tags_of(block, discriminator)]
    key = f"{place.path}.{discriminator}"
    if not isinstance(given, Mapping) or discriminator not in given:
        return f"{key} is missing; allowed: {_or(known)}"
    meant = nearest(str(given[discriminator]), known, "")
    return f"{key} is {given_as(given[discriminator])}; allowed: {_or(known)}{meant and f'; {meant}'}"


def _meaning(place: Place) -> str:
    said = place.description.rstrip(".")
    return f" ({said[0].lower()}{said[1:]})" if said else ""


def _misspelt(place: Place, given: object) -> str:
    """For a missing key: a key that was given and may have been meant as it."""
    wanted = place.path.removeprefix(f"{place.parent}.")
    known = place.owner.model_fields if place.owner else {}
    others: list[str] = []
    if isinstance(given, Mapping):
        for keys in (given, given.get("options")):
            others += [str(key) for key in keys if key not in known] if isinstance(keys, Mapping) else []
    near = nearest_of(wanted, others)
    return "" if near is None else f"; was it meant by {near}?"


def _place(model: Model, location: Sequence[int | str]) -> Place:
    """Follow pydantic's location. The names of union members, which no user wrote, are left out."""
    path, parent, words, description = "", "", "", ""  # of the shape reached so far
    shape: Any = model
    constraints: tuple[Any, ...] = ()
    owner, owner_words = None, ""
    for key in location:
        models = list(models_in(shape))
        if _is_choice(shape):  # the key names the member: by its tag, or by its class
            chosen = [each for each in models if key in (*tags_of(each), each.__name__)]
            if chosen:
                shape, words = chosen[0], f"the {key} {path.rpartition('.')[2]}"
        elif len(models) == 1 and not _is_container(shape):
            owner, owner_words = models[0], words
            parent, path = path, f"{path}.{key}" if path else str(key)
            field = owner.model_fields.get(str(key)) or FieldInfo()
            shape, constraints = field.annotation, tuple(field.metadata)
            words, description = path, field.description or ""
        else:
            owner, owner_words = None, words
            parent, path = path, f"{path}[{key}]" if isinstance(key, int) else f"{path}.{key}"
            shape, constraints = _item_of(shape), ()
            words, description = path, ""
    return Place(path, parent, owner, owner_words, shape, constraints, description)


def _bare(shape: Any) -> Any:
    """The annotation without metadata and without null."""
    while get_origin(shape) is Annotated:
        shape = get_args(shape)[0]
    if get_origin(shape) in UNIONS:
        others = [part for part in get_args(shape) if part is not types.NoneType]
        if len(others) == 1:
            return _bare(others[0])
    return shape


def _is_choice(shape: Any) -> bool:
    return get_origin(_bare(shape)) in UNIONS


def _is_container(shape: Any) -> bool:
    return get_origin(_bare(shape)) in (dict, Mapping, list, tuple, set, frozenset)


def _item_of(shape: Any) -> Any:
    arguments = get_args(_bare(shape))
    if not arguments:
        return None
    return arguments[-1] if get_origin(_bare(shape)) in (dict, Mapping) else arguments[0]


def models_in(shape: Any) -> Iterator[Model]:
    """The blocks in an annotation."""
    if isinstance(shape, type) and issubclass(shape, BaseModel):
        yield shape
    elif get_origin(shape) is not Literal:
        for part in get_args(shape):
            yield from models_in(part)


def tags_of(block: Model, discriminator: str | None = None) -> Iterator[Any]:
    """The names by which a union tells this block from the others."""
    for name, field in block.model_fields.items():
        if discriminator in (None, name) and get_origin(field.annotation) is Literal:
            yield from get_args(field.annotation)


def _blocks(model: Model, path: str = "") -> Iterator[tuple[Model, str]]:
    """Every block of the tree, with its place in words."""
    yield model, path or "the configuration itself"
    for name, field in model.model_fields.items():
        inner = list(models_in(field.annotation))
        for block in inner:
            tags = list(tags_of(block)) if len(inner) > 1 else []
            below = f"the {tags[0]} {name}" if tags else f"{path}.{name}" if path else name
            yield from _blocks(block, below)
