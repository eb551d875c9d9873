"""Steps whose numbers are not finite: nothing moves but the version, and the first cause is named."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.distributed import FileStore

from runtime.groups import RolloutGroup
from runtime.models.directory import UnsupportedModel
from runtime.training.config import DecaySchedule, LossConfig, OptimizerConfig
from runtime.training.model import trainable_parameters
from runtime.training.ranks import joined_ranks, share_of_rank
from runtime.training.step_metrics import Number, WeightsNotFinite
from runtime.training.trainer import StepTrainer
from tests.runtime.training.helpers import (
    assert_same_weights,
    copied_weights,
    make_groups,
    make_trainer,
    run_two_ranks,
    save_tiny_gpt2,
    save_trainer,
    train,
    two_steps,
)

SCHEDULE = OptimizerConfig(lr=1e-2, eps=1e-3, schedule=DecaySchedule(name="linear", warmup_steps=2, total_steps=9))
UNSCALED = LossConfig(normalize_rewards=False)
SHORT = {"train_microbatch_tokens": 24}


def state_of(trainer: StepTrainer) -> dict[str, Tensor]:
    """Weights and AdamW's state, copied."""
    moments = {
        f"{name}/{kind}": value.clone()
        for name, parameter in trainable_parameters(trainer.model)
        for kind, value in trainer.optimizer.state.get(parameter, {}).items()
    }
    return {name: weight.detach().clone() for name, weight in trainer.model.named_parameters()} | moments


