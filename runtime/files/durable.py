"""Files that survive a power cut: written, flushed to the disk, and renamed into place."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Json = dict[str, Any]


def sync_path(path: Path) -> None:
    """Flush a file, or the entries of a directory, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(root: Path) -> None:
    """Flush every file and directory below `root`, and `root` itself, the deepest first."""
    for folder, _, names in os.walk(root, topdown=False):
        for name in sorted(names):
            sync_path(Path(folder) / name)
        sync_path(Path(folder))


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write plain JSON; `canonical_json` says what is refused."""
    path.write_text(canonical_json(value) + "\n", encoding="utf-8")


def canonical_json(value: Mapping[str, Any]) -> str:
    """The same text for equal values. Raises ValueError for what would not come back as it is.

    JSON turns tuples into lists and number keys into text: a state that holds some would come back as another.
    """
    try:
        text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    except TypeError as error:
        raise ValueError(f"{error}; give plain JSON: mappings with text keys, lists, numbers, text, None") from error
    back = json.loads(text)
    if back != value:
        changed = next((key for key in value if back.get(key) != value[key]), "a key")
        raise ValueError(
            f"{changed!r} would not come back from JSON as it is (a tuple, a key that is not text, or NaN); "
            f"give lists and text keys"
        )
    return text


def write_json_aside(path: Path, value: Mapping[str, Any]) -> None:
    """Replace a JSON file in one go: readers see the old one or the new one, whole."""
    write_text_aside(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def write_text_aside(path: Path, text: str) -> None:
    """Replace a text file in one go."""
    aside = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    try:
        aside.write_text(text, encoding="utf-8")
        sync_path(aside)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
    sync_path(path.parent)


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
