"""Saving and resuming a trainer."""

from pathlib import Path

import pytest
import torch
from transformers import GPT2LMHeadModel

from runtime.training.config import DecaySchedule, OptimizerConfig
from tests.runtime.training.helpers import (
    assert_same_weights,
    copied_weights,
    make_groups,
    make_trainer,
    save_trainer,
    tiny_llama,
    two_steps,
    write_copy,
)

SCHEDULE = OptimizerConfig(lr=1e-2, schedule=DecaySchedule(name="cosine", warmup_steps=1, total_steps=6))


@pytest.mark.parametrize("layers", [None, 1])
def test_after_a_save_and_a_load_training_goes_on_bit_by_bit(
    tiny_gpt2: str, tmp_path: Path, layers: int | None
) -> None:
    original = make_trainer(tiny_gpt2, optimizer=SCHEDULE, train_last_layers=layers)
    two_steps(original, cut=6)
    save_trainer(original, tmp_path / "state")
    random = torch.rand(3)
    resumed = make_trainer(tiny_gpt2, optimizer=SCHEDULE, train_last_layers=layers)
    resumed.accumulate(make_groups(1, seed=8), 0)
    resumed.load(tmp_path / "state")
    assert torch.equal(torch.rand(3), random)
    assert resumed.version == 2
    for ours, theirs in zip(two_steps(resumed, cut=3), two_steps(original, cut=3), strict=True):
        assert (ours.version, ours.loss, ours.grad_norm, ours.lr) == (
            theirs.version,
            theirs.loss,
            theirs.grad_norm,
            theirs.lr,
        )
    assert_same_weights(resumed.state_numpy(), original.state_numpy())


def test_a_copy_is_what_the_trainer_was_even_if_it_is_written_after_more_steps(tiny_gpt2: str, tmp_path: Path) -> None:
    trainer = make_trainer(tiny_gpt2, optimizer=SCHEDULE)
    two_steps(trainer, cut=6)
    before, state = copied_weights(trainer), trainer.copy_state()
    random = torch.rand(3)
    after = two_steps(trainer, cut=3)
    write_copy(state, tmp_path / "state", trainer.ranks)
    resumed = make_trainer(tiny_gpt2, optimizer=SCHEDULE)
    resumed.load(tmp_path / "state")
    assert torch.equal(torch.rand(3), random)
    assert_same_weights(resumed.state_numpy(), before)
    again = two_steps(resumed, cut=3)
    assert [step.loss for step in again] == [step.loss for step in after]
    assert_same_weights(resumed.state_numpy(), trainer.state_numpy())


def test_a_save_before_the_first_step_can_be_loaded(tiny_gpt2: str, tmp_path: Path) -> None:
    trainer = make_trainer(tiny_gpt2)
    save_trainer(trainer, tmp_path)
    moved = make_trainer(tiny_gpt2)
    two_steps(moved, cut=6)
    moved.load(tmp_path)
    for one in (trainer, moved):
        two_steps(one, cut=6)
    assert_same_weights(trainer.state_numpy(), moved.state_numpy())


def test_what_is_saved_is_a_model_directory_and_holds_no_pickle(tiny_gpt2: str, tmp_path: Path) -> None:
    trainer = make_trainer(tiny_gpt2)
    two_steps(trainer, cut=6)
    save_trainer(trainer, tmp_path)
    assert sorted(file.suffix for file in tmp_path.iterdir()) == [".json", ".json", ".safetensors", ".safetensors"]
    model = GPT2LMHeadModel.from_pretrained(tmp_path)
    expected = {name: parameter.detach().numpy() for name, parameter in model.named_parameters()}
    assert_same_weights(trainer.state_numpy(), expected)
    assert torch.equal(model.lm_head.weight, model.transformer.wte.weight)


def test_a_save_over_other_files_and_a_load_of_other_files_are_refused(tiny_gpt2: str, tmp_path: Path) -> None:
    trainer = make_trainer(tiny_gpt2, train_last_layers=1)
    two_steps(trainer, cut=6)
    save_trainer(trainer, tmp_path / "state")
    with pytest.raises(FileExistsError, match="is not empty"):
        save_trainer(trainer, tmp_path / "state")
    with pytest.raises(ValueError, match=r"set policy\.train_last_layers as it was"):
        make_trainer(tiny_gpt2).load(tmp_path / "state")
    (tmp_path / "state" / "trainer.json").write_text('{"format": "other", "version": 1}')
    with pytest.raises(ValueError, match="has format 'other'"):
        trainer.load(tmp_path / "state")
    with pytest.raises(FileNotFoundError):
        trainer.load(tmp_path / "nowhere")


def test_another_architecture_with_a_head_of_its_own_trains_and_resumes(tmp_path: Path) -> None:
    tiny_llama().save_pretrained(tmp_path / "llama")
    trainer = make_trainer(str(tmp_path / "llama"))
    before = copied_weights(trainer)
    two_steps(trainer, cut=2)
    assert all((array != before[name]).any() for name, array in trainer.state_numpy().items())
    save_trainer(trainer, tmp_path / "state")
    resumed = make_trainer(str(tmp_path / "state"))
    assert_same_weights(resumed.state_numpy(), trainer.state_numpy())
