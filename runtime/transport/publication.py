"""A version's weights on their way: what the trainer publishes, what a worker fetches, and both sides of a backend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

Weights = Mapping[str, npt.NDArray[np.generic]]


@dataclass(frozen=True, slots=True)
class Publication:
    """A version's weights, and where they are to be had."""

    version: int
    payload: Any
    """The backend's own."""


@dataclass(frozen=True, slots=True)
class Published:
    """What the controller knows of a Publication."""

    version: int
    publication: Any
    """A reference to it, which the controller owns and hands on: references made elsewhere cost it twice as much."""


class Fetched(NamedTuple):
    """What a worker gets."""

    weights: Weights
    """Valid until the next fetch."""
    version: int
    """That of the publication, or a later one, published since then: a worker that is made anew may be slow."""


class WeightPublisher(Protocol):
    """The trainer's side of a backend; the first rank has one."""

    def publish(self, weights: Weights, version: int) -> Publication:
        """Make weights available. They may be overwritten once this has returned."""
        ...


class WeightFetcher(Protocol):
    """A generation worker's side of a backend."""

    async def fetch(self, publication: Publication) -> Fetched:
        """The weights."""
        ...


class ObjectStoreSync:
    """Through Ray's object store: one copy a machine, which every worker on it reads without copying."""

    def publish(self, weights: Weights, version: int) -> Publication:
        """The weights themselves, which Ray copies into its store; they live as long as a reference to what returns."""
        return Publication(version, dict(weights))

    async def fetch(self, publication: Publication) -> Fetched:
        """Read-only arrays over the store's memory."""
        return Fetched(publication.payload, publication.version)
