"""A trainer's weights as arrays, and its whole state on disk: safetensors and JSON, no pickle.

A directory holds

    config.json          the model's configuration   } together a Hugging Face model directory
    model.safetensors    the weights, float32        }
    trainer.safetensors  AdamW's moments and steps by parameter name, the random state of torch
    trainer.json         `StepCount`, and the format of the files

`copy_state` copies it, while the trainer rests, and `write_state` writes the copy, while the trainer may train on.

Tensors are whole for any number of ranks, so that a run may resume with another number.
Accumulated gradients of an unfinished step are not saved: its groups are trained again.
"""

import copy
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from runtime.files import give_usual_mode
from runtime.models.weights import Array, mismatch, named_weights, sent_type, to_numpy
from runtime.training.model import trainable_parameters
from runtime.training.ranks import Ranks, copied, sharded_like, whole

FORMAT = "evenstep trainer 1"
MOMENTS = ("exp_avg", "exp_avg_sq")
RANDOM_CPU = "random/cpu"
RANDOM_DEVICE = "random/device"


class StepCount(NamedTuple):
    """How far a trainer is."""

    version: int
    not_applied: int = 0
    """The steps of these whose numbers were not finite; checkpoints older than this field have none."""


def state_numpy(model: nn.Module, dtype: Literal["float32", "bfloat16"]) -> Iterator[tuple[str, Array]]:
    """The weights of a model by name, one whole tensor at a time; parameters in `dtype`, buffers in their own type.

    For a sharded model every rank must exhaust the iterator, since each tensor is gathered on all ranks.
    """
    kind = torch.bfloat16 if dtype == "bfloat16" else torch.float32
    for name, tensor in named_weights(model):
        yield name, to_numpy(whole(tensor.detach()).to(sent_type(tensor, kind)))


def load_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Copy whole weights, the same on every rank, into a model in place, sharded or not. Keeps its types and devices.

    Raises ValueError if a name is missing or unknown, or a shape differs, and then copies nothing.
    """
    if reason := mismatch(model, weights):
        raise ValueError(f"weights of another model ({reason}); load weights of the same model configuration")
    with torch.no_grad():
        for name, target in named_weights(model):
            target.copy_(sharded_like(weights[name].to(target.dtype), target))


@dataclass(frozen=True, slots=True, eq=False)
class StateCopy:
    """A trainer's whole state on the CPU, which no step changes: about 12 bytes a trained parameter."""

    steps: StepCount
    config: PretrainedConfig
    weights: dict[str, Tensor]
    moments: dict[str, Tensor]
    """AdamW's moments and steps, by `kind/parameter`."""
    random: dict[str, Tensor]


def copy_state(
    *, model: PreTrainedModel, optimizer: torch.optim.AdamW, steps: StepCount, ranks: Ranks
) -> StateCopy | None:
    """A copy of a trainer's state; None on all ranks but the first. A collective: every rank must call it."""
    keeps = ranks.rank == 0
    weights = copied(dict(named_weights(model)), keep=keeps)
    moments = copied(_optimizer_tensors(model, optimizer), keep=keeps)
    if not keeps:
        return None
    random = {RANDOM_CPU: torch.get_rng_state()}
    if ranks.device.type == "cuda":
        random[RANDOM_DEVICE] = torch.cuda.get_rng_state(ranks.device)
    return StateCopy(steps, copy.deepcopy(model.config), weights, moments, random)


def write_state(directory: Path, state: StateCopy) -> None:
    """Write a copy into an empty or new directory. The caller writes aside and renames.

    Raises FileExistsError if the directory has files in it.
    """
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise FileExistsError(f"{directory} is not empty: save into a new directory")
    state.config.save_pretrained(directory)
    save_file(state.weights, directory / "model.safetensors", metadata={"format": "pt"})
    save_file(state.moments | state.random, directory / "trainer.safetensors")
    for name in ("model.safetensors", "trainer.safetensors"):
        give_usual_mode(directory / name)
    (directory / "trainer.json").write_text(json.dumps({"format": FORMAT, **state.steps._asdict()}) + "\n")


def load_state(directory: Path, *, model: PreTrainedModel, optimizer: torch.optim.AdamW, ranks: Ranks) -> StepCount:
    """Read the files of `write_state`, on every rank, into a model and its optimizer.

    Raises FileNotFoundError for a missing file, ValueError for another format, model or set of trained parameters.
    """
    description = json.loads((directory / "trainer.json").read_text())
    if description["format"] != FORMAT:
        raise ValueError(f"{directory} has format {description['format']!r}, this reads {FORMAT!r}: use its evenstep")
    stored = load_file(directory / "trainer.safetensors")
    random_cpu = stored.pop(RANDOM_CPU)
    random_device = stored.pop(RANDOM_DEVICE, None)
    _load_optimizer(model, optimizer, stored)
    load_weights(model, load_file(directory / "model.safetensors"))
    torch.set_rng_state(random_cpu)
    if random_device is not None and ranks.device.type == "cuda":
        torch.cuda.set_rng_state(random_device, ranks.device)
    return StepCount(int(description["version"]), int(description.get("not_applied", 0)))


def _optimizer_tensors(model: PreTrainedModel, optimizer: torch.optim.AdamW) -> dict[str, Tensor]:
    """AdamW's state by `kind/parameter`; empty before the first step."""
    return {
        f"{kind}/{name}": optimizer.state[parameter][kind]
        for name, parameter in trainable_parameters(model)
        if parameter in optimizer.state
        for kind in (*MOMENTS, "step")
    }


def _load_optimizer(model: PreTrainedModel, optimizer: torch.optim.AdamW, stored: dict[str, Tensor]) -> None:
    parameters = dict(trainable_parameters(model))
    saved = {name.split("/", 1)[1] for name in stored}
    if saved and saved != parameters.keys():
        raise ValueError(
            f"the checkpoint trained {len(saved)} parameters and this trainer has {len(parameters)}, of "
            f"which {len(saved & parameters.keys())} are the same: set policy.train_last_layers as it was"
        )
    optimizer.state.clear()
    for name in saved:
        parameter = parameters[name]
        optimizer.state[parameter] = {
            "step": stored[f"step/{name}"],
            **{kind: sharded_like(stored[f"{kind}/{name}"], parameter) for kind in MOMENTS},
        }
