"""The weights of a torch model: by name, under their names in files, and as numpy arrays; and a model without them.

numpy lacks bfloat16, so arrays carry its bits as uint16. No weight has that type otherwise.
"""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from runtime.models.directory import UnsupportedModel

Array = npt.NDArray[Any]


def named_weights(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """The parameters and persistent buffers of a model by name, tied ones once, under their first name.

    A model is saved as these, so these are also synced. The configuration determines all other buffers.
    """
    seen: set[int] = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            yield name, tensor


def as_in_files(model: PreTrainedModel, weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The weights of a model under the names, and in the shapes, of its safetensors files.

    They differ where transformers fuses tensors that files hold separately, such as the experts of a layer.
    """
    renamed: dict[str, torch.Tensor] = revert_weight_conversion(model, dict(weights))
    return renamed


def sent_type(tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.dtype:
    """The type that a weight is sent in: `dtype` for parameters, its own for buffers.

    Some buffers decide between near values, such as the correction of a router's scores. Rounded, they would route
    tokens to other experts than the trainer's.
    """
    return dtype if dtype is not None and isinstance(tensor, torch.nn.Parameter) else tensor.dtype


def to_numpy(tensor: torch.Tensor) -> Array:
    """A read-only array over the memory of a tensor; a copy only if the tensor is not on the CPU."""
    plain = tensor.detach().cpu().contiguous()
    array: Array = (plain.view(torch.uint16) if plain.dtype == torch.bfloat16 else plain).numpy()
    array.flags.writeable = False
    return array


def from_numpy(array: Array) -> torch.Tensor:
    """A tensor with a copy of an array's values; uint16 becomes bfloat16."""
    tensor = torch.tensor(array)  # torch.from_numpy would warn about a read-only array
    return tensor.view(torch.bfloat16) if tensor.dtype == torch.uint16 else tensor


def export_weights(model: torch.nn.Module, dtype: torch.dtype | None = None) -> dict[str, Array]:
    """Copies of all weights by name, each in its `sent_type`."""
    return {name: to_numpy(tensor.to(sent_type(tensor, dtype), copy=True)) for name, tensor in named_weights(model)}


def mismatch(model: torch.nn.Module, weights: Mapping[str, Any]) -> str | None:
    """Why the names or shapes of these weights (arrays or tensors) are not the model's; None if they are."""
    shapes = {name: tuple(tensor.shape) for name, tensor in named_weights(model)}
    missing = shapes.keys() - weights.keys()
    unknown = weights.keys() - shapes.keys()
    if missing or unknown:
        return f"missing: {listed(missing)}; unknown: {listed(unknown)}"
    for name, shape in shapes.items():
        if tuple(weights[name].shape) != shape:
            return f"{name}: shape {tuple(weights[name].shape)} where the model has {shape}"
    return None


def import_weights(model: torch.nn.Module, weights: Mapping[str, Array]) -> None:
    """Copy weights into the model's own memory, cast to its types. Call `mismatch` first."""
    with torch.no_grad():
        for name, target in named_weights(model):
            target.copy_(from_numpy(weights[name]))


def listed(names: Collection[str]) -> str:
    """At most three of the names, and how many more, for an error."""
    if not names:
        return "none"
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(sorted(names)[:3])}{more}"


def max_positions(config: PretrainedConfig) -> tuple[str, int] | None:
    """The key in config.json that limits the positions, and the limit; None if the configuration names none."""
    text = config.get_text_config()
    name = text.attribute_map.get("max_position_embeddings", "max_position_embeddings")
    positions = vars(text).get(name)
    return (name, positions) if isinstance(positions, int) else None


def model_without_memory(directory: Path) -> PreTrainedModel:
    """The causal LM of a directory, on the meta device.

    Raises UnsupportedModel if transformers does not know it, or if its weights are quantised.
    """
    try:
        config = AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
        with torch.device("meta"):
            model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    except Exception as error:
        raise UnsupportedModel(
            f"policy.model_name: transformers {transformers.__version__} make no causal LM of "
            f"{directory / 'config.json'} ({type(error).__name__}: {error}); name a directory that "
            "AutoModelForCausalLM.from_pretrained loads"
        ) from error
    if config.to_dict().get("quantization_config"):
        raise UnsupportedModel(
            f"policy.model_name: the weights of {directory} are quantised (quantization_config in its config.json), "
            "and only plain ones can be trained; dequantise the model and save it without quantization_config"
        )
    return model
