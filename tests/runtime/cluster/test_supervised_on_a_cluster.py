"""On a cluster that a run has joined, only its own actors go: when its controller freezes, and when its driver dies."""

import os
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime.launch.processes import process_tree
from runtime.launch.ray_session import _PRIVATE_ENVIRONMENT
from runtime.launch.supervision.roles import ACTORS, Role, title_of
from tests.chaos.live import started, summary_of
from tests.runtime.ends.helpers import LIMIT_S

GONE_S = 60.0
STEPS = 16


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Of a cluster below this process."""
    before = dict(os.environ)
    os.environ.update(_PRIVATE_ENVIRONMENT)
    with tempfile.TemporaryDirectory(prefix="es-", dir="/tmp") as folder:  # short: Ray's sockets lie in it
        os.environ["RAY_TMPDIR"] = folder
        (Path(folder) / "ray").mkdir()
        from ray.cluster_utils import Cluster

        cluster = Cluster(
            initialize_head=True,
            head_node_args={"num_cpus": 4, "object_store_memory": 100_000_000, "include_dashboard": False},
        )
        try:
            yield cluster.address
        finally:
            cluster.shutdown()
            os.environ.clear()
            os.environ.update(before)


def titled(text: str) -> list[int]:
    """Processes of the cluster."""
    return [pid for pid in process_tree(os.getpid()) if text in title_of(pid)]


def actors() -> list[str]:
    """Titles of the run's actors that are there; Ray's own agents stay with the cluster."""
    return [title_of(pid) for kind in ACTORS for pid in titled(f"ray::{kind}")]


def test_a_frozen_controller_is_replaced_and_the_cluster_survives_the_driver(address: str, tmp_path: Path) -> None:
    overrides = {
        "cluster.address": address,
        "cluster.run_name": "supervised",
        "cluster.frozen_timeout_s": 15,
        "grpo.max_num_steps": STEPS,
        "checkpointing.every_steps": 2,
        "data.validation_size": 0,
        "data.delay": "{median_s: 0.3, sigma: 0.2, max_s: 1.0}",
    }
    raylets = titled("/raylet")
    with started(tmp_path / "run", overrides=overrides) as run:
        run.wait_for("^step 3 ")
        [frozen] = titled("ray::Controller")
        os.kill(frozen, signal.SIGSTOP)
        run.wait_for(f"the run is restarted .*{Role.CONTROLLER} .process {frozen}. has not run for")
        assert run.process.wait(LIMIT_S) == 0, run.lines
        summary = summary_of(run.output)
        assert summary is not None
        assert summary["steps"] == STEPS
    with started(tmp_path / "killed", overrides=overrides) as run:
        run.wait_for("^step 3 ")
        os.kill(run.process.pid, signal.SIGKILL)
        deadline_s = time.monotonic() + GONE_S
        while (left := actors()) and time.monotonic() < deadline_s:
            time.sleep(0.2)
        assert left == []
    assert raylets
    assert titled("/raylet") == raylets