def assert_bit_for_bit(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        assert torch.equal(value, theirs[name]), name


def with_reward(groups: list[RolloutGroup], prompt: int, reward: float) -> list[RolloutGroup]:
    """The groups, where one rollout of a prompt has another reward."""
    first, *others = groups[prompt].rollouts
    changed = replace(groups[prompt], rollouts=(replace(first, reward=reward), *others))
    return [*groups[:prompt], changed, *groups[prompt + 1 :]]


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("loss", [LossConfig(), UNSCALED], ids=["divided", "undivided"])
@pytest.mark.parametrize("reward", [1e300, -1.7e308])
def test_an_extreme_reward_costs_its_step_and_changes_nothing_else(
    tiny_gpt2: str, loss: LossConfig, precision: str, reward: float
) -> None:
    """Afterwards training continues as if that step had not been: also the schedule does."""
    trainer = make_trainer(tiny_gpt2, loss=loss, optimizer=SCHEDULE, precision=precision, **SHORT)
    undisturbed = make_trainer(tiny_gpt2, loss=loss, optimizer=SCHEDULE, precision=precision, **SHORT)
    for one in (trainer, undisturbed):
        two_steps(one, cut=3)
    before = state_of(trainer)
    metrics = train(trainer, [with_reward(make_groups(6, seed=3), 4, reward)])
    assert metrics.not_finite is not None
    assert (metrics.version, metrics.not_finite.what, metrics.not_finite.prompts) == (3, Number.ADVANTAGES, (4,))
    assert not metrics.not_finite.doubts_weights
    assert_bit_for_bit(state_of(trainer), before)
    for ours, theirs in zip(two_steps(trainer, cut=3), two_steps(undisturbed, cut=3), strict=True):
        assert ours.not_finite is None
        assert (ours.lr, ours.loss, ours.grad_norm) == (theirs.lr, theirs.loss, theirs.grad_norm)
    assert_bit_for_bit(state_of(trainer), state_of(undisturbed))


@pytest.mark.parametrize("max_grad_norm", [1.0, None])
def test_a_reward_whose_gradient_overflows_is_named_with_its_microbatch(
    tiny_gpt2: str, max_grad_norm: float | None
) -> None:
    """The advantages fit float32, and the squares of the gradient do not."""
    optimizer = OptimizerConfig(lr=1e-2, max_grad_norm=max_grad_norm)
    trainer = make_trainer(tiny_gpt2, loss=UNSCALED, optimizer=optimizer, **SHORT)
    before = state_of(trainer)
    metrics = train(trainer, [make_groups(2, seed=1), with_reward(make_groups(3, seed=2), 1, 3e38)])
    assert metrics.not_finite is not None
    assert metrics.not_finite.what in (Number.LOSS, Number.GRADIENT)
    assert metrics.not_finite.microbatch is not None
    assert 1 in metrics.not_finite.prompts
    assert_bit_for_bit(state_of(trainer), before)


def test_a_gradient_whose_square_overflows_does_not_poison_the_moments(tiny_gpt2: str) -> None:
    trainer = make_trainer(tiny_gpt2, loss=UNSCALED, optimizer=OptimizerConfig(lr=1e-2, max_grad_norm=None))
    before = state_of(trainer)
    metrics = train(trainer, [with_reward(make_groups(3, seed=2), 1, 1e22)])
    assert np.isfinite(metrics.loss)
    assert metrics.not_finite is not None
    assert metrics.not_finite.what is Number.GRADIENT
    assert_bit_for_bit(state_of(trainer), before)
    assert str(metrics.not_finite) == "the gradient"


def test_a_planted_nan_weight_is_told_by_the_log_probabilities(tiny_gpt2: str) -> None:
    trainer = make_trainer(tiny_gpt2, **SHORT)
    weight = trainer.model.get_parameter("transformer.h.1.mlp.c_fc.weight")
    with torch.no_grad():
        weight[0, 0] = float("nan")
    metrics = train(trainer, [make_groups(3, seed=1)])
    assert metrics.not_finite is not None
    assert metrics.not_finite.what is Number.LOGPROBS
    assert metrics.not_finite.doubts_weights
    assert str(metrics.not_finite).startswith("the policy's log-probabilities of prompt")
    assert metrics.not_finite.microbatch == 1


def test_a_nan_in_the_reference_is_told_apart_from_one_in_the_policy(tiny_gpt2: str) -> None:
    trainer = make_trainer(tiny_gpt2, loss=LossConfig(reference_policy_kl_penalty=0.1))
    assert trainer.reference is not None
    with torch.no_grad():
        trainer.reference.get_parameter("transformer.ln_f.weight")[0] = float("inf")
    metrics = train(trainer, [make_groups(3, seed=1)])
    assert metrics.not_finite is not None
    assert metrics.not_finite.what is Number.REFERENCE_LOGPROBS


def test_a_learning_rate_that_would_overflow_the_weights_is_not_applied(tiny_gpt2: str) -> None:
    trainer = make_trainer(tiny_gpt2, optimizer=OptimizerConfig(lr=1e38))
    before = state_of(trainer)
    metrics = train(trainer, [make_groups(3, seed=1)])
    assert metrics.not_finite is not None
    assert metrics.not_finite.what is Number.WEIGHTS
    assert_bit_for_bit(state_of(trainer), before)


def test_a_huge_learning_rate_never_leaves_weights_that_are_not_finite(tiny_gpt2: str) -> None:
    """The first step is finite, and blows the weights up; no later one is applied."""
    trainer = make_trainer(tiny_gpt2, optimizer=OptimizerConfig(lr=1e30))
    applied = [train(trainer, [make_groups(3, seed=seed)]).not_finite is None for seed in range(4)]
    assert applied == [True, False, False, False]
    assert all(torch.isfinite(weight).all() for weight in trainer.model.parameters())


def test_an_overflow_that_no_bound_foresees_is_an_error_and_nothing_is_returned_to_save(tiny_gpt2: str) -> None:
    """With these betas AdamW may move a weight by far more than a few learning rates."""
    optimizer = OptimizerConfig(lr=1e36, betas=(0.0, 0.0), eps=1e-30, max_grad_norm=None, weight_decay=0.0)
    trainer = make_trainer(tiny_gpt2, optimizer=optimizer)
    trainer.optimizer.param_groups[0]["eps"] = trainer.optimizer.param_groups[1]["eps"] = 0.0
    trainer.accumulate(make_groups(3, seed=1), 0)
    for _, parameter in trainable_parameters(trainer.model):
        assert parameter.grad is not None
        parameter.grad.fill_(1e-30)  # its square is 0 in float32
    with pytest.raises(WeightsNotFinite, match=r"optimizer step 0 overflowed \(lower optimizer\.lr\)"):
        trainer.finish_step()


def test_a_model_or_a_checkpoint_with_weights_that_are_not_finite_is_refused(tmp_path: Path) -> None:
    model = save_tiny_gpt2(tmp_path / "model")
    trainer = make_trainer(model)
    save_trainer(trainer, tmp_path / "state")
    for file in (tmp_path / "state" / "model.safetensors", Path(model) / "model.safetensors"):
        weights = load_file(file)
        weights["transformer.wpe.weight"][-1, 0] = float("nan")  # of a position that no rollout may reach
        save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(WeightsNotFinite, match="cannot be resumed from"):
        trainer.load(tmp_path / "state")
    with pytest.raises(UnsupportedModel, match=r"NaN or infinite.*transformer\.wpe\.weight"):
        make_trainer(model)


def test_the_schedule_of_a_resumed_trainer_leaves_out_the_steps_that_were_not_applied(
    tiny_gpt2: str, tmp_path: Path
) -> None:
    trainer = make_trainer(tiny_gpt2, optimizer=SCHEDULE)
    train(trainer, [with_reward(make_groups(3, seed=3), 0, 1e300)])
    save_trainer(trainer, tmp_path / "state")
    resumed = make_trainer(tiny_gpt2, optimizer=SCHEDULE)
    resumed.load(tmp_path / "state")
    assert (resumed.version, resumed.not_applied) == (1, 1)
    assert train(resumed, [make_groups(3, seed=1)]).lr == SCHEDULE.lr / 2
    (tmp_path / "state" / "trainer.json").write_text('{"format": "evenstep trainer 1", "version": 1}')
    resumed.load(tmp_path / "state")
    assert (resumed.version, resumed.not_applied) == (1, 0)


def chunk_with_one_bad_group(rank: int) -> tuple[list[RolloutGroup], list[RolloutGroup]]:
    """A chunk of which only the other rank's share has an extreme reward, and the share of `rank`."""
    groups = make_groups(6, seed=5)
    of_second = share_of_rank(groups, 1, 2)[0].prompt
    chunk = with_reward(groups, of_second, 1e300)
    return chunk, share_of_rank(chunk, rank, 2)


def run_rank(rank: int, model: str, directory: Path) -> None:
    """Steps of one of two ranks, of which only the second has a group that is not finite, or a NaN in its shard."""
    store = FileStore(str(directory / "meeting"), 2)
    with joined_ranks(rank, 2, store=store, device="cpu") as ranks:
        trainer = make_trainer(model, optimizer=SCHEDULE, ranks=ranks, **SHORT)
        told = []
        for bad in (False, True, False):
            chunk, share = chunk_with_one_bad_group(rank)
            before = state_of(trainer)
            trainer.accumulate(share if bad else share_of_rank(make_groups(6, seed=1), rank, 2), trainer.version)
            metrics = trainer.finish_step()
            told.append((metrics.lr, None if metrics.not_finite is None else str(metrics.not_finite)))
            if bad:
                assert_bit_for_bit(state_of(trainer), before)
                assert len(chunk) == 6
        weights = trainer.state_numpy()
        with torch.no_grad():
            shard = next(iter(trainer.model.parameters())).to_local()
            shard[0, 0] = float("nan") if rank == 1 else shard[0, 0]
        trainer.accumulate(share_of_rank(make_groups(6, seed=1), rank, 2), trainer.version)
        told.append((0.0, str(trainer.finish_step().not_finite)))
        (directory / f"told-{rank}.json").write_text(json.dumps(told))
        if rank == 0:
            np.savez(directory / "weights.npz", **weights)


def test_two_ranks_leave_out_the_same_step_and_name_whose_prompt_it_was(tiny_gpt2: str, tmp_path: Path) -> None:
    run_two_ranks(run_rank, tiny_gpt2, tmp_path)
    one, other = (json.loads((tmp_path / f"told-{rank}.json").read_text()) for rank in range(2))
    assert one == other
    bad = share_of_rank(make_groups(6, seed=5), 1, 2)[0].prompt
    assert one[0] == [SCHEDULE.lr / 2, None]
    assert one[1][1].startswith(f"the advantages of prompt {bad} in microbatch ")
    assert one[1][1].endswith(" on trainer rank 1")
    assert one[2] == [SCHEDULE.lr, None]
    assert one[3][1].startswith("the policy's log-probabilities of prompts ")
    alone = make_trainer(tiny_gpt2, optimizer=SCHEDULE, **SHORT)
    for seed in (1, 1):
        train(alone, [make_groups(6, seed=seed)])
    with np.load(tmp_path / "weights.npz") as weights:
        assert_same_weights(dict(weights), copied_weights(alone), tolerance=2e-5)
