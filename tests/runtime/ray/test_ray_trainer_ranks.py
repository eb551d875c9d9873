"""A whole run on Ray with two trainer ranks: FSDP2 over gloo, and a broadcast from the first of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from ray_helpers import ON_POLICY, metrics_of, run, settings_of


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
