"""Two trainer ranks share a mixture of experts with persistent buffers, and save and sync it as one process does."""

import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.distributed import FileStore
from transformers import AutoModelForCausalLM

from runtime.launch.export_model import export_model
from runtime.settings import load_settings
from runtime.training.ranks import joined_ranks, share_of_rank
from runtime.training.trainer import StepTrainer
from tests.runtime.checkpoints.helpers import save_world, world_at
from tests.runtime.models.architectures import groups, logits_of, save, train_a_step, trainer_of
from tests.runtime.training.helpers import run_two_ranks, save_trainer

NAMES = ("deepseek_v3", "qwen3_moe", "gpt2 tied")


def run_rank(rank: int, directory: Path) -> None:
    """A step of each model as one of two ranks; rank 0 writes down what it would sync."""
    store = FileStore(str(directory / "meeting"), 2)
    with joined_ranks(rank, 2, store=store, device="cpu") as ranks:
        for name in NAMES:
            trainer = trainer_of(directory / name, ranks=ranks)
            trainer.accumulate(share_of_rank(groups(2), rank, 2), 0)
            trainer.finish_step()
            weights = trainer.state_numpy()
            if rank == 0:
                np.savez(directory / f"{name}.npz", **weights)
            trainer.save_model(directory / "final" / name)
            save_trainer(trainer, directory / "saved" / name)


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("two_ranks")
    for name in NAMES:
        save(name, directory / name)
    run_two_ranks(run_rank, directory)
    return directory


@pytest.mark.parametrize("name", NAMES)
def test_two_ranks_sync_and_save_what_one_does(name: str, two_ranks: Path, tmp_path: Path) -> None:
    trainer = trainer_of(two_ranks / name)
    train_a_step(trainer)
    with np.load(two_ranks / f"{name}.npz") as sent:
        alone = trainer.state_numpy()
        assert sent.keys() == alone.keys()
        for key, array in alone.items():
            np.testing.assert_allclose(sent[key], array, rtol=0, atol=2e-5, err_msg=key)
    for target in (two_ranks / "final" / name, exported(two_ranks, name, tmp_path)):
        is_the_model_of(target, two_ranks / name, trainer)


def exported(two_ranks: Path, name: str, folder: Path) -> Path:
    """The model directory of a checkpoint whose trainer's files two ranks wrote."""
    checkpoint = save_world(
        folder / "checkpoints", world_at(1), trainer=partial(shutil.copytree, two_ranks / "saved" / name)
    )
    settings = load_settings(None, [f"policy.model_name={two_ranks / name}"])
    return export_model(folder, checkpoint, settings, folder / "exported", None)


def is_the_model_of(target: Path, source: Path, trainer: StepTrainer) -> None:
    assert load_file(target / "model.safetensors").keys() == load_file(source / "model.safetensors").keys()
    loaded = AutoModelForCausalLM.from_pretrained(target).eval()
    torch.testing.assert_close(logits_of(loaded), logits_of(trainer.model), rtol=0, atol=1e-3)
