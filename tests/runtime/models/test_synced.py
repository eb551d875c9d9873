"""Every architecture is trained a step, synced and sampled from: what is sampled is the trained policy."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from runtime.generation.config import GenerationConfig, Sampling
from runtime.generation.engine import GeneratedGroup, GroupRequest, WeightsMismatch
from runtime.generation.on_torch.engine import TorchEngine, load_torch_engine
from runtime.generation.on_vllm.engine import write_for_vllm
from runtime.models.weights import export_weights
from runtime.transport.collective.bundle import copy_in, manifest_of, views
from tests.runtime.models.architectures import ARCHITECTURES, BUFFERED, MIXTURES, fresh, save, train_a_step, trainer_of
from tests.runtime.training.helpers import save_trainer

PROMPTS = {
    f"{length}": np.random.default_rng(length).integers(3, 90, length).astype(np.int32) for length in (1, 2, 7, 20, 13)
}
"""By request id; of different lengths, and read together."""


def engine_of(directory: Path, precision: str = "float32") -> TorchEngine:
    config = GenerationConfig.model_validate(
        {"engine": {"name": "torch", "precision": precision}, "max_prompt_tokens": 24, "max_new_tokens": 16}
    )
    return load_torch_engine(directory, config, stop_token_ids=[1])


def sample(engine: TorchEngine) -> list[GeneratedGroup]:
    """Groups that join while others are decoded."""
    requests = [
        GroupRequest(name, prompt, 3, seed, Sampling(max_new_tokens=16))
        for seed, (name, prompt) in enumerate(PROMPTS.items())
    ]
    done: list[GeneratedGroup] = []
    engine.submit(requests[:3])
    done += [*engine.step(), *engine.step()]
    engine.submit(requests[3:])
    while engine.has_work:
        done += engine.step()
    return done


def furthest(groups: list[GeneratedGroup], model: PreTrainedModel) -> float:
    """Largest difference between a log-probability of sampling and that of one plain forward pass over the rollout."""
    worst = 0.0
    for group in groups:
        prompt = PROMPTS[group.request_id]
        for sequence in group.sequences:
            ids = torch.tensor(np.concatenate([prompt, sequence.token_ids]).astype(np.int64))[None]
            with torch.no_grad():
                logprobs = torch.log_softmax(model(input_ids=ids).logits[0].float(), dim=-1)
            picked = logprobs[len(prompt) - 1 : -1].gather(-1, ids[0, len(prompt) :, None])[:, 0]
            worst = max(worst, float(np.abs(picked.numpy() - sequence.logprobs).max()))
    return worst


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_what_is_sampled_after_a_sync_is_the_trained_policy(name: str, tmp_path: Path) -> None:
    trainer = trainer_of(save(name, tmp_path))
    engine = engine_of(tmp_path)
    assert furthest(sample(engine), trainer.model) < 2e-5
    train_a_step(trainer)
    stale = sample(engine)
    engine.load_weights(trainer.state_numpy(), 1)
    synced = sample(engine)
    assert furthest(synced, trainer.model) < 2e-5
    assert furthest(stale, trainer.model) > 1e-2, "the step must have moved the policy"
    # The loss is computed by the trainer's model as it is, whatever mode that is in; a reader may ask for another.
    assert furthest(synced, AutoModelForCausalLM.from_pretrained(trainer.save_model(tmp_path / "final")).eval()) < 2e-5


@pytest.mark.parametrize("name", BUFFERED)
def test_persistent_buffers_are_synced_as_exactly_as_the_trainer_has_them(name: str, tmp_path: Path) -> None:
    trainer = trainer_of(save(name, tmp_path))
    corrections = [key for key in trainer.model.state_dict() if key.endswith("e_score_correction_bias")]
    assert corrections
    for key in corrections:
        trainer.model.get_buffer(key).add_(0.1001)
    engine = engine_of(tmp_path, "bfloat16")
    weights = trainer.state_numpy("bfloat16")
    engine.load_weights(weights, 1)
    for key in corrections:
        assert weights[key].dtype == np.float32
        assert torch.equal(engine._policy.model.get_buffer(key), trainer.model.get_buffer(key))
    assert not any("inv_freq" in key for key in weights), "buffers that are not persistent stay where they are"
    missing = {key: array for key, array in weights.items() if key not in corrections}
    with pytest.raises(WeightsMismatch, match=r"missing: .*e_score_correction_bias"):
        engine.load_weights(missing, 2)


@pytest.mark.parametrize("name", BUFFERED)
def test_a_broadcast_carries_persistent_buffers(name: str, tmp_path: Path) -> None:
    weights = trainer_of(save(name, tmp_path)).state_numpy("bfloat16")
    manifest = manifest_of(weights)
    memory = np.zeros(manifest.size, dtype=np.uint8)
    copy_in(weights, manifest, memory)
    arrived = views(memory, manifest)
    assert arrived.keys() == weights.keys()
    assert all(np.array_equal(arrived[key], weights[key]) for key in weights)
    engine_of(tmp_path).load_weights(arrived, 1)


@pytest.mark.parametrize("name", BUFFERED)
def test_a_checkpoint_holds_persistent_buffers(name: str, tmp_path: Path) -> None:
    source = save(name, tmp_path / "source")
    trainer, resumed = trainer_of(source), trainer_of(source)
    for buffer in trainer.model.buffers():
        if buffer.is_floating_point():
            buffer.add_(0.25)
    save_trainer(trainer, tmp_path / "state")
    resumed.load(tmp_path / "state")
    ours, theirs = resumed.model.state_dict(), trainer.model.state_dict()
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_vllm_reads_weights_under_the_names_of_the_model_s_files(name: str, tmp_path: Path) -> None:
    source = save(name, tmp_path / "source")
    with torch.device("meta"):
        reference = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(source))
    weights = export_weights(fresh(name))
    for array in weights.values():
        array.flags.writeable = False  # as the object store hands them out
    (tmp_path / "sent").mkdir()
    write_for_vllm(reference, weights, tmp_path / "sent")
    sent = {key: tensor for file in (tmp_path / "sent").iterdir() for key, tensor in load_file(file).items()}
    stored = load_file(source / "model.safetensors")
    assert sent.keys() == stored.keys()
    assert all(torch.equal(sent[key], stored[key]) for key in stored)
    assert any("experts.0." in key for key in sent) == (name in MIXTURES), "experts lie one by one in files"


def test_bfloat16_reaches_vllm_as_bfloat16(tmp_path: Path) -> None:
    model = fresh("mixtral")
    write_for_vllm(model, export_weights(model, torch.bfloat16), tmp_path)
    sent = {key: tensor for file in tmp_path.iterdir() for key, tensor in load_file(file).items()}
    assert {tensor.dtype for tensor in sent.values()} == {torch.bfloat16}
