"""The weights of a torch model: which they are, their names in files, and numpy arrays, which cross processes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion


def named_weights(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """The parameters and persistent buffers of a model by name, tied ones once, under their first name.

    They are what a model is saved as, so they are also what is synced. Buffers that are not persistent follow from
    the model's configuration.
    """
    seen: set[int] = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            yield name, tensor


def as_in_files(model: PreTrainedModel, weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The weights of a model under the names, and in the shapes, that its safetensors files have.

    They differ where transformers fuses what files hold apart: the experts of a layer, for example.
    """
    renamed: dict[str, torch.Tensor] = revert_weight_conversion(model, dict(weights))
    return renamed


def export_weights(model: torch.nn.Module, dtype: torch.dtype | None = None) -> dict[str, npt.NDArray[np.generic]]:
    """Copies of all weights by name, on the CPU, each in its own type; parameters in `dtype` where it is given.

    bfloat16, which numpy lacks, is given as its bits in uint16.
    """
    return {
        name: _to_numpy(tensor.detach().to(device="cpu", dtype=sent_type(tensor, dtype), copy=True))
        for name, tensor in named_weights(model)
    }


def sent_type(tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.dtype:
    """The type that a weight is sent in: `dtype` for parameters, its own for buffers.

    A buffer such as the correction of a router's scores decides between near values: rounded, it would route tokens
    to other experts than the trainer's.
    """
    return dtype if dtype is not None and isinstance(tensor, torch.nn.Parameter) else tensor.dtype


def mismatch(model: torch.nn.Module, weights: Mapping[str, npt.NDArray[np.generic]]) -> str | None:
    """Why these weights are not those of this model, or None when they are: names and shapes agree."""
    shapes = {name: tuple(tensor.shape) for name, tensor in named_weights(model)}
    missing = shapes.keys() - weights.keys()
    unknown = weights.keys() - shapes.keys()
    if missing or unknown:
        return f"missing: {listed(missing)}; unknown: {listed(unknown)}"
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
        for name, target in named_weights(model):
            # torch.tensor copies; torch.from_numpy would warn of a read-only array.
            source = torch.tensor(weights[name])
            target.copy_(source.view(torch.bfloat16) if source.dtype == torch.uint16 else source)


def _to_numpy(tensor: torch.Tensor) -> npt.NDArray[np.generic]:
    array: npt.NDArray[np.generic] = (
        tensor.view(torch.uint16).numpy() if tensor.dtype == torch.bfloat16 else tensor.numpy()
    )
    return array


def listed(names: Collection[str]) -> str:
    """At most three of the names, and how many there are, for an error."""
    if not names:
        return "none"
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(sorted(names)[:3])}{more}"
