"""Every kind of event, move, effect and note: its name, its code on disk, its fields, and how it is read back.

A value is written as an array: its code, then its fields in order; what it is made of (`Attempt`, `GroupClass`,
`GroupRecord`, `SelectedGroup`) as an array of its fields, where trailing defaults of attempts (incarnation 0) and
classes are left out. The header has this table, so that a file explains itself.
"""

from __future__ import annotations

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
    events.Begin: "B",
    events.GroupFinished: "GF",
    events.GroupFailed: "GX",
    events.BackoffOver: "BO",
    events.ChunkTrained: "CT",
    events.ClaimUnreadable: "CU",
    events.StepFinished: "SF",
    events.SyncFinished: "YF",
    events.StallTimeout: "ST",
    events.DeadEndReached: "DE",
    changes.PromptsHeldBack: "hb",
    changes.BatchAdmitted: "ba",
    changes.GateMoved: "gm",
    changes.QueueDispatched: "qd",
    changes.WaitingStarted: "ws",
    changes.GroupCommitted: "gc",
    changes.RetryWaits: "rw",
    changes.BackoffEnded: "be",
    changes.GroupFiltered: "gf",
    changes.GroupDropped: "gd",
    changes.GroupReplaced: "gr",
    changes.GroupLost: "gl",
    changes.ClaimFailed: "cf",
    changes.ChunkSelected: "cs",
    changes.ChunkAccumulated: "ca",
    changes.StepFinishing: "sf",
    changes.StepClosed: "sc",
    changes.WeightsSynced: "wy",
    changes.GroupsEvicted: "ge",
    changes.GroupsAborted: "ga",
    changes.SourceExhausted: "se",
    changes.RunResumed: "rr",
    changes.RunRegenerated: "rg",
    changes.DataReplaced: "dr",
    changes.RunCompleted: "rc",
    changes.RunStopped: "rs",
    effects.StartRollout: "SR",
    effects.AbortRollout: "AR",
    effects.StartBackoff: "SB",
    effects.TrainChunk: "TC",
    effects.FinishStep: "FS",
    effects.SyncWeights: "SW",
    effects.ClearRows: "CR",
    effects.Completed: "CO",
    effects.Stopped: "SP",
    notes.AttemptsPlaced: "AP",
    notes.WorkerStarted: "WS",
    notes.WorkerDied: "WD",
    notes.CallBegan: "CB",
    notes.CallEnded: "CE",
    notes.GroupReceived: "GR",
    notes.AnswerWasLate: "LA",
    notes.Validated: "VD",
    notes.Checkpointed: "CK",
    notes.NoProgress: "NP",
    notes.NotWritten: "NW",
    notes.RunEnded: "RE",
    notes.TraceClosed: "TE",
    StepRecord: "SM",
}
EFFECT_CODES: Mapping[type[Any], str] = {**CODES, changes.StepClosed: "CS"}
"""The codes of effects: StepClosed is a change and an effect, with a code for each."""
BY_CODE: Mapping[str, type[Any]] = {code: kind for codes in (CODES, EFFECT_CODES) for kind, code in codes.items()}
BY_NAME: Mapping[str, type[Any]] = {kind.__name__: kind for kind in CODES}


def fields_of(kind: type[Any]) -> tuple[str, ...]:
    """The names of a kind's fields, in order."""
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    names: tuple[str, ...] = kind._fields
    return names


FIELDS: Mapping[str, tuple[str, ...]] = {code: fields_of(kind) for code, kind in BY_CODE.items()}
PARTS: Mapping[str, tuple[str, ...]] = {
    part.__name__: fields_of(part) for part in (Attempt, GroupClass, GroupRecord, SelectedGroup)
}
TABLE: Json = {
    **{code: [kind.__name__, list(FIELDS[code])] for code, kind in BY_CODE.items()},
    **{name: list(fields) for name, fields in PARTS.items()},
}
"""The table as it is in the header."""


_ERRORS: Mapping[str, type[EvenstepError]] = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, EvenstepError)
}


def _error(given: Any) -> Any:
    """A plain text in events; in RunStopped and Stopped an error, which is written with its type."""
    if not isinstance(given, dict):
        return given
    return _ERRORS.get(given["type"], EvenstepError)(given["message"])


def _tuple(given: Any) -> Any:
    return tuple(given)


def _attempt(given: list[Any]) -> Attempt:
    return Attempt._make(given) if len(given) == 3 else Attempt(*given)


def _step_record(values: list[Any]) -> StepRecord:
    return StepRecord(*values)


