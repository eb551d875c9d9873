"""Two real processes with gloo, against one process."""

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.distributed import FileStore

from runtime.training.config import LossConfig
from runtime.training.model import load_causal_lm
from runtime.training.ranks import Ranks, alone, joined_ranks, shard_model, share_of_rank
from runtime.training.totals import StepSums, no_sums, total_over_ranks
from tests.runtime.training.helpers import (
    assert_same_weights,
    copied_weights,
    make_groups,
    make_trainer,
    run_two_ranks,
    write_copy,
)

LOSS = LossConfig(aggregation="sequence", reference_policy_kl_penalty=0.1)
SHORT = {"train_microbatch_tokens": 24}


def chunks_of(step: int) -> list[list]:
    """Chunks of 3, 1 and 2 groups: the second leaves a rank without any."""
    groups = make_groups(6, seed=step)
    return [groups[:3], groups[3:4], groups[4:]]


BEYOND_FLOAT32 = 2**24 + 1
"""The first whole number that float32 does not have."""


def total_of_many(ranks: Ranks) -> StepSums[float]:
    """The first rank counts more than float32 can, the others 2 of everything."""
    mine = BEYOND_FLOAT32 if ranks.rank == 0 else 2
    counted = torch.tensor(mine, dtype=torch.float64)
    names = ("tokens", "sequences", "clipped_low", "mismatched", "groups", "rollouts", "staleness", "staleness_max")
    return total_over_ranks(no_sums(torch.device("cpu"))._replace(**dict.fromkeys(names, counted)), ranks)


def run_rank(rank: int, model: str, directory: Path) -> None:
    """Two steps as one of two ranks; rank 0 writes down weights and metrics, both save after one more step."""
    store = FileStore(str(directory / "meeting"), 2)
    with joined_ranks(rank, 2, store=store, device="cpu") as ranks:
        trainer = make_trainer(model, loss=LOSS, ranks=ranks, **SHORT)
        metrics = []
        for step in range(2):
            for chunk in chunks_of(step):
                trainer.accumulate(share_of_rank(chunk, rank, 2), step)
            metrics.append(asdict(trainer.finish_step()))
        weights = trainer.state_numpy()
        state = trainer.copy_state()
        trainer.accumulate(share_of_rank(chunks_of(0)[0], rank, 2), 2)
        trainer.finish_step()
        write_copy(state, directory / "state", ranks)
        resumed = make_trainer(model, loss=LOSS, ranks=ranks, **SHORT)
        resumed.load(directory / "state")
        again = resumed.state_numpy()
        half = make_trainer(model, precision="bfloat16", train_last_layers=1, ranks=ranks)
        half.accumulate(share_of_rank(chunks_of(0)[0], rank, 2), 0)
        bfloat16 = asdict(half.finish_step())
        many = total_of_many(ranks)
        if rank == 0:
            (directory / "many.json").write_text(json.dumps(many._asdict()))
            np.savez(directory / "weights.npz", **weights)
            np.savez(directory / "again.npz", **again)
            (directory / "metrics.json").write_text(json.dumps([*metrics, bfloat16]))
        else:
            assert weights == {}


@pytest.fixture(scope="module")
def two_ranks(tiny_gpt2: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("two_ranks")
    run_two_ranks(run_rank, tiny_gpt2, directory)
    return directory


def test_two_ranks_make_the_update_of_one_process(tiny_gpt2: str, two_ranks: Path) -> None:
    trainer = make_trainer(tiny_gpt2, loss=LOSS, **SHORT)
    expected = []
    for step in range(2):
        for chunk in chunks_of(step):
            trainer.accumulate(chunk, step)
        expected.append(asdict(trainer.finish_step()))
    with np.load(two_ranks / "weights.npz") as weights:
        assert_same_weights(dict(weights), copied_weights(trainer), tolerance=2e-5)
    found = json.loads((two_ranks / "metrics.json").read_text())
    for ours, theirs in zip(found[:2], expected, strict=True):
        del ours["seconds"], theirs["seconds"], ours["not_finite"]
        assert theirs.pop("not_finite") is None
        assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-6)


def test_counts_beyond_float32_are_added_up_exactly_over_ranks(two_ranks: Path) -> None:
    counts = ("tokens", "sequences", "clipped_low", "mismatched", "groups", "rollouts", "staleness")
    many = json.loads((two_ranks / "many.json").read_text())
    assert [many[count] for count in counts] == [BEYOND_FLOAT32 + 2] * len(counts)
    assert many["staleness_max"] == BEYOND_FLOAT32
    one = total_of_many(alone())._asdict()
    assert [one[count] for count in counts] == [BEYOND_FLOAT32] * len(counts)


def test_a_state_saved_by_two_ranks_is_loaded_by_two_and_by_one(tiny_gpt2: str, two_ranks: Path) -> None:
    with np.load(two_ranks / "weights.npz") as saved, np.load(two_ranks / "again.npz") as again:
        assert_same_weights(dict(saved), dict(again))
        trainer = make_trainer(tiny_gpt2, loss=LOSS, **SHORT)
        trainer.load(two_ranks / "state")
        assert trainer.version == 2
        assert_same_weights(trainer.state_numpy(), dict(saved))
    one = make_trainer(tiny_gpt2, loss=LOSS, **SHORT)
    for step in range(3):
        for chunk in chunks_of(step):
            one.accumulate(chunk, step)
            if step == 2:
                trainer.accumulate(chunk, step)
        one.finish_step()
    trainer.finish_step()
    assert_same_weights(trainer.state_numpy(), one.state_numpy(), tolerance=5e-5)


def test_sharded_bfloat16_computes_about_the_same(tiny_gpt2: str, two_ranks: Path) -> None:
    trainer = make_trainer(tiny_gpt2, train_last_layers=1)
    trainer.accumulate(chunks_of(0)[0], 0)
    exact = trainer.finish_step()
    found = json.loads((two_ranks / "metrics.json").read_text())[2]
    assert found["tokens"] == exact.tokens
    assert found["grad_norm"] == pytest.approx(exact.grad_norm, rel=0.05)
    assert found["loss"] == pytest.approx(exact.loss, abs=0.05)


def test_a_process_on_its_own_has_nothing_to_shard_over(tiny_gpt2: str) -> None:
    with pytest.raises(ValueError, match="join them with joined_ranks first"):
        shard_model(load_causal_lm(tiny_gpt2), "float32", alone())
