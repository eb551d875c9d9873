"""Records: encode and decode the lines of a trace after its header.

    {"q": seq, "t": monotonic, "w": drift, "e": event, "m": [change, …], "f": [effect, …]}    a transition
    {"q": seq, "t": monotonic, "w": drift, "n": note}                                       a note
    {"q": seq, "t": monotonic, "w": drift, "s": snapshot, "b": steps closed before, "v": vitals}   a snapshot

`t` counts seconds since the trace was opened, on the monotonic clock. Wall time is the header's start, plus `t`, plus
`w` milliseconds. `w` is left out where it is 0, `m` and `f` where they are empty.
"""

import json
from typing import Any, NamedTuple

from fsm.core import AppliedEvent
from runtime.trace.kinds import EFFECT_CODES, Json, plain, read_value, write_value
from runtime.trace.notes import Note


class TransitionRecord(NamedTuple):
    """One applied event, with its changes and effects."""

    seq: int
    monotonic_s: float
    """Since the trace was opened."""
    unix_s: float
    transition: AppliedEvent


class NoteRecord(NamedTuple):
    """Something that only the runtime knows."""

    seq: int
    monotonic_s: float
    unix_s: float
    note: Note


class SnapshotRecord(NamedTuple):
    """The core's state and the vitals (`runtime.trace.vitals`) after the record before."""

    seq: int
    monotonic_s: float
    unix_s: float
    snapshot: Json
    """As `fsm.snapshot.snapshot` makes it, but `closed` has only steps closed since the last snapshot record."""
    closed_before: int
    """How many steps closed before those."""
    vitals: Json


Record = TransitionRecord | NoteRecord | SnapshotRecord


def _error(value: Any) -> Any:
    if isinstance(value, Exception):
        return {"type": type(value).__name__, "message": str(value)}
    raise TypeError(f"{value!r} of type {type(value).__name__} cannot be written to a trace")


encode = json.JSONEncoder(separators=(",", ":"), default=_error, check_circular=False).encode
"""JSON on one line of ASCII; all other characters are escaped, lone surrogates too."""


def transition_body(transition: AppliedEvent) -> str:
    """A transition's line without its number and times."""
    body: Json = {"e": write_value(transition.event)}
    if transition.changes:
        body["m"] = [write_value(change) for change in transition.changes]
    if transition.effects:
        body["f"] = [write_value(effect, EFFECT_CODES) for effect in transition.effects]
    return encode(body)[1:-1]


def note_body(note: Note) -> str:
    """A note's line without its number and times."""
    return f'"n":{encode(write_value(note))}'


def snapshot_body(snapshot: Json, closed_before: int, vitals: Json) -> str:
    """A snapshot's line without its number and times."""
    return f'"s":{encode(snapshot)},"b":{closed_before},"v":{encode(vitals)}'


def line(seq: int, monotonic_s: float, drift_s: float, body: str) -> str:
    """A whole line. `drift_s` is how far the wall clock is ahead of the monotonic clock."""
    drift_ms = round(drift_s * 1000)
    drift = f'"w":{drift_ms},' if drift_ms else ""
    return f'{{"q":{seq},"t":{monotonic_s:.3f},{drift}{body}}}\n'


def decode(given: Json, started_unix_s: float) -> Record:
    """The record of a parsed line. Raises ValueError, KeyError or TypeError for anything else."""
    seq, monotonic_s = given["q"], given["t"]
    unix_s = started_unix_s + monotonic_s + given.get("w", 0) / 1000
    if "e" in given:
        changes = tuple([read_value(change) for change in given.get("m", ())])
        effects = tuple([read_value(effect) for effect in given.get("f", ())])
        return TransitionRecord(seq, monotonic_s, unix_s, AppliedEvent(read_value(given["e"]), changes, effects))
    if "n" in given:
        return NoteRecord(seq, monotonic_s, unix_s, read_value(given["n"]))
    return SnapshotRecord(seq, monotonic_s, unix_s, given["s"], given["b"], given["v"])


def as_json(record: Record) -> Json:
    """A record as JSON with all names written out."""
    named: Json = {"seq": record.seq, "monotonic_s": record.monotonic_s, "unix_s": round(record.unix_s, 4)}
    match record:
        case TransitionRecord(transition=transition):
            named["event"] = plain(transition.event)
            named["moves"] = [plain(change) for change in transition.changes]
            named["effects"] = [plain(effect) for effect in transition.effects]
        case NoteRecord(note=note):
            named["note"] = plain(note)
        case SnapshotRecord(snapshot=snapshot, closed_before=closed_before, vitals=vitals):
            named |= {"snapshot": snapshot, "closed_before": closed_before, "vitals": vitals}
    return named


def printable_json(given: Any) -> str:
    """JSON of printable ASCII, safe on any terminal."""
    return json.dumps(given, ensure_ascii=True).replace("\x7f", "\\u007f")
