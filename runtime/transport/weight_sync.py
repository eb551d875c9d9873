"""How weights travel from the trainer to the generation workers.

The first trainer rank publishes a version and returns a Publication. The controller holds a reference to it
(`Published`) and never reads it; every worker awaits the reference, fetches the weights and loads them. With
`object_store` a Publication has the weights, in Ray's object store. With `collective` (`runtime.transport.collective`)
the trainer broadcasts them, and a Publication says where to join. Another backend also needs its block in
`runtime/settings.py`.
"""

from typing import Protocol

from runtime.generation.engine import Weights
from runtime.naming import this_host, worker_names
from runtime.settings import CollectiveSyncConfig, Settings, gpus_everywhere
from runtime.transport.answers import Fetched, Publication
from runtime.transport.collective.meeting import Backend


class WeightPublisher(Protocol):
    """The trainer's side of a backend, which the first rank uses."""

    def publish(self, weights: Weights, version: int) -> Publication:
        """Make weights available. They may be overwritten once the actor's call that returns this is over."""


class WeightFetcher(Protocol):
    """A generation worker's side of a backend."""

    async def fetch(self, publication: Publication) -> Fetched: ...


class ObjectStoreSync:
    """Both sides through Ray's object store: one copy a machine, which all its workers read without copying."""

    def publish(self, weights: Weights, version: int) -> Publication:
        """Ray copies them into its store with the actor's result. They live as long as a reference to that."""
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
