"""The penalty's gradient against that of the divergence, over every token of a small softmax."""

import pytest
import torch
from torch import Tensor

from runtime.training.config import KlType, LossConfig
from runtime.training.loss import kl_estimate, policy_loss


def softmax(*logits: float) -> Tensor:
    return torch.log_softmax(torch.tensor(logits, dtype=torch.float64), -1)


LOGITS = (0.3, -1.0, 0.7, 0.1)
POLICY = softmax(*LOGITS)
NEAR = softmax(0.0, 0.2, 0.1, -0.4)
FAR = softmax(-3.0, 4.0, -5.0, 2.0)
STALE = softmax(1.0, 0.0, 0.0, -1.0)
UNCLAMPED = {"kl_input_clamp_value": None, "kl_output_clamp_value": None}


def loss_config(**options: object) -> LossConfig:
    return LossConfig.model_validate({"reference_policy_kl_penalty": 0.5, **options})


def expected_gradient(drawn_from: Tensor, reference: Tensor, config: LossConfig) -> Tensor:
    """The mean of the loss's gradient over every token that may be drawn, in an otherwise indifferent loss."""
    logits = torch.tensor(LOGITS, dtype=torch.float64, requires_grad=True)
    total = torch.zeros(4, dtype=torch.float64)
    for token in range(4):
        loss, _ = policy_loss(
            logprobs=torch.log_softmax(logits, -1)[token].reshape(1, 1),
            entropy=torch.zeros(1, 1, dtype=torch.float64),
            generation_logprobs=drawn_from[token].reshape(1, 1),
            reference_logprobs=reference[token].reshape(1, 1),
            advantages=torch.zeros(1, dtype=torch.float64),
            mask=torch.ones(1, 1, dtype=torch.bool),
            config=config,
        )
        total += drawn_from[token].exp() * torch.autograd.grad(loss, logits)[0]
    return total


def exact_gradient(reference: Tensor, kl_type: KlType) -> Tensor:
    """Half the gradient of KL(π ‖ reference), from its definition; under k2 of what k2 has as its mean."""
    logits = torch.tensor(LOGITS, dtype=torch.float64, requires_grad=True)
    logprobs = torch.log_softmax(logits, -1)
    difference = logprobs - reference
    at_each = difference.square() / 2 if kl_type == "k2" else difference
    return torch.autograd.grad(0.5 * (logprobs.exp() * at_each).sum(), logits)[0]


@pytest.mark.parametrize("old_policy", ["recomputed", "generation"])
@pytest.mark.parametrize("drawn_from", [POLICY, STALE], ids=["on-policy", "stale"])
@pytest.mark.parametrize("reference", [NEAR, FAR], ids=["near", "far"])
@pytest.mark.parametrize("kl_type", ["k1", "k2", "k3"])
def test_the_penalty_has_the_exact_gradient_of_the_divergence(
    kl_type: KlType, reference: Tensor, drawn_from: Tensor, old_policy: str
) -> None:
    config = loss_config(reference_policy_kl_type=kl_type, old_policy=old_policy, **UNCLAMPED)
    found = expected_gradient(drawn_from, reference, config)
    torch.testing.assert_close(found, exact_gradient(reference, kl_type))


@pytest.mark.parametrize("kl_type", ["k1", "k2", "k3"])
def test_without_the_importance_weight_the_gradient_is_right_for_on_policy_tokens_only(kl_type: KlType) -> None:
    config = loss_config(reference_policy_kl_type=kl_type, use_on_policy_kl_approximation=False, **UNCLAMPED)
    exact = exact_gradient(FAR, kl_type)
    torch.testing.assert_close(expected_gradient(POLICY, FAR, config), exact)
    biased = expected_gradient(STALE, FAR, config)
    assert (biased - exact).norm() > 0.2 * exact.norm()


@pytest.mark.parametrize("clamp", ["kl_input_clamp_value", "kl_output_clamp_value"])
@pytest.mark.parametrize("kl_type", ["k1", "k2", "k3"])
def test_a_token_beyond_a_clamp_has_no_gradient_and_the_others_are_as_they_were(kl_type: KlType, clamp: str) -> None:
    logprobs = torch.tensor([[-0.5, -0.5, -9.0]], requires_grad=True)
    reference = torch.tensor([[-9.0, -0.6, -0.5]])  # d is 8.5, 0.1 and -8.5

    def gradient_and_value(**clamps: float | None) -> tuple[Tensor, float]:
        loss, sums = policy_loss(
            logprobs=logprobs,
            entropy=torch.zeros(1, 3),
            generation_logprobs=logprobs.detach(),
            reference_logprobs=reference,
            advantages=torch.zeros(1),
            mask=torch.ones(1, 3, dtype=torch.bool),
            config=loss_config(reference_policy_kl_type=kl_type, **(UNCLAMPED | clamps)),
        )
        return torch.autograd.grad(loss, logprobs)[0], sums.reference_kl.item()

    free, _ = gradient_and_value()
    clamped, value = gradient_and_value(**{clamp: 4.0})
    assert (free[0, [0, 2]].abs() > 0.1).all()
    assert clamped[0].tolist() == [0.0, free[0, 1].item(), 0.0]
    if clamp == "kl_output_clamp_value":
        assert abs(value) <= 3 * 4.0


def test_a_reference_that_nearly_excludes_a_token_costs_a_bounded_amount_and_leaves_finite_gradients() -> None:
    logprobs = torch.tensor([[-200.0, -0.1]], requires_grad=True)
    for clamps in ({}, {"kl_input_clamp_value": None}, {"kl_output_clamp_value": None}):
        loss, sums = policy_loss(
            logprobs=logprobs,
            entropy=torch.zeros(1, 2),
            generation_logprobs=logprobs.detach(),
            reference_logprobs=torch.tensor([[-0.1, -200.0]]),
            advantages=torch.zeros(1),
            mask=torch.ones(1, 2, dtype=torch.bool),
            config=loss_config(**clamps),
        )
        assert torch.isfinite(torch.autograd.grad(loss, logprobs)[0]).all()
        assert sums.reference_kl.item() <= (20.0 if clamps.get("kl_output_clamp_value", 10.0) else 1e9)


@pytest.mark.parametrize("kl_type", ["k1", "k3"])
def test_the_mean_of_k1_and_of_k3_is_the_divergence(kl_type: KlType) -> None:
    divergence = (POLICY.exp() * (POLICY - NEAR)).sum()
    mean = (POLICY.exp() * kl_estimate(POLICY - NEAR, kl_type)).sum()
    torch.testing.assert_close(mean, divergence)


@pytest.mark.parametrize("kl_type", ["k2", "k3"])
def test_k2_and_k3_are_never_negative_and_zero_at_the_reference(kl_type: KlType) -> None:
    values = kl_estimate(torch.arange(-60, 61, dtype=torch.float64) / 10, kl_type)
    assert (values >= 0).all()
    assert values[60].item() == 0
