"""A run that nothing is wrong with is never said to be stuck, at no moment; and one that is large is explained fast."""

import time
from pathlib import Path

import pytest

from runtime.explain.finding import RunVerdict
from tests.runtime.bookkeeping import config_of as small_config
from tests.runtime.bookkeeping import random_moves
from tests.runtime.explain.helpers import config_of, explained_run, recorded, recording

FINE = {RunVerdict.HEALTHY, RunVerdict.SLOW, RunVerdict.COMPLETED}


@pytest.mark.parametrize("sampler", ["in_order", "ready_first", "windowed", "weight_fifo"])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_sound_run_with_losses_is_fine_at_every_moment(tmp_path: Path, sampler: str, seed: int) -> None:
    path = tmp_path / "trace.jsonl"
    with recording(path, small_config(sampler), 40) as run:
        random_moves(run.world, seed, 10_000)
        last = run.trace.records
        assert run.world.over
    for seq in range(3, last, 7):
        explanation = explained_run(path, seq=seq)
        assert explanation.verdict in FINE, (seq, explanation.waits_for, explanation.proof)
    assert explained_run(path).verdict is RunVerdict.COMPLETED


def test_thousands_of_groups_in_flight_are_explained_in_seconds(tmp_path: Path) -> None:
    config = config_of({"name": "ready_first", "max_staleness_versions": 7}, 512)
    began_s = time.process_time()
    explanation = recorded(tmp_path / "trace.jsonl", config, lambda run: run.later(5.0), num_prompts=100_000)
    assert len(explanation.situation.vitals.rollouts) == 4_096
    assert explanation.verdict in FINE
    assert time.process_time() - began_s < 10
