"""FSDP2: parameters, gradients and optimizer state sharded over trainer ranks (arXiv:2304.11277).

Gradients are summed over ranks, not averaged: the step divides them once, by what all ranks accumulated.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from runtime.training.model import decoder_layers
from runtime.training.ranks import Ranks


def shard_model(model: nn.Module, precision: Literal["float32", "bfloat16"], ranks: Ranks) -> None:
    """Shard a model in place: one unit a decoder layer, and one for the rest.

    In bfloat16 the units are gathered and computed in bfloat16, while the shards, and the gradients that
    are reduced into them, stay float32.

    Args:
        model: Loaded alike on every rank, in float32; its shards move to the ranks' devices.
        precision: What to compute in.
        ranks: The ranks, with a mesh.

    Raises:
        ValueError: There is no mesh to shard over.
    """
    if ranks.mesh is None:
        raise ValueError("there is no mesh to shard over: join the ranks with joined_ranks first")
    computed_in = torch.bfloat16 if precision == "bfloat16" else None
    mixed_precision = MixedPrecisionPolicy(param_dtype=computed_in, reduce_dtype=torch.float32)
    for unit in [*decoder_layers(model), model]:
        fully_shard(unit, mesh=ranks.mesh, mp_policy=mixed_precision)
        if not isinstance(unit, FSDPModule):
            raise TypeError(f"fully_shard left {type(unit).__name__} as it was")
        unit.set_gradient_divide_factor(1.0)
        # Without it the division becomes part of the collective, in a way that gloo does not have.
        unit.set_force_sum_reduction_for_comms(True)


def whole(tensor: Tensor) -> Tensor:
    """The whole of a tensor that may be sharded. For a sharded one a collective: every rank must call it."""
    if isinstance(tensor, DTensor):
        full: Tensor = tensor.full_tensor()
        return full
    return tensor


def gathered(tensors: Mapping[str, Tensor], *, keep: bool) -> dict[str, Tensor]:
    """The whole tensors on the CPU, one at a time; where they are not kept, only take part in gathering."""
    kept = {}
    for name, tensor in tensors.items():
        full = whole(tensor.detach())
        if keep:
            kept[name] = full.cpu().contiguous()
    return kept


def sharded_like(whole_tensor: Tensor, target: Tensor) -> Tensor:
    """A whole tensor, the same on every rank, cut and placed like `target`; no communication."""
    if isinstance(target, DTensor):
        placed = whole_tensor.to(target.device)
        return distribute_tensor(placed, target.device_mesh, target.placements, src_data_rank=None)
    return whole_tensor.to(target.device)
