import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import Tensor

from runtime.training.config import Aggregation, LossConfig
from runtime.training.loss import (
    aggregate,
    clipped_policy_loss,
    importance_weights,
    normaliser,
    policy_loss,
    probability_ratio,
)

CLIP = {"ratio_clip_min": 0.2, "ratio_clip_max": 0.28}


def batch(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    mask = torch.rand((4, 6), generator=generator) < 0.6
    mask[:, 0] = False
    mask[:, 1] = True
    return {
        "logprobs": torch.where(mask, -draw(4, 6).abs(), 0.0).requires_grad_(),
        "entropy": torch.where(mask, draw(4, 6).abs(), 0.0).requires_grad_(),
        "generation_logprobs": torch.where(mask, -draw(4, 6).abs(), 0.0),
        "reference_logprobs": torch.where(mask, -draw(4, 6).abs(), 0.0),
        "advantages": draw(4),
        "mask": mask,
    }


def loss_by_loops(data: dict[str, Tensor], config: LossConfig) -> float:
    """The value of the loss, written out token by token from its definition."""
    total = 0.0
    for row in range(4):
        values = []
        advantage = data["advantages"][row].item()
        for t in range(6):
            if not data["mask"][row, t]:
                continue
            current, entropy = data["logprobs"][row, t].item(), data["entropy"][row, t].item()
            generation = data["generation_logprobs"][row, t].item()
            ratio = math.exp(current - generation) if config.old_policy == "generation" else 1.0
            low, high = 1 - config.ratio_clip_min, 1 + config.ratio_clip_max
            objective = min(ratio * advantage, min(max(ratio, low), high) * advantage)
            if config.ratio_clip_c is not None and advantage < 0:
                objective = max(objective, config.ratio_clip_c * advantage)
            weight = 1.0
            if config.old_policy == "recomputed" and config.use_importance_sampling_correction:
                weight = math.exp(current - generation)
                if config.truncated_importance_sampling_ratio is not None:
                    weight = min(weight, config.truncated_importance_sampling_ratio)
            difference = current - data["reference_logprobs"][row, t].item()
            drawn = math.exp(current - generation) if config.use_on_policy_kl_approximation else 1.0
            kl = (
                drawn
                * {
                    "k1": difference,
                    "k2": difference**2 / 2,
                    "k3": math.exp(-difference) + difference - 1,
                }[config.reference_policy_kl_type]
            )
            if config.kl_output_clamp_value is not None:
                kl = min(max(kl, -config.kl_output_clamp_value), config.kl_output_clamp_value)
            values.append(
                -weight * objective + config.reference_policy_kl_penalty * kl - config.entropy_coefficient * entropy
            )
        total += sum(values) / len(values) if config.aggregation == "sequence" else sum(values)
    return total


@pytest.mark.parametrize(
    "config",
    [
        LossConfig(),
        LossConfig(truncated_importance_sampling_ratio=None),
        LossConfig(truncated_importance_sampling_ratio=0.7),
        LossConfig(use_importance_sampling_correction=False),
        LossConfig(old_policy="generation"),
        LossConfig(old_policy="generation", ratio_clip_c=1.5),
        LossConfig(aggregation="sequence", entropy_coefficient=0.3),
        LossConfig(aggregation="dr_grpo", old_policy="generation"),
        LossConfig(reference_policy_kl_penalty=0.5),
        LossConfig(reference_policy_kl_penalty=0.5, reference_policy_kl_type="k2"),
        LossConfig(reference_policy_kl_penalty=0.5, reference_policy_kl_type="k1"),
        LossConfig(reference_policy_kl_penalty=0.5, use_on_policy_kl_approximation=False),
        LossConfig(reference_policy_kl_penalty=0.5, kl_output_clamp_value=0.3),
    ],
    ids=lambda config: ",".join(f"{k}={v}" for k, v in config.model_dump(exclude_defaults=True).items()),
)
@pytest.mark.parametrize("seed", range(5))
def test_the_loss_equals_its_definition_token_by_token(config: LossConfig, seed: int) -> None:
    data = batch(seed)
    loss, sums = policy_loss(**data, config=config)
    assert loss.item() == pytest.approx(loss_by_loops(data, config), rel=1e-5, abs=1e-5)
    assert sums.loss.item() == pytest.approx(loss.item())


@pytest.mark.parametrize("seed", range(3))
def test_the_gradient_of_the_recomputed_ratio_is_the_weighted_policy_gradient(seed: int) -> None:
    data = batch(seed)
    loss, _ = policy_loss(**data, config=LossConfig(truncated_importance_sampling_ratio=1.1))
    (gradient,) = torch.autograd.grad(loss, data["logprobs"])
    weights = torch.exp(data["logprobs"] - data["generation_logprobs"]).clamp(max=1.1).detach()
    expected = torch.where(data["mask"], -weights * data["advantages"].unsqueeze(-1), 0.0)
    torch.testing.assert_close(gradient, expected)


def test_the_ratio_is_exactly_one_and_never_clipped_when_the_old_policy_is_recomputed() -> None:
    data = batch(0)
    _, sums = policy_loss(**data, config=LossConfig(ratio_clip_min=0.0, ratio_clip_max=0.0))
    assert (sums.clipped_low.item(), sums.clipped_high.item()) == (0, 0)
    loss, _ = policy_loss(
        **data,
        config=LossConfig(ratio_clip_min=0.0, ratio_clip_max=0.0, use_importance_sampling_correction=False),
    )
    (gradient,) = torch.autograd.grad(loss, data["logprobs"])
    torch.testing.assert_close(gradient, torch.where(data["mask"], -data["advantages"].unsqueeze(-1), 0.0))


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (1.0, 2.0, -2.0, -2.0),  # inside
        (1.27, 2.0, -2.54, -2.0),
        (1.5, 2.0, -2.56, 0.0),  # above 1.28: held
        (0.5, 2.0, -1.0, -2.0),  # below, but the advantage is positive: let it come back
        (0.5, -2.0, 1.6, 0.0),  # below 0.8: held
        (1.5, -2.0, 3.0, 2.0),  # above, but the advantage is negative: push it down
        (2.9, -2.0, 5.8, 2.0),
        (4.0, -2.0, 6.0, 0.0),  # above c = 3: held by the dual clip
    ],
)
def test_the_clip_holds_a_ratio_only_on_the_side_that_its_advantage_pushes_to(
    ratio: float, advantage: float, loss: float, gradient: float
) -> None:
    ratios = torch.tensor([[ratio]], requires_grad=True)
    advantages = torch.tensor([advantage])
    value, below, above = clipped_policy_loss(ratios, advantages, LossConfig(**CLIP, ratio_clip_c=3.0))
    assert value.item() == pytest.approx(loss)
    value.sum().backward()
    assert ratios.grad is not None
    assert ratios.grad.item() == pytest.approx(gradient)
    assert (below.item(), above.item()) == (gradient == 0.0 and ratio < 1, gradient == 0.0 and ratio > 1)


