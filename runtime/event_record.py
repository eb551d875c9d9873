"""Events and effects as plain JSON, and back. One object each: its type, and its fields by name.

{"type": "GroupFinished", "attempt": {"prompt": 5, "dispatch": 7, "incarnation": 0}, "zero_variance": false, …}
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, cast, get_args

from fsm.effects import Effect
from fsm.events import Attempt, Event, FailureKind, GroupRecord

Json = dict[str, Any]
EVENTS: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(Event)}

_FIELDS: dict[str, Callable[[Any], Any]] = {
    "attempt": lambda given: Attempt(**given),
    "kind": FailureKind,
    "record": lambda given: None if given is None else GroupRecord(**given),
}
"""How a field of an event is read that is not a number, text or flag."""


def to_json(given: Event | Effect) -> Json:
    """An event or an effect as a JSON object."""
    return {"type": type(given).__name__, **_fields(given)}


def effects_to_json(effects: Iterable[Effect]) -> list[Json]:
    """The effects of one event, in order."""
    return [to_json(effect) for effect in effects]


def event_from_json(given: Json) -> Event:
    """The event that `to_json` wrote. Raises ValueError for one that this evenstep does not know."""
    kind = EVENTS.get(given.get("type", ""))
    if kind is None:
        raise ValueError(f"there is no event {given.get('type')!r}; known are {', '.join(sorted(EVENTS))}")
    try:
        fields = {name: _FIELDS.get(name, _same)(value) for name, value in given.items() if name != "type"}
        return cast(Event, kind(**fields))
    except (TypeError, ValueError) as error:
        raise ValueError(f"not a {kind.__name__} of this evenstep: {error}") from error


def _same(value: Any) -> Any:
    return value


_ATOMS = frozenset({int, str, bool, float, type(None)})


def _fields(record: Any) -> Json:
    return {
        name: value if type(value) in _ATOMS else _plain(value)
        for name, value in zip(record._fields, record, strict=True)
    }


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        if hasattr(value, "_fields"):
            return _fields(value)
        return [item if type(item) in _ATOMS else _plain(item) for item in value]
    if isinstance(value, Exception):
        return {"type": type(value).__name__, "message": str(value)}
    if isinstance(value, Enum):
        return value.value
    raise TypeError(f"{value!r} of type {type(value).__name__} has no place in an event log")
