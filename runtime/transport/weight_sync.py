"""How weights travel from the trainer to the generation workers.

The first trainer rank publishes a version and returns a Publication. The controller holds a reference to it without
reading it. Every worker gets the Publication, fetches the weights and loads them. With `object_store` a Publication has
the weights, in Ray's object store. With `collective` (`runtime.transport.collective`) the trainer broadcasts them, and
a Publication says where to join.
"""

from typing import Protocol

from runtime.generation.engine import Weights
from runtime.naming import this_host, worker_names
from runtime.settings import CollectiveSyncConfig, Settings, gpus_everywhere
from runtime.transport.answers import Fetched, Publication
from runtime.transport.collective.meeting import Backend


class WeightPublisher(Protocol):
    """The trainer's side of a backend; the first rank has one."""

    def publish(self, weights: Weights, version: int) -> Publication:
        """Make weights available. The caller may overwrite them once this has returned."""


class WeightFetcher(Protocol):
    """A generation worker's side of a backend."""

    async def fetch(self, publication: Publication) -> Fetched: ...


class ObjectStoreSync:
    """Both sides through Ray's object store: one copy a machine, which all its workers read without copying."""

    def publish(self, weights: Weights, version: int) -> Publication:
        """Ray copies the weights into its store, where they live as long as a reference to the Publication."""
        return Publication(version, dict(weights))

    async def fetch(self, publication: Publication) -> Fetched:
        return Fetched(publication.payload, publication.version)


def make_publisher(settings: Settings) -> WeightPublisher:
    """The trainer's side of the `weight_sync:` block."""
    config = settings.weight_sync
    if isinstance(config, CollectiveSyncConfig):
        from runtime.transport.collective.sender import CollectiveSender

        return CollectiveSender(worker_names(settings), config, collective_backend(settings, config), this_host())
    return ObjectStoreSync()


def make_fetcher(settings: Settings, worker: str) -> WeightFetcher:
    """The side of the generation worker named `worker`."""
    config = settings.weight_sync
    if isinstance(config, CollectiveSyncConfig):
        from runtime.transport.collective.receiver import CollectiveReceiver

        return CollectiveReceiver(worker, config, collective_backend(settings, config), this_host())
    return ObjectStoreSync()


def collective_backend(settings: Settings, config: CollectiveSyncConfig) -> Backend:
    """`weight_sync.backend`, or its default: NCCL if both ends have GPUs, else gloo."""
    if config.backend is not None:
        return config.backend
    return "nccl" if gpus_everywhere(settings) else "gloo"