@given(
    ratios=st.lists(st.floats(0.01, 10), min_size=1, max_size=5),
    advantage=st.floats(-3, 3).filter(lambda value: abs(value) > 1e-3),
)
def test_clip_binds_exactly_where_the_gradient_vanishes(ratios: list[float], advantage: float) -> None:
    tensor = torch.tensor([ratios], requires_grad=True)
    advantages = torch.tensor([advantage])
    loss, below, above = clipped_policy_loss(tensor, advantages, LossConfig(**CLIP))
    (gradient,) = torch.autograd.grad(loss.sum(), tensor)
    assert ((gradient == 0) == (below | above)).all()


def test_a_ratio_that_would_overflow_leaves_a_finite_gradient() -> None:
    logprobs = torch.tensor([[-0.1, -200.0]], requires_grad=True)
    ratio = probability_ratio(logprobs, torch.tensor([[-200.0, -0.1]]))
    loss, *_ = clipped_policy_loss(ratio, torch.tensor([1.0]), LossConfig(**CLIP))
    loss.sum().backward()
    assert logprobs.grad is not None
    assert torch.isfinite(logprobs.grad).all()


def test_importance_weights_are_ratios_bounded_by_the_cap_and_without_gradient() -> None:
    prev = torch.tensor([-1.0, -1.0, -3.0], requires_grad=True)
    generation = torch.tensor([-1.0, -3.0, -1.0])
    weights = importance_weights(prev, generation, 2.0)
    torch.testing.assert_close(weights, torch.tensor([1.0, 2.0, math.exp(-2)]))
    assert not weights.requires_grad
    assert importance_weights(prev, generation, None)[1].item() == pytest.approx(math.exp(2))


def test_the_importance_weight_makes_the_gradient_unbiased() -> None:
    """Over all tokens of a softmax the weighted gradient under another policy is the on-policy one."""
    logits = torch.tensor([0.3, -1.0, 0.7, 0.1], requires_grad=True)
    rewards = torch.tensor([1.0, 0.0, -0.5, 2.0])
    generation = torch.log_softmax(torch.tensor([1.0, 0.0, 0.0, -1.0]), -1)
    (exact,) = torch.autograd.grad(-(torch.softmax(logits, -1) * rewards).sum(), logits)
    expected = torch.zeros(4)
    for token in range(4):
        logprob = torch.log_softmax(logits, -1)[token].reshape(1, 1)
        loss, _ = policy_loss(
            logprobs=logprob,
            entropy=torch.zeros(1, 1),
            generation_logprobs=generation[token].reshape(1, 1),
            reference_logprobs=None,
            advantages=rewards[token].reshape(1),
            mask=torch.ones(1, 1, dtype=torch.bool),
            config=LossConfig(truncated_importance_sampling_ratio=None),
        )
        expected += generation[token].exp() * torch.autograd.grad(loss, logits)[0]
    torch.testing.assert_close(expected, exact)


