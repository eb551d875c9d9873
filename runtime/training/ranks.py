"""One trainer process or several: who takes part, and sums over all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import Store  # type: ignore[attr-defined]  # torch's own omission
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from runtime.groups import RolloutGroup


@dataclass(frozen=True, slots=True)
class Ranks:
    """The trainer processes as one of them sees them."""

    rank: int
    world_size: int
    device: torch.device
    mesh: DeviceMesh | None
    """The ranks that the model is sharded over; None for a process on its own."""

    def sum(self, values: Tensor) -> Tensor:
        """The element-wise sum over ranks. A collective: every rank must call it."""
        if self.mesh is None:
            return values
        total = values.clone()
        dist.all_reduce(total, op=dist.ReduceOp.SUM, group=self.mesh.get_group())
        return total

    def wait_for_all(self) -> None:
        """Return once every rank has called this."""
        if self.mesh is not None:
            dist.barrier(group=self.mesh.get_group())

    def maximum(self, values: Tensor) -> Tensor:
        """The element-wise maximum over ranks. A collective: every rank must call it."""
        if self.mesh is None:
            return values
        total = values.clone()
        dist.all_reduce(total, op=dist.ReduceOp.MAX, group=self.mesh.get_group())
        return total


def alone(device: str = "cpu") -> Ranks:
    """A trainer of one process, on a torch device such as "cpu" or "cuda:0"."""
    return Ranks(rank=0, world_size=1, device=torch.device(device), mesh=None)


@contextmanager
def joined_ranks(rank: int, world_size: int, *, store: Store, device: str) -> Iterator[Ranks]:
    """Join the other trainer processes, and leave them at the end.

    Args:
        rank: This process, from 0.
        world_size: How many there are.
        store: Where they meet: the same for all, such as a TCPStore that one of them has opened.
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
    """The groups of a chunk that one rank trains on; a group is never split, a rank may get none.

    From the group with most tokens to the one with fewest, each goes to the rank that has fewest tokens so
    far (equal ones in order): the same on every rank, and at most 4/3 of the best balance (Graham 1969).
    """
    tokens = [sum(len(rollout.token_ids) for rollout in group.rollouts) for group in groups]
    load = [0] * world_size
    mine = []
    for index in sorted(range(len(groups)), key=lambda index: (-tokens[index], index)):
        target = min(range(world_size), key=lambda candidate: (load[candidate], candidate))
        load[target] += tokens[index]
        if target == rank:
            mine.append(index)
    return [groups[index] for index in sorted(mine)]
