"""Every kind of event, change, effect and note: its name, its code on disk, its fields, and how it is read and written.

On disk a value is an array: its code, then its fields in order. Inside it an `Attempt`, `GroupClass`, `GroupRecord` or
`SelectedGroup` is an array of its fields; attempts and classes leave out trailing defaults (incarnation 0, no stamp).
Codes and fields are a file format: add kinds at the end, and never change those that exist. The header of each file
carries the table, so that a file explains itself.
"""

import dataclasses
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from fsm import effects, errors, events
from fsm.effects import ClearReason, SelectedGroup
from fsm.errors import EvenstepError
from fsm.events import Attempt, FailureKind, GroupRecord
from fsm.rules import changes
from fsm.state import GroupClass
from runtime.metrics.step_record import StepRecord
from runtime.trace import notes

Json = dict[str, Any]

CODES: Mapping[type[Any], str] = {
    events.Begin: "B", events.GroupFinished: "GF", events.GroupFailed: "GX", events.BackoffOver: "BO",
    events.ChunkTrained: "CT", events.ClaimUnreadable: "CU", events.StepFinished: "SF",
    events.SyncFinished: "YF", events.StallTimeout: "ST", events.DeadEndReached: "DE",
    changes.PromptsHeldBack: "hb", changes.BatchAdmitted: "ba", changes.GateMoved: "gm",
    changes.QueueDispatched: "qd", changes.WaitingStarted: "ws", changes.GroupCommitted: "gc",
    changes.RetryWaits: "rw", changes.BackoffEnded: "be", changes.GroupFiltered: "gf",
    changes.GroupDropped: "gd", changes.GroupReplaced: "gr", changes.GroupLost: "gl", changes.ClaimFailed: "cf",
    changes.ChunkSelected: "cs", changes.ChunkAccumulated: "ca", changes.StepFinishing: "sf",
    changes.StepClosed: "sc", changes.WeightsSynced: "wy", changes.GroupsEvicted: "ge",
    changes.GroupsAborted: "ga", changes.SourceExhausted: "se", changes.RunResumed: "rr",
    changes.RunRegenerated: "rg", changes.DataReplaced: "dr", changes.RunCompleted: "rc",
    changes.RunStopped: "rs",
    effects.StartRollout: "SR", effects.AbortRollout: "AR", effects.StartBackoff: "SB",
    effects.TrainChunk: "TC", effects.FinishStep: "FS", effects.SyncWeights: "SW",
    effects.ClearRows: "CR", effects.Completed: "CO", effects.Stopped: "SP",
    notes.AttemptsPlaced: "AP", notes.WorkerStarted: "WS", notes.WorkerDied: "WD", notes.CallBegan: "CB",
    notes.CallEnded: "CE", notes.GroupReceived: "GR", notes.AnswerWasLate: "LA", notes.Validated: "VD",
    notes.Checkpointed: "CK", notes.NoProgress: "NP", notes.NotWritten: "NW", notes.RunEnded: "RE",
    notes.TraceClosed: "TE", StepRecord: "SM", notes.WorkerQuarantined: "WQ", notes.ActorRestarted: "AD",
}  # fmt: skip
"""Events, changes, effects and notes, in this order."""
EFFECT_CODES: Mapping[type[Any], str] = {**CODES, changes.StepClosed: "CS"}
"""The codes of effects: StepClosed is a change and an effect, with a code for each."""
BY_CODE: Mapping[str, type[Any]] = {code: kind for codes in (CODES, EFFECT_CODES) for kind, code in codes.items()}


def name_of(kind: type[Any]) -> str:
    """The name of a kind in files, options and tables. LateAnswer is also an error class, so its note has another."""
    return "LateAnswer" if kind is notes.AnswerWasLate else kind.__name__


def mark_of(kind: type[Any]) -> bytes:
    """The bytes that a value of this kind begins with on disk, and that nothing else contains."""
    return f'["{CODES[kind]}"'.encode()


def fields_of(kind: type[Any]) -> tuple[str, ...]:
    """The names of a kind's fields, in order."""
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    names: tuple[str, ...] = kind._fields
    return names


BY_NAME: Mapping[str, type[Any]] = {name_of(kind): kind for kind in CODES}
FIELDS: Mapping[str, tuple[str, ...]] = {code: fields_of(kind) for code, kind in BY_CODE.items()}
PARTS: Mapping[str, tuple[str, ...]] = {
    part.__name__: fields_of(part) for part in (Attempt, GroupClass, GroupRecord, SelectedGroup)
}
TABLE: Json = {
    **{code: [name_of(kind), list(FIELDS[code])] for code, kind in BY_CODE.items()},
    **{name: list(fields) for name, fields in PARTS.items()},
}
"""The table in the header of a trace."""

_ERRORS: Mapping[str, type[EvenstepError]] = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, EvenstepError)
}


