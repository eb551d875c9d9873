"""Whole runs on Ray with the backends that are not the default: the broadcast, several trainer ranks, TransferQueue."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import ray
from ray_helpers import adds_up, metrics_of, run, settings_of

from runtime.messages import Message, StepDone
from runtime.replay import replay

N = 4
ON_POLICY = {
    "async_rl.sampler": "{name: in_order, max_lookahead_versions: 0}",
    "grpo.use_dynamic_sampling": "false",
    "generation.engine.batching": "whole",
    "data.validation_size": "0",
}


def test_a_broadcast_goes_on_with_the_worker_that_takes_a_dead_ones_place(model: Path, tmp_path: Path) -> None:
    settings = settings_of({"weight_sync.name": "collective", "cluster.num_generation_workers": "2"}, steps=6)
    killed: list[int] = []

    def kill(message: Message) -> None:
        if isinstance(message, StepDone) and not killed:
            killed.append(message.record["step"])
            worker = next(
                actor["name"] for actor in ray.util.list_named_actors(True) if "-generation-1.0" in actor["name"]
            )
            ray.kill(ray.get_actor(worker, namespace=settings.cluster.namespace))

    outcome = run(settings, model, tmp_path, kill)
    assert killed == [0]
    assert outcome.status == "completed", outcome.error
    assert [step["selected"] for step in outcome.closed] == [N] * 6
    assert outcome.worker_restarts == 1
    assert adds_up(outcome.balance)
    assert outcome.trace is not None
    assert replay(outcome.trace).difference is None


def test_two_trainer_ranks_that_shard_the_model_learn_what_one_does(model: Path, tmp_path: Path) -> None:
    """Rollouts are the same as long as the weights are, so that the losses show whether the broadcast arrived too."""
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


@pytest.mark.skipif(find_spec("transfer_queue") is None, reason="TransferQueue is not installed (an extra)")
def test_groups_travel_through_transfer_queue(model: Path, tmp_path: Path) -> None:
    losses = []
    for plane in ("object_store", "transfer_queue"):
        outcome = run(settings_of({**ON_POLICY, "data_plane.name": plane}, steps=3), model, tmp_path / plane)
        assert outcome.status == "completed", outcome.error
        losses.append([record["loss"] for record in metrics_of(tmp_path / plane)])
    assert losses[0] == losses[1]
