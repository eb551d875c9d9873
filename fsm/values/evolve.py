"""A faster `_replace`: a function that puts new values into given fields of a NamedTuple.

It is generated, since `_replace` goes through keywords, a mapping and `_make`; this is one tuple display.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T", bound=tuple[object, ...])


def evolver(cls: type[T], *fields: str) -> Callable[..., T]:
    """`f(value, *news)`: `value`, of the NamedTuple `cls`, with `news` in `fields`, in that order."""
    names: tuple[str, ...] = cls._fields  # type: ignore[attr-defined]  # a NamedTuple's own
    unknown = set(fields) - set(names)
    if unknown or len(set(fields)) != len(fields):
        raise ValueError(f"{cls.__name__} has the fields {names}, asked for {fields}")
    places = ", ".join(name if name in fields else f"value[{index}]" for index, name in enumerate(names))
    scope: dict[str, object] = {"new": tuple.__new__, "cls": cls}
    exec(f"def evolve(value, {', '.join(fields)}):\n    return new(cls, ({places},))", scope)
    evolve: Callable[..., T] = scope["evolve"]  # type: ignore[assignment]  # defined by the line above
    return evolve
