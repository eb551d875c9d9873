import math

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from runtime.training.config import (
    ConstantSchedule,
    DecaySchedule,
    LossConfig,
    OptimizerConfig,
    PolicyConfig,
    RewardShapingConfig,
)
from runtime.training.optim import adamw, gradient_norm, learning_rate, scale_and_clip_gradients, set_learning_rate


def rates(config: OptimizerConfig, steps: int) -> list[float]:
    return [learning_rate(step, config) for step in range(steps)]


def test_the_constant_schedule_rises_to_the_learning_rate_and_stays() -> None:
    config = OptimizerConfig(lr=0.4, schedule=ConstantSchedule(warmup_steps=4))
    assert rates(config, 7) == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4, 0.4, 0.4])


def test_the_linear_schedule_falls_in_equal_parts_to_its_floor() -> None:
    schedule = DecaySchedule(name="linear", warmup_steps=1, total_steps=5, min_lr_ratio=0.2)
    config = OptimizerConfig(lr=1.0, schedule=schedule)
    assert rates(config, 8) == pytest.approx([1.0, 1.0, 0.8, 0.6, 0.4, 0.2, 0.2, 0.2])


def test_the_cosine_schedule_is_half_a_cosine_to_its_floor() -> None:
    config = OptimizerConfig(lr=2.0, schedule=DecaySchedule(name="cosine", total_steps=4))
    assert rates(config, 6) == pytest.approx([2.0, 1 + math.sqrt(0.5), 1.0, 1 - math.sqrt(0.5), 0.0, 0.0], abs=1e-12)


def test_a_warm_up_that_leaves_no_step_to_decay_over_is_refused() -> None:
    with pytest.raises(ValidationError, match="warmup_steps is 5 and total_steps 5"):
        DecaySchedule(name="cosine", warmup_steps=5, total_steps=5)


def test_a_schedule_without_decay_has_no_total_steps() -> None:
    with pytest.raises(ValidationError, match="total_steps"):
        OptimizerConfig.model_validate({"schedule": {"name": "constant", "total_steps": 5}})


def test_adamw_takes_the_step_of_its_paper_and_decays_matrices_only() -> None:
    matrix, vector = nn.Parameter(torch.full((2, 2), 3.0)), nn.Parameter(torch.full((2,), 3.0))
    config = OptimizerConfig(lr=0.1, weight_decay=0.5, betas=(0.9, 0.99), eps=1e-8)
    optimizer = adamw([matrix, vector], config)
    set_learning_rate(optimizer, 0.01)
    expected_matrix, expected_vector = 3.0, 3.0
    m = v = 0.0
    for step, gradient in enumerate([2.0, -1.0], start=1):
        matrix.grad = torch.full((2, 2), gradient)
        vector.grad = torch.full((2,), gradient)
        optimizer.step()
        m = 0.9 * m + 0.1 * gradient
        v = 0.99 * v + 0.01 * gradient**2
        update = 0.01 * (m / (1 - 0.9**step)) / (math.sqrt(v / (1 - 0.99**step)) + 1e-8)
        expected_matrix = expected_matrix * (1 - 0.01 * 0.5) - update
        expected_vector -= update
    assert matrix.tolist() == [pytest.approx([expected_matrix] * 2)] * 2
    assert vector.tolist() == pytest.approx([expected_vector] * 2)


def test_an_optimizer_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="no parameter is trainable"):
        adamw([], OptimizerConfig())


def parameters_with_gradients() -> list[nn.Parameter]:
    first, second, without = (nn.Parameter(torch.zeros(2)) for _ in range(3))
    first.grad, second.grad = torch.tensor([3.0, 0.0]), torch.tensor([0.0, 4.0])
    return [first, second, without]


@pytest.mark.parametrize(
    ("divisor", "max_grad_norm", "norm", "scale"),
    [(1.0, None, 5.0, 1.0), (10.0, 1.0, 0.5, 0.1), (2.0, 1.0, 2.5, 0.2), (2.0, None, 2.5, 0.5)],
)
def test_gradients_are_divided_then_clipped_to_the_norm(
    divisor: float, max_grad_norm: float | None, norm: float, scale: float
) -> None:
    parameters = parameters_with_gradients()
    found = gradient_norm(parameters, divisor=divisor)
    assert found == pytest.approx(norm)
    scale_and_clip_gradients(parameters, norm=found, divisor=divisor, max_grad_norm=max_grad_norm)
    assert parameters[0].grad is not None
    assert parameters[1].grad is not None
    assert parameters[0].grad.tolist() == pytest.approx([3 * scale, 0])
    assert parameters[1].grad.tolist() == pytest.approx([0, 4 * scale])


def test_a_microbatch_budget_below_the_longest_rollout_is_refused() -> None:
    with pytest.raises(ValidationError, match="set train_microbatch_tokens to at least 512"):
        PolicyConfig(model_name="m", train_microbatch_tokens=511, max_total_sequence_length=512)


def test_an_overlong_buffer_beyond_the_response_is_refused() -> None:
    with pytest.raises(ValidationError, match="set it to at most 10"):
        RewardShapingConfig(max_response_length=10, overlong_buffer_length=11)


def test_every_field_of_the_blocks_is_described() -> None:
    for block in (
        PolicyConfig,
        LossConfig,
        OptimizerConfig,
        RewardShapingConfig,
        DecaySchedule,
    ):
        for name, field in block.model_fields.items():
            assert field.description or name == "name", f"{block.__name__}.{name}"
