"""How weights travel from the trainer to the generation workers.

The trainer publishes a version and returns a Publication. The controller has a reference to it and reads nothing; every
worker gets it, fetches the weights and loads them. With `object_store` a Publication holds the weights, in Ray's object
store. `collective` (`runtime.collective`) sends them: a Publication says where to join the broadcast.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import ray

from runtime.actors.naming import worker_names
from runtime.collective.meeting import Backend
from runtime.settings import CollectiveSyncConfig, Settings, gpus_everywhere

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


def make_publisher(settings: Settings) -> WeightPublisher:
    """The trainer's side of the `weight_sync:` block."""
    config = settings.weight_sync
    if isinstance(config, CollectiveSyncConfig):
        from runtime.collective.sender import CollectiveSender

        return CollectiveSender(worker_names(settings), config, collective_backend(settings, config), _this_host())
    return ObjectStoreSync()


def make_fetcher(settings: Settings, worker: str) -> WeightFetcher:
    """A generation worker's side of the `weight_sync:` block; `worker` is its name."""
    config = settings.weight_sync
    if isinstance(config, CollectiveSyncConfig):
        from runtime.collective.receiver import CollectiveReceiver

        return CollectiveReceiver(worker, config, collective_backend(settings, config), _this_host())
    return ObjectStoreSync()


def collective_backend(settings: Settings, config: CollectiveSyncConfig) -> Backend:
    """What `weight_sync.backend` stands for: NCCL needs a GPU at both ends."""
    if config.backend is not None:
        return config.backend
    return "nccl" if gpus_everywhere(settings) else "gloo"


def _this_host() -> str:
    """The address of this machine as Ray knows it: on a private cluster the loopback."""
    address: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    return address
