"""Prompt groups on disk: one safetensors file of arrays, one JSON index.

groups.safetensors   token_ids, loss_mask, logprobs: those of all rollouts, one after the other
                     offsets: rollout r has the tokens offsets[r] to offsets[r + 1]
                     rewards (float64, as the verifier gave them), finished: one a rollout
groups.json          per group its prompt, start_weight, end_weight and number of rollouts, in the same order
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file, save_file

from runtime.files import give_usual_mode, write_json
from runtime.groups import PackedGroup, RolloutGroup, unpack

ARRAYS = "groups.safetensors"
INDEX = "groups.json"
_RAGGED: tuple[tuple[str, type[np.generic]], ...] = (
    ("token_ids", np.int32),
    ("loss_mask", np.bool_),
    ("logprobs", np.float32),
)


def write_groups(directory: Path, groups: Mapping[int, RolloutGroup]) -> None:
    """Write groups by prompt number. Raises ValueError for a group under another number, or ragged arrays in one."""
    for prompt, group in groups.items():
        if group.prompt != prompt:
            raise ValueError(f"the group of prompt {group.prompt} is given as that of prompt {prompt}")
    rollouts = [rollout for group in groups.values() for rollout in group.rollouts]
    lengths = [len(rollout.token_ids) for rollout in rollouts]
    for name, _ in _RAGGED:
        if [len(getattr(rollout, name)) for rollout in rollouts] != lengths:
            raise ValueError(f"a rollout has a {name} of another length than its token_ids")
    arrays: dict[str, npt.NDArray[Any]] = {
        name: _joined([getattr(rollout, name) for rollout in rollouts], dtype) for name, dtype in _RAGGED
    }
    arrays["offsets"] = np.cumsum([0, *lengths], dtype=np.int64)
    arrays["rewards"] = np.array([rollout.reward for rollout in rollouts], dtype=np.float64)
    arrays["finished"] = np.array([rollout.finished for rollout in rollouts], dtype=np.bool_)
    save_file(arrays, directory / ARRAYS)
    give_usual_mode(directory / ARRAYS)
    keys = ("prompt", "start_weight", "end_weight")
    index = [
        {**{key: getattr(group, key) for key in keys}, "rollouts": len(group.rollouts)} for group in groups.values()
    ]
    write_json(directory / INDEX, {"groups": index})


def read_groups(directory: Path) -> dict[int, RolloutGroup]:
    """The groups that `write_groups` wrote, in its order, with read-only arrays.

    Raises ValueError if index and arrays do not belong together.
    """
    index = json.loads((directory / INDEX).read_text(encoding="utf-8"))["groups"]
    arrays = load_file(directory / ARRAYS)
    for array in arrays.values():
        array.flags.writeable = False
    counted = sum(entry["rollouts"] for entry in index)
    if not counted == len(arrays["rewards"]) == len(arrays["finished"]) == len(arrays["offsets"]) - 1:
        raise ValueError(f"{INDEX} counts {counted} rollouts, {ARRAYS} holds {len(arrays['rewards'])}")
    rewards, finished, offsets = (tuple(arrays[name].tolist()) for name in ("rewards", "finished", "offsets"))
    ragged = (arrays[name] for name, _ in _RAGGED)
    rollouts = unpack(PackedGroup(0, 0, 0, rewards, finished, offsets, *ragged)).rollouts
    groups: dict[int, RolloutGroup] = {}
    taken = 0
    for entry in index:
        siblings = rollouts[taken : taken + entry["rollouts"]]
        taken += entry["rollouts"]
        groups[entry["prompt"]] = RolloutGroup(entry["prompt"], siblings, entry["start_weight"], entry["end_weight"])
    return groups


def _joined(parts: list[npt.NDArray[Any]], dtype: type[np.generic]) -> npt.NDArray[Any]:
    """All arrays in one. Raises ValueError for one of another type, which would be converted."""
    for part in parts:
        if part.dtype != dtype:
            raise ValueError(f"an array of type {part.dtype}, where {np.dtype(dtype)} is kept")
    return np.concatenate(parts) if parts else np.zeros(0, dtype=dtype)
