"""Prompt groups on their way: a few flat arrays instead of three a rollout, which is what copying them costs."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from runtime.groups import Rollout, RolloutGroup


@dataclass(frozen=True, slots=True, eq=False)
class PackedGroup:
    """A prompt group; the arrays of its rollouts lie one after the other."""

    prompt: int
    start_weight: int
    end_weight: int
    rewards: tuple[float, ...]
    finished: tuple[bool, ...]
    offsets: tuple[int, ...]
    """Rollout r has places offsets[r] to offsets[r + 1]."""
    token_ids: npt.NDArray[np.int32]
    loss_mask: npt.NDArray[np.bool_]
    logprobs: npt.NDArray[np.float32]


def pack(group: RolloutGroup) -> PackedGroup:
    """A copy of the group in flat arrays."""
    rollouts = group.rollouts
    offsets = np.cumsum([0, *(len(rollout.token_ids) for rollout in rollouts)])
    return PackedGroup(
        prompt=group.prompt,
        start_weight=group.start_weight,
        end_weight=group.end_weight,
        rewards=tuple(rollout.reward for rollout in rollouts),
        finished=tuple(rollout.finished for rollout in rollouts),
        offsets=tuple(offsets.tolist()),
        token_ids=np.concatenate([rollout.token_ids for rollout in rollouts]),
        loss_mask=np.concatenate([rollout.loss_mask for rollout in rollouts]),
        logprobs=np.concatenate([rollout.logprobs for rollout in rollouts]),
    )


def unpack(packed: PackedGroup) -> RolloutGroup:
    """The group; its arrays are views of the packed ones."""
    places = [slice(begin, end) for begin, end in pairwise(packed.offsets)]
    return RolloutGroup(
        prompt=packed.prompt,
        rollouts=tuple(
            Rollout(packed.token_ids[place], packed.loss_mask[place], packed.logprobs[place], reward, finished)
            for place, reward, finished in zip(places, packed.rewards, packed.finished, strict=True)
        ),
        start_weight=packed.start_weight,
        end_weight=packed.end_weight,
    )
