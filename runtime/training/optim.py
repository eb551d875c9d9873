"""AdamW, learning-rate schedules, and the gradient's scaling and clipping."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from runtime.training.config import ConstantSchedule, OptimizerConfig
from runtime.training.ranks import whole


def adamw(parameters: Iterable[nn.Parameter], config: OptimizerConfig) -> torch.optim.AdamW:
    """AdamW (arXiv:1711.05101) over trainable parameters, with weight decay for matrices only.

    Raises ValueError without parameters.
    """
    trained = list(parameters)
    if not trained:
        raise ValueError("no parameter is trainable: set policy.train_last_layers to null, or to 1 or more")
    return torch.optim.AdamW(
        [
            {"params": [p for p in trained if p.ndim >= 2], "weight_decay": config.weight_decay},
            {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
        ],
        lr=config.lr,
        betas=config.betas,
        eps=config.eps,
    )


def learning_rate(step: int, config: OptimizerConfig) -> float:
    """The learning rate of a step, counted from 0.

    Warm-up: lr × (step + 1) / warmup_steps while step < warmup_steps. Then constant, linear: lr × (1 − (1 − m) p), or
    cosine: lr × (m + (1 − m) (1 + cos π p) / 2) (arXiv:1608.03983), where m = min_lr_ratio and p goes from 0 at the end
    of the warm-up to 1 at total_steps, and stays there.
    """
    schedule = config.schedule
    if step < schedule.warmup_steps:
        return config.lr * (step + 1) / schedule.warmup_steps
    if isinstance(schedule, ConstantSchedule):
        return config.lr
    progress = min((step - schedule.warmup_steps) / (schedule.total_steps - schedule.warmup_steps), 1.0)
    height = 1 - progress if schedule.name == "linear" else (1 + math.cos(math.pi * progress)) / 2
    return config.lr * (schedule.min_lr_ratio + (1 - schedule.min_lr_ratio) * height)


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the learning rate of all parameters."""
    for group in optimizer.param_groups:
        group["lr"] = lr


def gradient_norm(parameters: Iterable[nn.Parameter], *, divisor: float) -> float:
    """The Euclidean norm of the gradient divided by `divisor`.

    Parameters may be sharded, and then this is a collective; those without a gradient are skipped.
    """
    return float(whole(torch.nn.utils.get_total_norm(_gradients(parameters))).item()) / divisor


def scale_and_clip_gradients(
    parameters: Iterable[nn.Parameter], *, norm: float, divisor: float, max_grad_norm: float | None
) -> None:
    """Divide the gradient by `divisor` and clip its norm to `max_grad_norm`, in one pass, in place.

    norm: `gradient_norm`, which must be finite.
    """
    scale = 1 / divisor
    if max_grad_norm is not None and norm > max_grad_norm:
        scale *= max_grad_norm / norm
    for gradient in _gradients(parameters):
        gradient.mul_(scale)


def _gradients(parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    return [parameter.grad for parameter in parameters if parameter.grad is not None]
