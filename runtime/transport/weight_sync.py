"""How weights travel from the trainer to the generation workers.

The trainer publishes a version and returns a Publication. The controller has a reference to it and reads nothing; every
worker gets it, fetches the weights and loads them. With `object_store` a Publication holds the weights, in Ray's object
store. `collective` (`runtime.transport.collective`) sends them: a Publication says where to join the broadcast.
"""

from __future__ import annotations

import ray

from runtime.naming import worker_names
from runtime.settings import CollectiveSyncConfig, Settings, gpus_everywhere
from runtime.transport.collective.meeting import Backend
from runtime.transport.publication import ObjectStoreSync, WeightFetcher, WeightPublisher


def make_publisher(settings: Settings) -> WeightPublisher:
    """The trainer's side of the `weight_sync:` block."""
    config = settings.weight_sync
    if isinstance(config, CollectiveSyncConfig):
        from runtime.transport.collective.sender import CollectiveSender

        return CollectiveSender(worker_names(settings), config, collective_backend(settings, config), _this_host())
    return ObjectStoreSync()


def make_fetcher(settings: Settings, worker: str) -> WeightFetcher:
    """A generation worker's side of the `weight_sync:` block; `worker` is its name."""
    config = settings.weight_sync
    if isinstance(config, CollectiveSyncConfig):
        from runtime.transport.collective.receiver import CollectiveReceiver

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
