"""Ray for one run: a private cluster on the loopback, or one that is there already."""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from runtime.processes import descendants, end_all, within
from runtime.saving import CLOSING_SHARE, TEARDOWN_SHARE
from runtime.settings import Settings

PROCESS_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",  # several processes share the cores: threads beside them make each many times slower
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "TQ_NUM_THREADS": "1",  # TransferQueue sets torch's threads, 8 of them, whenever it puts or gets
}
"""What every process of a run has in its environment, unless the user has set it otherwise."""

_PRIVATE_ENVIRONMENT = {
    "RAY_AUTH_MODE": "disabled",  # nobody but this machine can reach it
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # Ray's name for: this node's address is the loopback
    "RAY_worker_niceness": "0",  # Ray's 15 would let anything else on this machine go first
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray's record of every call is for its dashboard, and costs the controller a fifth of its time.
    "RAY_task_events_report_interval_ms": "0",
    "RAY_enable_metrics_collection": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


@contextmanager
def ray_session(settings: Settings) -> Iterator[None]:
    """Connect, and leave nothing behind: no process and no file of a private cluster, whatever its processes do (W3).

    Ray is imported here, after its environment is set: some of it is read when it is imported.
    """
    cluster = settings.cluster
    for name, value in PROCESS_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if cluster.address is None:
        for name, value in _PRIVATE_ENVIRONMENT.items():
            os.environ.setdefault(name, value)
    import ray

    from runtime.actors.naming import logical_cpus

    if cluster.address is not None:
        ray.init(
            address=cluster.address,
            namespace=cluster.namespace,
            runtime_env={"env_vars": PROCESS_ENVIRONMENT},
            log_to_driver=False,
            logging_level=logging.WARNING,
        )
        try:
            yield
        finally:
            _shut_down(TEARDOWN_SHARE * cluster.shutdown_timeout_s)
        return
    directory = Path(tempfile.mkdtemp(prefix="es-", dir="/tmp"))  # short: Ray's sockets lie in it
    others = set(descendants())
    try:
        ray.init(
            namespace=cluster.namespace,
            num_cpus=cluster.num_cpus or logical_cpus(settings),
            object_store_memory=cluster.object_store_memory,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.WARNING,
            _temp_dir=str(directory),
        )
        yield
    finally:
        ours = [process for process in descendants() if process not in others]
        try:
            _shut_down(TEARDOWN_SHARE * cluster.shutdown_timeout_s)
        finally:
            end_all(ours, CLOSING_SHARE * cluster.shutdown_timeout_s)
            shutil.rmtree(directory, ignore_errors=True)


def _shut_down(timeout_s: float) -> None:
    """Disconnect; a raylet or GCS that does not answer would hold up `ray.shutdown`, now and at the exit, for ever."""
    import ray

    if not within(timeout_s, ray.shutdown):
        atexit.unregister(ray.shutdown)
