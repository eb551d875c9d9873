"""What a table of keys is made of: rows, what becomes of a key, and the other framework's document.

A table is a text file with one row a key: theirs, ours, conversion, note. A row for a block stands for all keys below
it that have no row. `=` in place of ours is the same path, `-` none. A conversion is `name`, or `name(arguments)`, and
`path?` or `!path?` before it says when the key is in use. Two more kinds of lines: `? path | value` is a default of
theirs, for files that leave it out; `+ ours | value | note` is what their framework always does.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from fsm.config.strict import load_yaml

TABLES = Path(__file__).parent / "tables"


class Fate(Enum):
    """What becomes of a key."""

    CARRIED = "carried over"
    RENAMED = "renamed"
    DEFAULT = "has a default here"
    LOST = "no counterpart"
    DECIDE = "needs a decision"


class Converted(NamedTuple):
    """What a conversion says of a value."""

    kind: Fate
    value: Any = None
    """The value here; of `CARRIED`, `RENAMED`, and `DECIDE` if `is_written`."""
    note: str = ""
    """Instead of the row's, unless empty."""
    is_written: bool = True


class Unresolved(NamedTuple):
    """In place of a value that could not be found out: a failed interpolation, or `???`."""

    reason: str


def unresolved_in(value: Any) -> Unresolved | None:
    """The first value that could not be found out, at any depth."""
    if isinstance(value, Unresolved):
        return value
    inside = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return next((found for each in inside if (found := unresolved_in(each)) is not None), None)


class Theirs(NamedTuple):
    """The other framework's document, with the defaults of keys that it leaves out."""

    document: Mapping[str, Any]
    folders: tuple[Path, ...] = ()
    """Where paths in it may be from: the working directory, the file's folder and those above."""

    def get(self, path: str, default: Any = None) -> Any:
        """The value at a dotted path; the default also where it could not be resolved."""
        value: Any = self.document
        for key in path.split("."):
            if not isinstance(value, Mapping) or key not in value:
                return default
            value = value[key]
        return default if isinstance(value, Unresolved) else value

    def number(self, path: str, default: int) -> int:
        """A whole number at a path; the default where there is none."""
        value = self.get(path)
        return default if isinstance(value, bool) or not isinstance(value, int) else value


Conversion = Callable[..., Converted]
"""Called with the value, `Theirs` and the row's arguments."""


class Row(NamedTuple):
    """One key, or one block."""

    theirs: str
    ours: str | None
    conversion: str
    note: str


class Fixed(NamedTuple):
    """A key of ours that follows from the framework alone."""

    ours: str
    value: Any
    note: str


class KeyTable(NamedTuple):
    """The keys of a framework."""

    framework: str
    rows: tuple[Row, ...]
    defaults: Mapping[str, Any]
    always: tuple[Fixed, ...]


def read_table(framework: str, file: str) -> KeyTable:
    """The table in a file. Raises ValueError with the line of a row that is none."""
    rows: list[Row] = []
    defaults: dict[str, Any] = {}
    always: list[Fixed] = []
    for number, line in enumerate((TABLES / file).read_text(encoding="utf-8").splitlines(), start=1):
        cells = [cell.strip() for cell in line.split(" | ")]
        if not line.strip() or line.startswith("#"):
            continue
        if line.startswith("? ") and len(cells) == 2:
            defaults[cells[0][2:]] = _value(cells[1])
        elif line.startswith("+ ") and len(cells) == 3:
            always.append(Fixed(cells[0][2:], _value(cells[1]), cells[2]))
        elif len(cells) in (3, 4):
            ours = {"=": cells[0], "-": None}.get(cells[1], cells[1])
            rows.append(Row(cells[0], ours, cells[2], cells[3] if len(cells) == 4 else ""))
        else:
            raise ValueError(f"{file}, line {number}: {len(cells)} cells: theirs | ours | conversion | note")
    return KeyTable(framework, tuple(rows), defaults, tuple(always))


def _value(text: str) -> Any:
    """A value as in YAML; plain texts and numbers are read without the parser, which takes long to start."""
    simple: dict[str, Any] = {"true": True, "false": False, "null": None}
    if text in simple:
        return simple[text]
    return text if re.fullmatch(r"[a-z][\w ]*", text) else load_yaml(text)


class Call(NamedTuple):
    """A row's conversion, read."""

    name: str
    arguments: tuple[Any, ...]
    in_use: tuple[tuple[str, bool], ...]
    """Paths, and whether each must be true or false for the key to matter."""


def read_conversion(text: str) -> Call:
    """`path? !path? name(arguments)`. Raises ValueError."""
    *conditions, call = text.split("? ")
    found = re.fullmatch(r"(\w+)(?:\((.*)\))?", call)
    if found is None:
        raise ValueError(f"{text!r} is not a conversion")
    try:
        arguments = load_yaml(f"[{found[2]}]") if found[2] else []
    except yaml.YAMLError as error:
        raise ValueError(f"{text!r}: {error}") from None
    in_use = tuple((path.lstrip("!"), not path.startswith("!")) for path in conditions)
    return Call(found[1], tuple(arguments), in_use)


def leaves(document: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted paths and values; lists and empty mappings are values."""
    for key, value in document.items():
        below = f"{path}.{key}" if path else str(key)
        if isinstance(value, Mapping) and value:
            yield from leaves(value, below)
        else:
            yield below, value


def put(document: dict[str, Any], path: str, value: Any) -> None:
    """Set the value at a dotted path. A block in the way that is no mapping is replaced."""
    *blocks, last = path.split(".")
    for key in blocks:
        inner = document.get(key)
        if not isinstance(inner, dict):
            inner = document[key] = {}
        document = inner
    document[last] = value
