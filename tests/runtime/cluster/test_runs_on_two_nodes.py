"""On a cluster the controller runs where `--output` is, and processes that see another directory are refused."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fsm.errors import ConfigError
from runtime.actors.trainer_rank import CONCURRENCY_GROUPS, TrainerRank
from runtime.control.messages import Message, StepDone
from runtime.launch import driving
from runtime.launch.ray_session import _PRIVATE_ENVIRONMENT, ray_session
from runtime.naming import PROBED, start_actor
from runtime.output.shared_output import TOKEN_FILE, OutputNotShared, SharedOutput, shared_output
from runtime.settings import Settings
from tests.runtime.ray.helpers import made_model, run, settings_of


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def settings() -> Iterator[Settings]:
    """Of a run on two nodes: this process is on the head, which has no CPU, so that the trainer is on the other."""
    before = dict(os.environ)
    os.environ.update(_PRIVATE_ENVIRONMENT)
    with tempfile.TemporaryDirectory(prefix="es-", dir="/tmp") as folder:  # short: Ray's sockets lie in it
        os.environ["RAY_TMPDIR"] = folder  # nor is this cluster found as address "auto" by others on this machine
        (Path(folder) / "ray").mkdir()
        from ray.cluster_utils import Cluster

        memory = 100_000_000
        head = {"num_cpus": 0, "object_store_memory": memory, "include_dashboard": False}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        try:
            cluster.add_node(num_cpus=4, object_store_memory=memory)
            overrides = {
                "cluster.address": cluster.address,
                "data.validation_size": "0",
                "checkpointing.enabled": "true",
                "checkpointing.every_steps": "2",
            }
            settings = settings_of(overrides, steps=3)
            with ray_session(settings):
                yield settings
        finally:
            cluster.shutdown()
            os.environ.clear()
            os.environ.update(before)


def node_of(actor: Any) -> str:
    import ray

    def node(_: Any) -> str:
        import ray

        return str(ray.get_runtime_context().get_node_id())

    return str(ray.get(actor.__ray_call__.remote(node)))


def test_the_controller_runs_where_the_output_directory_is_and_the_trainer_may_run_elsewhere(
    settings: Settings, model: Path, tmp_path: Path
) -> None:
    import ray

    nodes: dict[str, str] = {}

    def listen(message: Message) -> None:
        if isinstance(message, StepDone) and len(nodes) < 2:
            for actor in ray.util.list_named_actors(True):
                what = actor["name"].partition("-")[2].partition("-")[2]
                if what in ("controller", "trainer-0"):
                    nodes[what] = node_of(ray.get_actor(actor["name"], namespace=settings.cluster.namespace))

    # Messages come every half second: a run of a few steps is over by then, with its actors.
    long = settings.model_copy(update={"grpo": settings.grpo.model_copy(update={"max_num_steps": 150})})
    outcome = run(long, model, tmp_path, listen)
    assert outcome.status == "completed", outcome.error
    here = ray.get_runtime_context().get_node_id()
    assert nodes["controller"] == here
    assert nodes["trainer-0"] != here
    assert outcome.checkpoint is not None
    assert outcome.checkpoint.is_dir()
    assert (tmp_path / "metrics.jsonl").exists()
    assert not (tmp_path / TOKEN_FILE).exists()


def test_a_trainer_rank_that_sees_another_directory_refuses(settings: Settings, tmp_path: Path) -> None:
    import ray

    rank: Any = start_actor(TrainerRank, {"concurrency_groups": CONCURRENCY_GROUPS}, settings, tmp_path, None)
    try:
        with shared_output(tmp_path) as shared:
            ray.get(rank.look.remote(shared, "trainer rank 0"))
            other = SharedOutput(tmp_path, "of another run")
            with pytest.raises(OutputNotShared, match=r"trainer rank 0 runs on .* another directory of that name"):
                ray.get(rank.look.remote(other, "trainer rank 0"))
        with pytest.raises(OutputNotShared, match=r"No such file or directory.* file system that all nodes"):
            ray.get(rank.look.remote(shared, "trainer rank 0"))
    finally:
        ray.kill(rank)


def test_a_directory_that_is_not_shared_is_refused_in_one_line_before_the_run_begins(
    settings: Settings, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def another(output: Path) -> Iterator[SharedOutput]:
        """As if other processes had a directory of their own of that name."""
        with shared_output(output):
            yield SharedOutput(output, "of another directory")

    monkeypatch.setattr(driving, "shared_output", another)
    with pytest.raises(ConfigError, match=r"the run cannot start: the controller runs on") as refused:
        run(settings, model, tmp_path)
    assert "\n" not in str(refused.value)
    assert not list(tmp_path.glob("checkpoints/*"))


def test_a_generation_worker_without_the_model_refuses(settings: Settings, model: Path, tmp_path: Path) -> None:
    import ray

    from runtime.actors.generation_worker import GenerationWorker

    arguments = ("generation-0", settings, tmp_path / "none", None, [None], 0)
    worker: Any = start_actor(GenerationWorker, PROBED, *arguments)
    try:
        with pytest.raises(OutputNotShared, match=r"generation-0 runs on .* there is no such directory"):
            ray.get(worker.open.remote())
    finally:
        ray.kill(worker)
