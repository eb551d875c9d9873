"""All weights in one run of bytes: few large broadcasts instead of many small ones, and no type that gloo lacks.

The manifest travels once, since names, shapes and types stay the same for the whole run; then only bytes move.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Weights = Mapping[str, npt.NDArray[np.generic]]
Bytes = npt.NDArray[np.uint8]

_ALIGNMENT = 64
"""Every array begins at a multiple of it, so that a view of any type is aligned."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One array."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    """As numpy writes it, with the byte order: <f4."""
    offset: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """What lies where."""

    entries: tuple[Entry, ...]
    size: int
    """Bytes in all."""

    def as_json(self) -> str:
        """As text."""
        rows = [[entry.name, list(entry.shape), entry.dtype, entry.offset] for entry in self.entries]
        return json.dumps({"entries": rows, "size": self.size})

    @staticmethod
    def from_json(text: bytes) -> Manifest:
        """What `as_json` wrote."""
        fields = json.loads(text)
        entries = tuple(Entry(name, tuple(shape), dtype, offset) for name, shape, dtype, offset in fields["entries"])
        return Manifest(entries, fields["size"])


def manifest_of(weights: Weights) -> Manifest:
    """Where these arrays will lie, in their order."""
    entries = []
    offset = 0
    for name, array in weights.items():
        entries.append(Entry(name, array.shape, array.dtype.str, offset))
        offset += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
    return Manifest(tuple(entries), offset)


def copy_in(weights: Weights, manifest: Manifest, into: Bytes) -> None:
    """Copy arrays to their places. Raises ValueError where they are not those of the manifest."""
    given = manifest_of(weights)
    if given != manifest:
        raise ValueError(f"the weights have changed since the first publication: {_difference(manifest, given)}")
    for entry in manifest.entries:
        _view(into, entry)[...] = weights[entry.name]


def views(of: Bytes, manifest: Manifest) -> dict[str, npt.NDArray[np.generic]]:
    """The arrays, read-only, over the same memory."""
    arrays = {}
    for entry in manifest.entries:
        array = _view(of, entry)
        array.flags.writeable = False
        arrays[entry.name] = array
    return arrays


def _view(of: Bytes, entry: Entry) -> npt.NDArray[np.generic]:
    return np.ndarray(entry.shape, entry.dtype, buffer=of, offset=entry.offset)


def _difference(before: Manifest, after: Manifest) -> str:
    """The first of them."""
    if len(before.entries) != len(after.entries):
        return f"{len(before.entries)} arrays then, {len(after.entries)} now"
    pairs = zip(before.entries, after.entries, strict=True)
    then, now = next(pair for pair in pairs if pair[0] != pair[1])
    return f"{then.name} {list(then.shape)} {then.dtype} then, {now.name} {list(now.shape)} {now.dtype} now"
