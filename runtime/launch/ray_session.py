"""Ray for one run: a private cluster on the loopback, or an existing one that the run joins."""

import atexit
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from fsm.errors import ConfigError
from runtime.control.failures import RunFailed
from runtime.control.messages import CLOSING_SHARE, TEARDOWN_SHARE
from runtime.launch.processes import Process, descendants, end_all, within
from runtime.launch.supervision.orphans import session_directory, sweep
from runtime.settings import Settings

PROCESS_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",  # several processes share the cores, and more threads would make each many times slower
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "TQ_NUM_THREADS": "1",  # TransferQueue sets torch's threads, 8 of them, whenever it puts or gets
}
"""The environment of every process of a run; what the user has set stays."""


def set_process_environment(settings: Settings) -> None:
    """For a command that starts no Ray, before torch is imported. It may itself ask the hub for a data set."""
    for name, value in PROCESS_ENVIRONMENT.items():
        if name != "HF_HUB_OFFLINE" or settings.data.task.name != "dataset":
            os.environ.setdefault(name, value)


_PRIVATE_ENVIRONMENT = {
    "RAY_AUTH_MODE": "disabled",  # only this machine can reach it
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # Ray's name for: this node's address is the loopback
    # The ranks of a trainer would otherwise listen where the machine's name leads.
    **({"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}),
    "RAY_worker_niceness": "0",  # Ray's default, 15, would let every other process go first
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray's record of every call is for its dashboard, and costs the controller a fifth of its time.
    "RAY_task_events_report_interval_ms": "0",
    "RAY_enable_metrics_collection": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
STARTS = 3


@contextmanager
def ray_session(settings: Settings) -> Iterator[None]:
    """Connect, and leave nothing behind: no process and no file of a private cluster, even if its processes hang (W3).

    Raises ConfigError for a cluster that cannot be joined, and RunFailed for a private one that does not come up.
    Ray is imported here, after its environment is set: it reads some of it at its import.
    """
    cluster = settings.cluster
    for name, value in PROCESS_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if cluster.address is None:
        for name, value in _PRIVATE_ENVIRONMENT.items():
            os.environ.setdefault(name, value)
    import ray

    from runtime.naming import logical_cpus

    if cluster.address is not None:
        try:
            ray.init(
                address=cluster.address,
                namespace=cluster.namespace,
                runtime_env={"env_vars": PROCESS_ENVIRONMENT},
                log_to_driver=False,
                logging_level=logging.WARNING,
            )
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise ConfigError(
                f"the run cannot start: cluster.address is {cluster.address}, and no Ray cluster can be joined there "
                f"({' '.join(str(error).split())}). Start one with `ray start --head` and give its address, or set "
                f"cluster.address to null for a private one"
            ) from error
        try:
            yield
        finally:
            _shut_down(TEARDOWN_SHARE * cluster.shutdown_timeout_s)
        return
    sweep()
    others = set(descendants())
    with session_directory() as directory:
        os.environ["VLLM_RPC_BASE_PATH"] = str(directory)  # vLLM leaves its sockets where they are
        try:
            _start_cluster(settings, logical_cpus(settings), directory, others)
            yield
        finally:
            ours = [process for process in descendants() if process not in others]
            try:
                _shut_down(TEARDOWN_SHARE * cluster.shutdown_timeout_s)
            finally:
                end_all(ours, CLOSING_SHARE * cluster.shutdown_timeout_s)


def _start_cluster(settings: Settings, cpus: int, directory: Path, others: set[Process]) -> None:
    """Start a private cluster. Raises RunFailed after STARTS failures in a row.

    Ray gives a node 30 s, which may be too short on a busy machine. `others` are older children of this process.
    """
    import ray
    from ray._private import ray_constants

    # Ray reads RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER at its first import, which may have been before it was set. Then its
    # servers would listen on every address of the machine, with no authentication.
    ray_constants.ENABLE_RAY_CLUSTER = False
    cluster = settings.cluster
    for start in count(1):
        try:
            ray.init(
                namespace=cluster.namespace,
                num_cpus=cluster.num_cpus or cpus,
                object_store_memory=cluster.object_store_memory,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.WARNING,
                _temp_dir=str(directory),
            )
        except Exception as error:  # Ray raises nothing narrower
            _shut_down(TEARDOWN_SHARE * cluster.shutdown_timeout_s)
            end_all([process for process in descendants() if process not in others], 0.0)
            if start == STARTS:
                raise RunFailed(
                    f"Ray did not start, {STARTS} times in a row: {' '.join(str(error).split())} The machine may be "
                    f"out of memory or far too busy: look at both, and start the run again"
                ) from error
        else:
            return


def _shut_down(timeout_s: float) -> None:
    """Disconnect, within a deadline: with a raylet or GCS that hangs, `ray.shutdown` never returns, now or at exit."""
    import ray

    if not within(timeout_s, ray.shutdown):
        atexit.unregister(ray.shutdown)
