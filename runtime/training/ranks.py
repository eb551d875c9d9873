"""One trainer process or several: their sums, each one's share of a chunk, and the model sharded over them.

FSDP2 (arXiv:2304.11277) shards parameters, gradients and optimizer state. Gradients are summed over ranks, not
averaged: the step divides them once, by what all ranks accumulated.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import Store  # type: ignore[attr-defined]  # torch's own omission
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from runtime.groups import RolloutGroup
from runtime.training.model import decoder_layers


@dataclass(frozen=True, slots=True)
class Ranks:
    """The trainer processes as one of them sees them."""

    rank: int
    world_size: int
    device: torch.device
    mesh: DeviceMesh | None
    """The ranks that the model is sharded over; None for a single process."""

    def sum(self, values: Tensor) -> Tensor:
        """The element-wise sum over ranks. A collective: every rank must call it."""
        return self._reduced(values, dist.ReduceOp.SUM)

    def maximum(self, values: Tensor) -> Tensor:
        """The element-wise maximum over ranks. A collective: every rank must call it."""
        return self._reduced(values, dist.ReduceOp.MAX)

    def _reduced(self, values: Tensor, op: dist.ReduceOp.RedOpType) -> Tensor:
        if self.mesh is None:
            return values
        total = values.clone()
        dist.all_reduce(total, op=op, group=self.mesh.get_group())
        return total


def alone(device: str = "cpu") -> Ranks:
    """A trainer of one process, on a torch device such as "cpu" or "cuda:0"."""
    return Ranks(rank=0, world_size=1, device=torch.device(device), mesh=None)


@contextmanager
def joined_ranks(rank: int, world_size: int, *, store: Store, device: str) -> Iterator[Ranks]:
    """Join the other trainer processes, and leave them at the end.

    store: where the processes meet, the same for all, such as a TCPStore that one of them opened.
    device: "cpu" (gloo), or this process's GPU such as "cuda:0" (nccl).
    """
    place = torch.device(device)
    if place.type == "cuda":
        torch.cuda.set_device(place)
    backend = "nccl" if place.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size)
    try:
        yield Ranks(rank, world_size, place, init_device_mesh(place.type, (world_size,)))
    finally:
        dist.destroy_process_group()


def share_of_rank(groups: Sequence[RolloutGroup], rank: int, world_size: int) -> list[RolloutGroup]:
    """The groups of a chunk that one rank trains on. A group is never split; a rank may get none.

    From the group with most tokens to the one with fewest, each goes to the rank with fewest tokens so far (ties in
    order). All ranks compute the same, and the balance is at most 4/3 of the best (Graham 1969).
    """
    tokens = [sum(len(rollout.token_ids) for rollout in group.rollouts) for group in groups]
    load = [0] * world_size
    mine = []
    for index in sorted(range(len(groups)), key=lambda index: (-tokens[index], index)):
        target = load.index(min(load))
        load[target] += tokens[index]
        if target == rank:
            mine.append(index)
    return [groups[index] for index in sorted(mine)]


def shard_model(model: nn.Module, precision: Literal["float32", "bfloat16"], ranks: Ranks) -> None:
    """Shard a model in place: one unit a decoder layer, and one for the rest.

    In bfloat16 the units are gathered and computed in bfloat16, while the shards, and the gradients that are reduced
    into them, stay float32. The model is loaded alike on every rank, in float32; its shards move to the ranks' devices.

    Raises ValueError if the ranks have no mesh.
    """
    if ranks.mesh is None:
        raise ValueError("the ranks have no mesh to shard over: join them with joined_ranks first")
    computed_in = torch.bfloat16 if precision == "bfloat16" else None
    mixed_precision = MixedPrecisionPolicy(param_dtype=computed_in, reduce_dtype=torch.float32)
    for unit in [*decoder_layers(model), model]:
        fully_shard(unit, mesh=ranks.mesh, mp_policy=mixed_precision)
        if not isinstance(unit, FSDPModule):
            raise TypeError(f"fully_shard did not change {type(unit).__name__}")
        unit.set_gradient_divide_factor(1.0)
        # Otherwise the division becomes part of the collective, which gloo does not support.
        unit.set_force_sum_reduction_for_comms(True)


def whole(tensor: Tensor) -> Tensor:
    """The whole of a tensor that may be sharded. If it is, this is a collective: every rank must call it."""
    if isinstance(tensor, DTensor):
        full: Tensor = tensor.full_tensor()
        return full
    return tensor


def gathered(tensors: Mapping[str, Tensor], *, keep: bool) -> dict[str, Tensor]:
    """The whole tensors on the CPU, gathered one at a time. Without `keep` only takes part in gathering."""
    kept = {}
    for name, tensor in tensors.items():
        full = whole(tensor.detach())
        if keep:
            kept[name] = full.cpu().contiguous()
    return kept


def copied(tensors: Mapping[str, Tensor], *, keep: bool) -> dict[str, Tensor]:
    """Like `gathered`, but always copies: a step that changes the tensors does not change the copies."""
    kept = {}
    for name, tensor in tensors.items():
        full = whole(tensor.detach())
        if keep:
            kept[name] = full.to("cpu", copy=True, memory_format=torch.contiguous_format)
    return kept


def sharded_like(whole_tensor: Tensor, target: Tensor) -> Tensor:
    """A whole tensor, the same on every rank, cut and placed like `target`, without communication."""
    placed = whole_tensor.to(target.device)
    if isinstance(target, DTensor):
        return distribute_tensor(placed, target.device_mesh, target.placements, src_data_rank=None)
    return placed
