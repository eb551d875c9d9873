"""Weights between a torch model and numpy arrays, which is how they cross processes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch


def export_weights(model: torch.nn.Module, dtype: torch.dtype | None = None) -> dict[str, npt.NDArray[np.generic]]:
    """Copies of all parameters by name, on the CPU, in `dtype` (default: each in its own).

    Tied parameters appear once, under the first name, as in `named_parameters()`. bfloat16, which numpy lacks, is
    given as its bits in uint16.
    """
    return {
        name: _to_numpy(parameter.detach().to(device="cpu", dtype=dtype or parameter.dtype, copy=True))
        for name, parameter in model.named_parameters()
    }


def mismatch(model: torch.nn.Module, weights: Mapping[str, npt.NDArray[np.generic]]) -> str | None:
    """Why these weights are not those of this model, or None when they are: names and shapes agree."""
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    missing = sorted(shapes.keys() - weights.keys())
    unknown = sorted(weights.keys() - shapes.keys())
    if missing or unknown:
        return f"missing: {_some(missing)}; unknown: {_some(unknown)}"
    for name, shape in shapes.items():
        if tuple(weights[name].shape) != shape:
            return f"{name}: shape {tuple(weights[name].shape)} where the model has {shape}"
    return None


def import_weights(model: torch.nn.Module, weights: Mapping[str, npt.NDArray[np.generic]]) -> None:
    """Copy weights into the model's own memory, cast to its types.

    They must agree with the model (`mismatch` returned None): what they lack would keep its old value. The arrays
    may be read-only, as the object store hands them out.
    """
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # torch.tensor copies; torch.from_numpy would warn of a read-only array.
            source = torch.tensor(weights[name])
            parameter.copy_(source.view(torch.bfloat16) if source.dtype == torch.uint16 else source)


def _to_numpy(tensor: torch.Tensor) -> npt.NDArray[np.generic]:
    array: npt.NDArray[np.generic] = (
        tensor.view(torch.uint16).numpy() if tensor.dtype == torch.bfloat16 else tensor.numpy()
    )
    return array


def _some(names: list[str]) -> str:
    """At most three of the names, and how many there are."""
    if not names:
        return "none"
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