def test_sequence_aggregation_means_each_row_and_the_others_add_tokens() -> None:
    values = torch.tensor([[1.0, 2.0, 99.0], [4.0, 99.0, 99.0]])
    mask = torch.tensor([[True, True, False], [True, False, False]])
    assert aggregate(values, mask, "token").item() == 7.0
    assert aggregate(values, mask, "dr_grpo").item() == 7.0
    assert aggregate(values, mask, "sequence").item() == 5.5


def test_masked_tokens_that_are_not_finite_reach_neither_value_nor_gradient() -> None:
    values = torch.tensor([[1.0, float("nan")]], requires_grad=True)
    total = aggregate(values, torch.tensor([[True, False]]), "token")
    assert total.item() == 1.0
    assert torch.autograd.grad(total, values)[0].tolist() == [[1.0, 0.0]]


@pytest.mark.parametrize(("aggregation", "divisor"), [("token", 70), ("sequence", 8), ("dr_grpo", 8 * 32)])
def test_each_aggregation_divides_by_what_its_paper_says(aggregation: Aggregation, divisor: int) -> None:
    assert normaliser(aggregation, tokens=70, sequences=8, dr_grpo_length=32) == divisor


def test_metric_sums_equal_a_plain_recomputation() -> None:
    data = batch(0)
    config = LossConfig(old_policy="generation")
    _, sums = policy_loss(**data, config=config)
    mask = data["mask"].numpy()
    current = data["logprobs"].detach().numpy().astype(np.float64)
    generation = data["generation_logprobs"].numpy()
    ratio = np.exp(current - generation)
    advantage = np.broadcast_to(data["advantages"].numpy()[:, None], ratio.shape)
    above, below = (ratio > 1.28) & (advantage > 0), (ratio < 0.8) & (advantage < 0)
    assert sums.tokens.item() == mask.sum()
    assert sums.sequences.item() == 4
    assert sums.clipped_high.item() == above[mask].sum() > 0
    assert sums.clipped_low.item() == below[mask].sum() > 0
    assert sums.entropy.item() == pytest.approx(data["entropy"].detach().numpy()[mask].sum(), rel=1e-5)
    assert sums.importance_weight.item() == pytest.approx(ratio[mask].sum(), rel=1e-5)
    assert sums.importance_weight_max.item() == pytest.approx(ratio[mask].max(), rel=1e-5)
    mismatch = np.abs(current - generation)
    assert sums.mismatch.item() == pytest.approx(mismatch[mask].sum(), rel=1e-5)
    assert sums.mismatch_max.item() == pytest.approx(mismatch[mask].max(), rel=1e-5)
    assert sums.mismatched.item() == (mismatch > 0.1)[mask].sum() > 0
    assert sums.kl.item() == pytest.approx((ratio - np.log(ratio) - 1)[mask].sum(), rel=1e-4)
    inverse = np.exp(data["reference_logprobs"].numpy() - current)
    penalties = np.minimum(ratio * (inverse - np.log(inverse) - 1), 10)
    assert sums.reference_kl.item() == pytest.approx(penalties[mask].sum(), rel=1e-4)


def test_a_penalty_without_reference_logprobs_is_refused() -> None:
    data = batch(0) | {"reference_logprobs": None}
    with pytest.raises(ValueError, match=r"kl_penalty is 0\.1, but reference_logprobs are None: compute"):
        policy_loss(**data, config=LossConfig(reference_policy_kl_penalty=0.1))


def test_token_level_loss_of_nemo_rl_is_read_as_an_aggregation() -> None:
    assert LossConfig.model_validate({"token_level_loss": True}).aggregation == "token"
    assert LossConfig.model_validate({"token_level_loss": False}).aggregation == "sequence"
    with pytest.raises(ValidationError, match="set aggregation alone"):
        LossConfig.model_validate({"token_level_loss": True, "aggregation": "dr_grpo"})


def test_clipping_against_the_generating_policy_is_a_correction_and_cannot_be_called_none() -> None:
    with pytest.raises(ValidationError, match="whose ratio is the importance-sampling correction"):
        LossConfig(old_policy="generation", use_importance_sampling_correction=False)
