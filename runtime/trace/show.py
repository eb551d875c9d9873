"""Records as rows of a table and as plain lines. All content is shown as printable text."""

import time
from typing import Any

from fsm.state import NONE, GroupClass
from runtime.metrics.step_record import StepRecord
from runtime.trace.kinds import CODES, FIELDS, PARTS, name_of
from runtime.trace.records import NoteRecord, Record, SnapshotRecord, TransitionRecord

WIDEST_TEXT = 300
"""Longest text shown, in characters; `--json` shows all of it."""
_CLASS_WORDS = {
    "target_step": "step ",
    "bucket": "bucket ",
    "start_weight": "w",
    "replacements": "r",
    "label": "label ",
}


def row(record: Record) -> tuple[str, str, str, str, str, str]:
    """The printable cells of a record.

    Its number, seconds since the trace was opened, local wall time, the event or note, and its changes and its effects,
    one per line.
    """
    clock = time.strftime("%H:%M:%S", time.localtime(record.unix_s)) + f".{int(record.unix_s * 1000) % 1000:03d}"
    when = (str(record.seq), f"{record.monotonic_s:.3f}", clock)
    match record:
        case TransitionRecord(transition=transition):
            changed, effects = ("\n".join(map(describe, made)) for made in (transition.changes, transition.effects))
            return *when, describe(transition.event), changed, effects
        case NoteRecord(note=note):
            return *when, f"· {describe(note)}", "", ""
        case SnapshotRecord(snapshot=snapshot):
            return *when, f"· Snapshot at version {snapshot['state']['trainer'][1]}", "", ""


def plain_line(record: Record) -> str:
    """A record on one line."""
    seq, at, clock, what, changed, effects = row(record)
    parts = [f"{seq:>8} {at:>11} {clock}  {what}", changed.replace("\n", "; "), effects.replace("\n", "; ")]
    return "  →  ".join(part for part in parts if part)


def describe(value: Any) -> str:
    """An event, change, effect or note on one line: its name and its fields."""
    if isinstance(value, StepRecord):
        known = {"step": value.step, "reward": value.reward, "zero_variance_fraction": value.zero_variance_fraction}
        return " ".join(["StepRecord", *(f"{name}={_brief(item)}" for name, item in known.items())])
    names = FIELDS[CODES[type(value)]]
    shown = [_field(name, item) for name, item in zip(names, value, strict=True)]
    return " ".join([name_of(type(value)), *(part for part in shown if part)])


def _field(name: str, item: Any) -> str:
    if type(item).__name__ == "Attempt":
        return _brief(item)
    if isinstance(item, GroupClass):
        return _brief(item) if name == "group_class" else f"{name}={_brief(item)}"
    if item is None or (name in ("target_step", "bucket", "charged_step", "first_prompt") and item == NONE):
        return ""
    return f"{name}={_brief(item)}"


def _brief(item: Any) -> str:
    kind = type(item)
    if kind.__name__ == "Attempt":
        return f"prompt {item.prompt} #{item.dispatch}"
    if kind is GroupClass:
        return _class(item)
    if kind.__name__ in PARTS:
        names = PARTS[kind.__name__]
        return "(" + " ".join(f"{name}={_brief(part)}" for name, part in zip(names, item, strict=True)) + ")"
    if isinstance(item, tuple):
        return "[" + ", ".join(_brief(part) for part in item) + "]"
    if isinstance(item, float):
        return f"{item:.4g}"
    if isinstance(item, bool):
        return "yes" if item else "no"
    return printable(str(item))


def _class(group_class: GroupClass) -> str:
    parts = [
        f"{_CLASS_WORDS[name]}{value}"
        for name, value, default in zip(GroupClass._fields, group_class, GroupClass(), strict=True)
        if value != default
    ]
    return "(" + ", ".join(parts or ["waits" if group_class.start_weight == NONE else "no stamp"]) + ")"


def printable(text: str, *, widest: int = WIDEST_TEXT) -> str:
    """Text for a terminal: control characters are escaped, and after `widest` characters the text is cut."""
    cut = len(text) - widest
    shown = "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text[:widest]
    )
    return f"{shown}… ({cut:,} more)" if cut > 0 else shown


def printable_lines(text: str) -> str:
    """Text for a terminal, line by line and uncut."""
    return "\n".join(printable(line, widest=len(line)) for line in text.splitlines())