_group_class = lru_cache(maxsize=1024, typed=True)(GroupClass)
"""There are few classes at a time, in many records."""
_READ: Mapping[str, Callable[[Any], Any]] = {
    "attempt": _attempt,
    "attempts": lambda given: tuple([_attempt(attempt) for attempt in given]),
    "record": lambda given: None if given is None else GroupRecord._make(given),
    "group_class": lambda given: _group_class(*given),
    "before": lambda given: _group_class(*given),
    "after": lambda given: _group_class(*given),
    "picks": lambda given: tuple([(_group_class(*group_class), groups) for group_class, groups in given]),
    "kind": FailureKind,
    "prompts": _tuple,
    "why": ClearReason,
    "error": _error,
}
"""How a field is read that is not a number, text or flag."""
_SELECTED: Callable[[Any], Any] = lambda given: tuple([SelectedGroup._make(group) for group in given])  # noqa: E731
_READERS: Mapping[str, tuple[Callable[[Any], Any], tuple[tuple[int, Callable[[Any], Any]], ...]]] = {
    code: (
        _step_record if kind is StepRecord else kind._make,
        tuple(
            (place, _SELECTED if (code, name) == ("TC", "groups") else _READ[name])
            for place, name in enumerate(FIELDS[code])
            if name in _READ or (code, name) == ("TC", "groups")
        ),
    )
    for code, kind in BY_CODE.items()
}
"""Per code how a value is made of its fields; and how those are read that are not as they are on disk, by place."""


def read_value(given: list[Any]) -> Any:
    """The event, move, effect or note that was written as `given`. Raises ValueError."""
    try:
        make, readers = _READERS[given[0]]
        values = given[1:]
        for place, read in readers:
            values[place] = read(values[place])
        return make(values)
    except (KeyError, TypeError, ValueError, IndexError) as cause:
        raise ValueError(f"{given!r} is no value of this evenstep: {type(cause).__name__}: {cause}") from cause


def write_value(value: Any, codes: Mapping[type[Any], str] = CODES) -> list[Any]:
    """An event, change, effect or note as it is encoded."""
    if type(value) is StepRecord:
        return ["SM", *(_short(item) for item in value.as_json().values())]
    code = codes[type(value)]
    written = [code, *value]
    for place, shorten in _WRITERS[code]:
        written[place] = shorten(written[place])
    return written


@lru_cache(maxsize=1024)
def _short_class(group_class: GroupClass) -> tuple[int, ...]:
    length = len(group_class)
    while length and group_class[length - 1] == _NO_CLASS[length - 1]:
        length -= 1
    return group_class[:length]


def _short_attempt(attempt: Attempt) -> tuple[int, ...]:
    return attempt if attempt[2] else attempt[:2]


def _short_attempts(attempts: tuple[Attempt, ...]) -> list[tuple[int, ...]]:
    return [_short_attempt(attempt) for attempt in attempts]


def _short_picks(picks: changes.Picks) -> list[tuple[tuple[int, ...], int]]:
    return [(_short_class(group_class), groups) for group_class, groups in picks]


_NO_CLASS = GroupClass()
_WRITE: Mapping[str, Callable[[Any], Any]] = {
    "attempt": _short_attempt,
    "attempts": _short_attempts,
    "group_class": _short_class,
    "before": _short_class,
    "after": _short_class,
    "picks": _short_picks,
}
"""Fields of which trailing defaults are left out."""
_WRITERS: Mapping[str, tuple[tuple[int, Callable[[Any], Any]], ...]] = {
    code: tuple((place + 1, _WRITE[name]) for place, name in enumerate(fields) if name in _WRITE)
    for code, fields in FIELDS.items()
}


def _short(value: Any) -> Any:
    """Metrics are kept to four digits here; metrics.jsonl has them in full."""
    if isinstance(value, dict):
        return {name: _short(item) for name, item in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value


def plain(value: Any) -> Any:
    """A value with all names written out: an object with its `type`, parts as objects, errors as type and message."""
    kind = type(value)
    if kind is StepRecord:
        return {"type": kind.__name__, **value.as_json()}
    if kind in CODES:
        names = FIELDS[CODES[kind]]
        return {"type": kind.__name__, **{name: plain(item) for name, item in zip(names, value, strict=True)}}
    if isinstance(value, Exception):
        return {"type": kind.__name__, "message": str(value)}
    if isinstance(value, tuple):
        if kind.__name__ in PARTS:
            return {name: plain(item) for name, item in zip(PARTS[kind.__name__], value, strict=True)}
        return [plain(item) for item in value]
    return value
