"""Translate a document of another framework into one of evenstep, with a line on each of its keys."""

import copy
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fsm.config.wording import given_as, nearest_of
from runtime.migrate import conversions, nemo_rl, tasks, trl, verl
from runtime.migrate.rows import Converted, Fate, KeyTable, Row, Theirs, leaves, put, read_conversion, unresolved_in

_CONVERSIONS = {
    function.__name__: function
    for module in (conversions, tasks, nemo_rl, trl, verl)
    for function in module.CONVERSIONS
}  # fmt: skip


class Translated(NamedTuple):
    """The fate of one key, or of the rest of a block."""

    kind: Fate
    theirs: str
    """Dotted; empty for what the framework always does."""
    given: Any
    ours: str | None
    value: Any
    """What is written at `ours`, if `is_written`."""
    is_written: bool
    note: str
    keys: int = 1
    """How many keys of a block it stands for."""
    paths: tuple[str, ...] = ()
    """These keys, dotted."""


class Migration(NamedTuple):
    """A translated document."""

    document: dict[str, Any]
    findings: tuple[Translated, ...]
    """In the order of the table."""


_NO_TASK = Translated(
    Fate.DECIDE,
    "",
    None,
    "data.task",
    {"name": "dataset"},
    True,
    "the file does not say what is trained on in a way that is known here: set data.task.path and data.task.columns "
    "(docs/data_sets.md)",
)
"""Refused as it is, since it has no path: without a task, evenstep's default one would be trained."""


def translate(given: Mapping[str, Any], table: KeyTable, folders: Sequence[Path] = ()) -> Migration:
    """Every key of `given` through its row. Values may be `Unresolved`; `folders` are those of `Theirs`."""
    assumed = {path: value for path, value in table.defaults.items() if not _has(given, path)}
    whole = copy.deepcopy(dict(given))
    for path, value in assumed.items():
        put(whole, path, value)
    theirs = Theirs(whole, tuple(folders))
    paths_of, unknown = _rows_of(whole, table.rows)
    document: dict[str, Any] = {}
    findings = [Translated(Fate.RENAMED, "", None, fixed.ours, fixed.value, True, fixed.note) for fixed in table.always]
    for row in table.rows:
        if row.theirs in paths_of:
            finding = _converted(row, theirs, paths_of[row.theirs])
            findings.append(finding._replace(note=_joined("its default there", finding.note)) if row.theirs in assumed
                            else finding)  # fmt: skip
    findings += [
        Translated(
            Fate.DECIDE,
            path,
            None if unresolved_in(_shown(theirs, path)) else _shown(theirs, path),
            None,
            None,
            False,
            _unknown(path, near, table.framework),
        )
        for path, near in unknown.items()
    ]
    if not any(finding.is_written and finding.ours == "data.task" for finding in findings):
        findings.insert(0, _NO_TASK)
    for finding in findings:
        if finding.is_written and finding.ours is not None:
            put(document, finding.ours, copy.deepcopy(finding.value))
    return Migration(document, tuple(_overruled(findings)))


def _overruled(findings: Sequence[Translated]) -> Iterator[Translated]:
    """The findings; what a later row has written over is said to be so."""
    written = {finding.ours: finding for finding in findings if finding.is_written}
    for finding in findings:
        last = written.get(finding.ours)
        if finding.is_written and last is not None and last is not finding and last.value != finding.value:
            yield finding._replace(kind=Fate.DEFAULT, is_written=False, note=f"{last.theirs} overrules it")
        else:
            yield finding


def _converted(row: Row, theirs: Theirs, paths: Sequence[str]) -> Translated:
    keys = len(paths)
    value = _shown(theirs, row.theirs)
    if (lacking := unresolved_in(value)) is not None:
        return Translated(Fate.DECIDE, row.theirs, None, row.ours, None, False, _joined(lacking.reason, row.note), keys)
    call = read_conversion(row.conversion)
    unmet = next((path for path, wanted in call.in_use if bool(theirs.get(path)) != wanted), None)
    if unmet is not None:
        outcome = Converted(Fate.DEFAULT, note=f"not in use there: {unmet} is {'on' if theirs.get(unmet) else 'off'}")
    else:
        try:
            outcome = _CONVERSIONS[call.name](value, theirs, *call.arguments)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            # A conversion knows the types that the key has there, and this value, or one that it builds on, is another.
            outcome = Converted(Fate.DECIDE, note=f"{given_as(value)} is no value of it there", is_written=False)
    written = outcome.is_written and outcome.kind not in (Fate.DEFAULT, Fate.LOST) and row.ours is not None
    kind = outcome.kind
    if kind is Fate.RENAMED and row.ours == row.theirs and outcome.value == value:
        kind = Fate.CARRIED
    return Translated(
        kind,
        row.theirs,
        value,
        row.ours,
        outcome.value if written else None,
        written,
        outcome.note or row.note,
        keys,
        tuple(paths),
    )


def _rows_of(document: Mapping[str, Any], rows: Sequence[Row]) -> tuple[dict[str, list[str]], dict[str, str | None]]:
    """The keys that each row's path stands for, and the keys without a row, with the nearest key.

    A null block is no key. A key that only a block's row stands for is one without a row if it is nearly another key.
    """
    known = {row.theirs for row in rows}
    below = _names_below(known)
    paths_of: defaultdict[str, list[str]] = defaultdict(list)
    unknown: dict[str, str | None] = {}
    for path, value in leaves(document):
        parts = path.split(".")
        row = next((at for end in range(len(parts), 0, -1) if (at := ".".join(parts[:end])) in known), None)
        near = None if row == path else _near(path, below, _LIKE if row is None else _NEARLY)
        if row is not None and near is None:
            paths_of[row].append(path)
        elif value not in (None, {}) or not any(name.startswith(f"{path}.") for name in known):
            unknown[path] = near
    return paths_of, unknown


_LIKE, _NEARLY = 0.6, 0.9
"""How alike two names are, at least, by difflib: of a key without a row, and of one in a block that has a row."""


def _names_below(known: Iterable[str]) -> dict[str, set[str]]:
    """The names directly below each block; those of the top are below the empty path."""
    below: defaultdict[str, set[str]] = defaultdict(set)
    for path in known:
        parts = path.split(".")
        for end, name in enumerate(parts):
            below[".".join(parts[:end])].add(name)
    return below


def _near(path: str, below: Mapping[str, set[str]], alike: float) -> str | None:
    """The known key whose name is nearest to the first unknown name in a path."""
    parts = path.split(".")
    for end, name in enumerate(parts):
        block = ".".join(parts[:end])
        names = below.get(block, set())
        if name not in names:
            found = nearest_of(name, sorted(names), alike)
            return None if found is None else f"{block}.{found}".lstrip(".")
    return None


def _unknown(path: str, near: str | None, framework: str) -> str:
    meant = f"; did you mean {near}?" if near else "; if it matters, look for it in docs/generated/configuration.md"
    return f"{path.rpartition('.')[2]} is not a key that is known of {framework}{meant}"


def _has(document: Mapping[str, Any], path: str) -> bool:
    value: Any = document
    for key in path.split("."):
        if not isinstance(value, Mapping) or key not in value:
            return False
        value = value[key]
    return True


def _shown(theirs: Theirs, path: str) -> Any:
    """The value at a path, also where it is Unresolved."""
    value: Any = theirs.document
    for key in path.split("."):
        if not isinstance(value, Mapping) or key not in value:
            return None  # a key with a dot in its name
        value = value[key]
    return value


def _joined(*parts: str) -> str:
    return "; ".join(part for part in parts if part)
