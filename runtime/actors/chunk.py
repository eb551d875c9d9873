"""A trainer rank's share of a chunk, apart from the actor since it needs torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from runtime.groups import RolloutGroup
from runtime.training.ranks import Ranks, share_of_rank
from runtime.transport.answers import Row, Unreadable
from runtime.transport.data_plane import DataPlane


def read_share(
    plane: DataPlane, rows: Sequence[tuple[int, Row]], unneeded: Sequence[Row], ranks: Ranks
) -> tuple[list[RolloutGroup], tuple[Unreadable, ...]]:
    """This rank's groups of a chunk, in order, and those that not every rank could read: no rank trains on them.

    The first rank has `unneeded` deleted. A collective: every rank must call it, with the same rows.
    """
    groups = plane.get([row for _, row in rows], unneeded if ranks.rank == 0 else ())
    lacking = torch.tensor([isinstance(group, str) for group in groups], dtype=torch.float32, device=ranks.device)
    readable: list[RolloutGroup] = []
    unreadable: list[Unreadable] = []
    for (prompt, _), group, lost in zip(rows, groups, ranks.maximum(lacking).tolist(), strict=True):
        if isinstance(group, str):
            unreadable.append(Unreadable(prompt, f"prompt {prompt}: {group}"))
        elif lost:
            unreadable.append(Unreadable(prompt, f"prompt {prompt}: another trainer rank could not read it"))
        else:
            readable.append(group)
    return share_of_rank(readable, ranks.rank, ranks.world_size), tuple(unreadable)