def _error(given: Any) -> Any:
    """Events hold an error's text; RunStopped and Stopped hold an error, which is written with its type."""
    if not isinstance(given, dict):
        return given
    return _ERRORS.get(given["type"], EvenstepError)(given["message"])


def _attempt(given: list[Any]) -> Attempt:
    return Attempt._make(given) if len(given) == 3 else Attempt(*given)


_group_class = lru_cache(maxsize=1024, typed=True)(GroupClass)
"""Many records name the same few classes."""


def _class(given: list[Any]) -> GroupClass:
    return _group_class(*given)


_READ: Mapping[str, Callable[[Any], Any]] = {
    "attempt": _attempt,
    "attempts": lambda given: tuple([_attempt(attempt) for attempt in given]),
    "record": lambda given: None if given is None else GroupRecord._make(given),
    "group_class": _class,
    "before": _class,
    "after": _class,
    "picks": lambda given: tuple([(_class(group_class), groups) for group_class, groups in given]),
    "groups": lambda given: given if type(given) is int else tuple([SelectedGroup._make(group) for group in given]),
    "kind": FailureKind,
    "why": ClearReason,
    "prompts": tuple,
    "failures": tuple,
    "error": _error,
}
"""By field, how it is read. Numbers, texts and flags are themselves."""
_NO_CLASS = GroupClass()


@lru_cache(maxsize=1024)
def _short_class(group_class: GroupClass) -> tuple[int, ...]:
    length = len(group_class)
    while length and group_class[length - 1] == _NO_CLASS[length - 1]:
        length -= 1
    return group_class[:length]


def _short_attempt(attempt: Attempt) -> tuple[int, ...]:
    return attempt if attempt[2] else attempt[:2]


_WRITE: Mapping[str, Callable[[Any], Any]] = {
    "attempt": _short_attempt,
    "attempts": lambda attempts: [_short_attempt(attempt) for attempt in attempts],
    "group_class": _short_class,
    "before": _short_class,
    "after": _short_class,
    "picks": lambda picks: [(_short_class(group_class), groups) for group_class, groups in picks],
}
"""By field, how trailing defaults are left out."""
_Converters = tuple[tuple[int, Callable[[Any], Any]], ...]


def _by_place(fields: tuple[str, ...], convert: Mapping[str, Callable[[Any], Any]], first: int) -> _Converters:
    return tuple((place, convert[name]) for place, name in enumerate(fields, first) if name in convert)


GROWN = tuple(CODES[kind] for kind in (StepRecord, notes.Validated))
"""Codes of kinds that have got fields at their end, with defaults: an older trace has the first of them."""


def _with_defaults(kind: type[Any]) -> Callable[[Any], Any]:
    """How a kind is made that has got fields since its first traces: they have defaults, which `_make` ignores."""
    return lambda values: kind(*values)


_READERS: Mapping[str, tuple[Callable[[Any], Any], _Converters]] = {
    code: (
        _with_defaults(kind) if code in GROWN else kind._make,
        _by_place(FIELDS[code], _READ, 0),
    )
    for code, kind in BY_CODE.items()
}
_WRITERS: Mapping[str, _Converters] = {code: _by_place(fields, _WRITE, 1) for code, fields in FIELDS.items()}


def read_value(given: list[Any]) -> Any:
    """The event, change, effect or note that `given` was written from. Raises ValueError."""
    try:
        make, readers = _READERS[given[0]]
        values = given[1:]
        for place, read in readers:
            if place < len(values):
                values[place] = read(values[place])
        return make(values)
    except (KeyError, TypeError, ValueError, IndexError) as cause:
        raise ValueError(
            f"{given!r} is not a value that this evenstep can read: {type(cause).__name__}: {cause}"
        ) from cause


def write_value(value: Any, codes: Mapping[type[Any], str] = CODES) -> list[Any]:
    """An event, change, effect or note as an array for the JSON encoder."""
    if type(value) is StepRecord:
        return ["SM", *(_four_digits(item) for item in value.as_json().values())]
    code = codes[type(value)]
    written = [code, *value]
    for place, shorten in _WRITERS[code]:
        written[place] = shorten(written[place])
    return written


def _four_digits(value: Any) -> Any:
    """A metric to four significant digits; metrics.jsonl has it in full."""
    if isinstance(value, dict):
        return {name: _four_digits(item) for name, item in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value


def plain(value: Any) -> Any:
    """A value with all names written out: an object with its `type`, parts as objects, errors as type and message."""
    kind = type(value)
    if kind is StepRecord:
        return {"type": kind.__name__, **value.as_json()}
    if kind in CODES:
        names = FIELDS[CODES[kind]]
        return {"type": name_of(kind), **{name: plain(item) for name, item in zip(names, value, strict=True)}}
    if isinstance(value, Exception):
        return {"type": kind.__name__, "message": str(value)}
    if isinstance(value, tuple):
        if kind.__name__ in PARTS:
            return {name: plain(item) for name, item in zip(PARTS[kind.__name__], value, strict=True)}
        return [plain(item) for item in value]
    return value
