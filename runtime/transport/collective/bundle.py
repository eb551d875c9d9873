"""All weights in one run of bytes: few large broadcasts instead of many small ones, and no type that gloo lacks.

The manifest is sent once, since names, shapes and types are the same for the whole run. After that only bytes are sent.
"""

import json
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from runtime.generation.engine import Weights

Bytes = npt.NDArray[np.uint8]

_ALIGNMENT = 64
"""Every array starts at a multiple of it, so that a view of any type is aligned."""


class Entry(NamedTuple):
    """One array."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    """numpy's name with the byte order: <f4."""
    offset: int


class Manifest(NamedTuple):
    """The places of all arrays."""

    entries: tuple[Entry, ...]
    size: int
    """Total bytes."""

    def as_json(self) -> str:
        return json.dumps(self)

    @staticmethod
    def from_json(text: bytes) -> "Manifest":
        entries, size = json.loads(text)
        return Manifest(tuple(Entry(name, tuple(shape), *place) for name, shape, *place in entries), size)


def manifest_of(weights: Weights) -> "Manifest":
    """The places of these arrays, in their order."""
    entries = []
    offset = 0
    for name, array in weights.items():
        entries.append(Entry(name, array.shape, array.dtype.str, offset))
        offset += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
    return Manifest(tuple(entries), offset)


def copy_in(weights: Weights, manifest: "Manifest", into: Bytes) -> None:
    """Copy arrays to their places. Raises ValueError if they do not fit the manifest."""
    given = manifest_of(weights)
    if given != manifest:
        raise ValueError(f"the weights have changed since the first publication: {_difference(manifest, given)}")
    for entry in manifest.entries:
        _view(into, entry)[...] = weights[entry.name]


def views(of: Bytes, manifest: "Manifest") -> dict[str, npt.NDArray[np.generic]]:
    """The arrays, read-only, over the same memory."""
    arrays = {}
    for entry in manifest.entries:
        array = _view(of, entry)
        array.flags.writeable = False
        arrays[entry.name] = array
    return arrays


def _view(of: Bytes, entry: Entry) -> npt.NDArray[np.generic]:
    return np.ndarray(entry.shape, entry.dtype, buffer=of, offset=entry.offset)


def _difference(before: "Manifest", after: "Manifest") -> str:
    if len(before.entries) != len(after.entries):
        return f"{len(before.entries)} arrays then, {len(after.entries)} now"
    pairs = zip(before.entries, after.entries, strict=True)
    then, now = next(pair for pair in pairs if pair[0] != pair[1])
    return f"{then.name} {list(then.shape)} {then.dtype} then, {now.name} {list(now.shape)} {now.dtype} now"
