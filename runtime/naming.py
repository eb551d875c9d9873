"""Names and resources of the run's actors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from runtime.settings import Settings, gpus_per_worker


@dataclass(frozen=True, slots=True)
class Names:
    """Every actor of a run is `<run>-<what>` in the configured namespace."""

    run: str
    namespace: str

    def options(self, what: str) -> dict[str, Any]:
        """Ray's name and namespace."""
        return {"name": f"{self.run}-{what}", "namespace": self.namespace}


def on_this_node() -> Any:
    """Ray's strategy for what must run where this process does, since it uses the same files."""
    return NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)


def start_actor(kind: type, options: dict[str, Any], *arguments: Any) -> ActorHandle[Any]:
    """An actor of a class that is not bound to Ray; `options` are Ray's."""
    actor_class: Any = ray.remote(kind)
    handle: ActorHandle[Any] = actor_class.options(**options).remote(*arguments)
    return handle


def worker_names(settings: Settings) -> tuple[str, ...]:
    """The generation workers' names, which they keep when they are made anew."""
    return tuple(f"generation-{number}" for number in range(settings.cluster.num_generation_workers))


def generation_resources(settings: Settings) -> dict[str, Any]:
    """What a generation worker asks of Ray."""
    return {"num_cpus": 1, "num_gpus": gpus_per_worker(settings)}


def trainer_resources(settings: Settings) -> dict[str, Any]:
    """What a trainer rank asks of Ray."""
    return {"num_cpus": 1, "num_gpus": int(settings.cluster.trainer_device == "cuda")}


def missing_resources(settings: Settings) -> list[str]:
    """What the run's actors ask for beyond what the connected cluster has now: they would wait for it for ever."""
    workers, ranks = settings.cluster.num_generation_workers, settings.cluster.num_trainer_ranks
    gpus = workers * generation_resources(settings)["num_gpus"] + ranks * trainer_resources(settings)["num_gpus"]
    there: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    return [
        f"{asked:g} {kind}s are asked for, and Ray has {there.get(kind, 0):g}"
        for kind, asked in (("GPU", gpus), ("CPU", logical_cpus(settings)))
        if asked > there.get(kind, 0)
    ]


def logical_cpus(settings: Settings) -> int:
    """What all actors of a run ask for, and one to spare for its preparation."""
    cluster = settings.cluster
    return cluster.num_generation_workers + cluster.num_trainer_ranks + 1
