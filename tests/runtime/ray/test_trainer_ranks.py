"""A whole run on Ray with two trainer ranks: FSDP2 over gloo, and a broadcast from the first of them."""

import asyncio
from pathlib import Path

import pytest
import ray

from runtime.actors.trainer_group import TrainerGroup
from runtime.checkpoints.checkpoint import list_checkpoints, load
from runtime.checkpoints.retention import Retention
from runtime.models.directory import inspect_model
from runtime.naming import Names
from runtime.transport.data_plane import open_data_plane
from tests.runtime.ray.helpers import ON_POLICY, metrics_of, run, settings_of, start_of


def test_two_trainer_ranks_that_shard_the_model_learn_what_one_does(model: Path, tmp_path: Path) -> None:
    """The second step's loss shows that the gathered weights arrived too, since rollouts follow from weights."""
    runs = []
    for ranks, sync in (("1", "object_store"), ("2", "collective")):
        overrides = {**ON_POLICY, "cluster.num_trainer_ranks": ranks, "weight_sync.name": sync}
        outcome = run(settings_of(overrides, steps=3), model, tmp_path / ranks)
        assert outcome.status == "completed", outcome.error
        runs.append(
            [number for record in metrics_of(tmp_path / ranks) for number in (record["loss"], record["grad_norm"])]
        )
    assert len(runs[0]) == 6
    assert runs[1] == pytest.approx(runs[0], rel=1e-3)


def test_two_trainer_ranks_save_one_model_and_one_checkpoint_and_may_compute_meanwhile(
    model: Path, tmp_path: Path
) -> None:
    settings = settings_of({"cluster.num_trainer_ranks": "2"}, steps=1)
    names = Names("test-saves", settings.cluster.namespace)
    plane, plane_actors = open_data_plane(settings.data_plane, names)
    trainer = TrainerGroup(settings, names, model, plane, start_of(settings).origin)

    control = {"state": {"trainer": [0, 0]}, "ready": [], "chunk": [], "accumulated": []}

    async def save_twice() -> Path:
        await trainer.open()
        await trainer.copy_state(0, [])
        writing = asyncio.create_task(trainer.write_checkpoint(tmp_path / "checkpoints", control, Retention(1)))
        await trainer.publish(0)
        await trainer.save_model(tmp_path / "model" / "final")
        checkpoint = load(list_checkpoints((await writing).path.parent)[0])
        assert (checkpoint.step, checkpoint.control) == (0, control)
        assert await trainer.resume(checkpoint.path) == ()
        return await trainer.save_model(tmp_path / "model" / "final")

    try:
        saved = asyncio.run(save_twice())
    finally:
        trainer.close()
        for actor in plane_actors:
            ray.kill(actor)
    assert saved == tmp_path / "model" / "final"
    assert [path.name for path in saved.parent.iterdir()] == ["final"]
    assert inspect_model(saved) == inspect_model(model)
    assert (saved / "model.safetensors").read_bytes() == (model / "model.safetensors").read_bytes()
