"""Numbers of a step that are not finite: which microbatch and which prompts brought the first, the same on all ranks.

Nothing here waits for a GPU before the step is finished: a look at a microbatch stays on its device.
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from runtime.training.batching import Microbatch
from runtime.training.ranks import Ranks
from runtime.training.step_metrics import NotFinite, Number

FLOAT32_MAX = torch.finfo(torch.float32).max
LARGEST_UPDATE = 10.0
"""AdamW moves a weight by less than this many learning rates, for betas up to (0.9, 0.999) (arXiv:1412.6980, 2.1)."""
_PROMPTS_NAMED = 8
_OF_ROWS = (Number.ADVANTAGES, Number.REFERENCE_LOGPROBS, Number.LOGPROBS)
"""What is looked at row by row."""
_KINDS = (*_OF_ROWS, Number.LOSS, Number.GRADIENT)
"""In the order in which one leads to the next."""
_NEVER = 2**62
"""Stands for the microbatch of a rank on which every number is finite."""


class Look(NamedTuple):
    """One microbatch of this rank."""

    prompts: Tensor
    """int64, (sequences,): the prompt of each row."""
    rows: Tensor
    """bool, (3, sequences): the rows of which a number of `_OF_ROWS` is not finite."""
    whole: Tensor
    """bool, (2,): whether the loss is not finite, and whether the gradient accumulated so far is not."""


def look(
    batch: Microbatch,
    *,
    reference_logprobs: Tensor | None,
    logprobs: Tensor,
    loss: Tensor,
    gradients: Iterable[Tensor | None],
) -> Look:
    """Look at a microbatch after its backward pass. Log-probabilities are (sequences, T)."""
    rows = [~batch.advantages.isfinite()]
    for values in (reference_logprobs, logprobs):
        missing = torch.zeros_like(rows[0])
        rows.append(missing if values is None else (~values.isfinite() & batch.loss_mask).any(dim=-1))
    whole = torch.stack([loss.detach(), largest_here(gradients, loss.device)])
    return Look(batch.prompts, torch.stack(rows), ~whole.isfinite())


def first_cause(looks: Sequence[Look], ranks: Ranks) -> NotFinite | None:
    """The first number of the step that is not finite, over all ranks; None if no microbatch shows one.

    A collective: every rank must call it. All get the same.
    """
    columns = 3 + _PROMPTS_NAMED
    found = torch.full((ranks.world_size, columns), -1, dtype=torch.int64)
    found[ranks.rank] = torch.tensor(_first_here(looks))
    told = ranks.maximum(found.to(ranks.device)).tolist()
    microbatch, kind = min((row[0], row[1]) for row in told)
    if microbatch == _NEVER:
        return None
    sharing = [(rank, row) for rank, row in enumerate(told) if (row[0], row[1]) == (microbatch, kind)]
    return NotFinite(
        what=_KINDS[kind],
        microbatch=microbatch + 1,
        ranks=tuple(rank for rank, _ in sharing),
        prompts=tuple(sorted({prompt for _, row in sharing for prompt in row[3:] if prompt >= 0})),
        more_prompts=sum(max(row[2] - _PROMPTS_NAMED, 0) for _, row in sharing),
    )


def _first_here(looks: Sequence[Look]) -> list[int]:
    """Microbatch, kind, how many prompts, and the first of them, padded with -1."""
    for number, each in enumerate(looks):
        kinds = [*each.rows.any(dim=-1).tolist(), *each.whole.tolist()]
        if any(kinds):
            kind = kinds.index(True)
            rows = each.rows[kind] if kind < len(_OF_ROWS) else torch.ones_like(each.rows[0])
            prompts = [prompt for prompt in each.prompts[rows].unique().tolist() if prompt >= 0]
            named = prompts[:_PROMPTS_NAMED]
            return [number, kind, len(prompts), *named, *[-1] * (_PROMPTS_NAMED - len(named))]
    return [_NEVER, 0, 0, *[-1] * _PROMPTS_NAMED]


def largest_here(tensors: Iterable[Tensor | None], device: torch.device) -> Tensor:
    """The largest absolute value of this rank's shards, a scalar on the device; NaN if one is NaN, 0 without any."""
    shards = [each.to_local() if isinstance(each, DTensor) else each for each in tensors if each is not None]
    filled = [shard.detach() for shard in shards if shard.numel()]
    return torch.nn.utils.get_total_norm(filled, math.inf) if filled else torch.zeros((), device=device)


def largest(tensors: Iterable[Tensor | None], ranks: Ranks) -> float:
    """The largest absolute value over all ranks; infinite if one is not finite. A collective."""
    here = largest_here(tensors, ranks.device).double()
    # NaN is taken out first, since a maximum over ranks may lose it.
    return float(ranks.maximum(torch.nan_to_num(here, nan=math.inf, posinf=math.inf)).item())


def fault_of_update(
    *, loss: float, norm: float, max_grad_norm: float | None, lr: float, weight_decay: float, weight: float
) -> Number | None:
    """What would not be finite if AdamW applied this gradient; None if all stays finite.

    norm: of the gradient between division and clip. weight: the largest absolute value of a weight.
    """
    if not math.isfinite(loss):
        return Number.LOSS
    if not math.isfinite(norm) or min(norm, math.inf if max_grad_norm is None else max_grad_norm) ** 2 > FLOAT32_MAX:
        return Number.GRADIENT
    after = weight * (1 + lr * weight_decay) + LARGEST_UPDATE * lr
    return None if after < FLOAT32_MAX else Number.WEIGHTS
