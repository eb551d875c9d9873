"""Weights as numpy arrays, for the object store, and back into a model.

numpy has no bfloat16: it is carried as its bits, in uint16. No parameter has that type otherwise, so the
array's type says how to read it. Tied parameters are carried once, under their first name, as in the
safetensors files that transformers writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy.typing as npt
import torch
from torch import Tensor, nn

from runtime.models.weights import listed, named_weights, sent_type
from runtime.training.fsdp import sharded_like, whole

WeightArray = npt.NDArray[Any]
"""float32 or another plain numpy type; uint16 holds the bits of bfloat16."""


def to_numpy(tensor: Tensor) -> WeightArray:
    """A read-only array over the memory of a tensor (a copy of it only if it is not on the CPU)."""
    plain = tensor.detach().cpu().contiguous()
    array: WeightArray = (plain.view(torch.uint16) if plain.dtype == torch.bfloat16 else plain).numpy()
    array.flags.writeable = False
    return array


def from_numpy(array: WeightArray) -> Tensor:
    """A tensor with a copy of an array's values; uint16 becomes bfloat16."""
    tensor = torch.tensor(array)
    return tensor.view(torch.bfloat16) if tensor.dtype == torch.uint16 else tensor


def state_numpy(model: nn.Module, dtype: Literal["float32", "bfloat16"]) -> Iterator[tuple[str, WeightArray]]:
    """The weights of a model by name, one whole tensor at a time; parameters in `dtype`, buffers in their own type.

    For a sharded model every rank must go through all of it: each tensor is gathered on all ranks.
    """
    kind = torch.bfloat16 if dtype == "bfloat16" else torch.float32
    for name, tensor in named_weights(model):
        yield name, to_numpy(whole(tensor.detach()).to(sent_type(tensor, kind)))


def load_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Copy weights into a model in place, sharded or not, keeping its types and devices.

    Args:
        model: The model; its tied parameters are loaded through their first name.
        weights: Whole tensors by name, the same on every rank.

    Raises:
        ValueError: A name is missing or unknown, or a shape differs; nothing is copied then.
    """
    targets = dict(named_weights(model))
    if targets.keys() != weights.keys():
        raise ValueError(
            f"weights for another model: {listed(targets.keys() - weights.keys())} missing, "
            f"{listed(weights.keys() - targets.keys())} unknown; load those of the same architecture"
        )
    for name, target in targets.items():
        if weights[name].shape != target.shape:
            raise ValueError(
                f"{name} has shape {tuple(weights[name].shape)}, but the model's is {tuple(target.shape)}: "
                "load weights of the same model configuration"
            )
    with torch.no_grad():
        for name, target in targets.items():
            target.copy_(sharded_like(weights[name].to(target.dtype), target))
