"""Names and resources of the run's actors."""

from dataclasses import dataclass
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from runtime.settings import Settings, gpus_per_worker

PROBE = "probe"
"""The concurrency group of a probed actor's `ping`: a thread of its own, which answers while the others are busy."""
PROBED = {"concurrency_groups": {PROBE: 1}}
"""Options of an actor whose `ping` is in that group."""


@dataclass(frozen=True, slots=True)
class Names:
    """Each actor of a run is named `<run>-<what>`, in the configured namespace."""

    run: str
    namespace: str

    def options(self, what: str) -> dict[str, Any]:
        return {"name": f"{self.run}-{what}", "namespace": self.namespace}


def this_host() -> str:
    """This machine's address as Ray knows it; on a private cluster the loopback."""
    address: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    return address


def on_this_node() -> Any:
    """Ray's strategy for an actor that uses the files of this process, and so must run on its node."""
    return NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)


def start_actor(kind: type, options: dict[str, Any], *arguments: Any) -> ActorHandle[Any]:
    """An actor of a class that is not bound to Ray; `options` are Ray's."""
    of_class = {name: options[name] for name in PROBED if name in options}  # Ray takes these nowhere else
    of_actor = {name: value for name, value in options.items() if name not in of_class}
    actor_class: Any = ray.remote(**of_class)(kind) if of_class else ray.remote(kind)
    handle: ActorHandle[Any] = actor_class.options(**of_actor).remote(*arguments)
    return handle


def worker_names(settings: Settings) -> tuple[str, ...]:
    """The generation workers' names, which they keep when they restart."""
    return tuple(f"generation-{number}" for number in range(settings.cluster.num_generation_workers))


def generation_resources(settings: Settings) -> dict[str, Any]:
    """Ray resources of a generation worker."""
    return {"num_cpus": 1, "num_gpus": gpus_per_worker(settings)}


def trainer_resources(settings: Settings) -> dict[str, Any]:
    """Ray resources of a trainer rank."""
    return {"num_cpus": 1, "num_gpus": int(settings.cluster.trainer_device == "cuda")}


def missing_resources(settings: Settings) -> list[str]:
    """Resources that the run's actors need and the connected cluster lacks now: they would wait until it has them."""
    workers, ranks = settings.cluster.num_generation_workers, settings.cluster.num_trainer_ranks
    gpus = workers * generation_resources(settings)["num_gpus"] + ranks * trainer_resources(settings)["num_gpus"]
    there: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    return [
        f"{asked:g} {kind}s are needed, and Ray has {there.get(kind, 0):g}"
        for kind, asked in (("GPU", gpus), ("CPU", logical_cpus(settings)))
        if asked > there.get(kind, 0)
    ]


def logical_cpus(settings: Settings) -> int:
    """The CPUs of all actors of a run, and one more for its preparation."""
    cluster = settings.cluster
    return cluster.num_generation_workers + cluster.num_trainer_ranks + 1
