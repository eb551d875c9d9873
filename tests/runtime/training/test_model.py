from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2LMHeadModel

from runtime.models.directory import UnsupportedModel
from runtime.models.weights import from_numpy, to_numpy
from runtime.training.batching import empty_microbatch, microbatches, training_sequences
from runtime.training.config import LossConfig
from runtime.training.model import (
    checkpoint_layers,
    decoder_layers,
    freeze_all_but_last_layers,
    load_causal_lm,
    token_logprobs,
    trainable_parameters,
)
from runtime.training.state import load_weights, state_numpy
from tests.runtime.training.helpers import POSITIONS, VOCABULARY, make_groups, make_trainer, tiny_llama


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_and_entropy_equal_those_of_each_rollout_alone_without_padding(
    tiny_gpt2: str, temperature: float
) -> None:
    model = load_causal_lm(tiny_gpt2)
    sequences = training_sequences(
        make_groups(2, seed=0), LossConfig(), max_total_sequence_length=POSITIONS, vocabulary=VOCABULARY
    )
    for batch in microbatches(sequences, 64):
        logprobs, entropy = token_logprobs(model, batch, temperature=temperature, entropy_gradient=False)
        assert logprobs.requires_grad
        assert not entropy.requires_grad
        assert not logprobs[~batch.loss_mask].any()
        for row in range(len(batch.advantages)):
            tokens = int(batch.attention_mask[row].sum())
            with torch.no_grad():
                logits = model(input_ids=batch.token_ids[row : row + 1, :tokens]).logits[0]
            for t in range(1, tokens):
                if batch.loss_mask[row, t]:
                    policy = torch.softmax(logits[t - 1].double() / temperature, -1)
                    token = batch.token_ids[row, t]
                    assert logprobs[row, t].item() == pytest.approx(policy[token].log().item(), abs=1e-4)
                    expected = -(policy * policy.log()).sum().item()
                    assert entropy[row, t].item() == pytest.approx(expected, abs=1e-4)


def test_dropout_is_off_and_so_is_all_that_training_mode_does(tiny_gpt2: str) -> None:
    model = load_causal_lm(tiny_gpt2)
    tokens = torch.tensor([[1, 2, 3]])
    assert not any(module.training for module in model.modules())
    expected = model(input_ids=tokens).logits
    assert torch.equal(model.train()(input_ids=tokens).logits, expected), "the rates are 0 as well"


def test_only_the_layers_themselves_are_in_training_mode_when_they_are_recomputed(tiny_gpt2: str) -> None:
    model = load_causal_lm(tiny_gpt2)
    passes: list[int] = []
    for layer in decoder_layers(model):
        layer.mlp.register_forward_pre_hook(lambda *_: passes.append(1))
    checkpoint_layers(model)
    assert [module for module in model.modules() if module.training] == decoder_layers(model)
    model(input_ids=torch.tensor([[1, 2, 3]]), use_cache=False).logits.sum().backward()
    assert len(passes) == 2 * len(decoder_layers(model)), "each layer is computed again in the backward pass"


def test_a_directory_that_lacks_weights_of_the_model_is_refused(tmp_path: Path) -> None:
    tiny_llama().save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["lm_head.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UnsupportedModel, match=r"lacks weights of LlamaForCausalLM, which would be random: lm_head"):
        load_causal_lm(str(tmp_path))


def test_the_entropy_has_a_gradient_when_asked(tiny_gpt2: str) -> None:
    model = load_causal_lm(tiny_gpt2)
    batch = empty_microbatch()
    _, entropy = token_logprobs(model, batch, temperature=1.0, entropy_gradient=True)
    assert entropy.requires_grad


def test_an_empty_microbatch_has_a_gradient_of_zero(tiny_gpt2: str) -> None:
    model = load_causal_lm(tiny_gpt2)
    logprobs, _ = token_logprobs(model, empty_microbatch(), temperature=1.0, entropy_gradient=False)
    logprobs.sum().backward()
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())


def test_a_directory_without_a_model_is_refused_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"set policy\.model_name to a local directory"):
        load_causal_lm(str(tmp_path))


def test_only_the_last_layers_are_trained_when_asked(tiny_gpt2: str) -> None:
    model = load_causal_lm(tiny_gpt2)
    assert len(decoder_layers(model)) == 2
    freeze_all_but_last_layers(model, 1)
    names = [name for name, _ in trainable_parameters(model)]
    assert names
    assert all(name.startswith("transformer.h.1.") for name in names)


def test_more_last_layers_than_there_are_is_refused(tiny_gpt2: str) -> None:
    with pytest.raises(ValueError, match="train_last_layers is 3, but the model has 2 decoder layers"):
        make_trainer(tiny_gpt2, train_last_layers=3)


def test_rollouts_longer_than_the_positions_of_the_model_are_refused(tiny_gpt2: str) -> None:
    with pytest.raises(ValueError, match="the model has 24 positions"):
        make_trainer(tiny_gpt2, max_total_sequence_length=25)


def test_a_model_without_layers_that_transformers_marks_is_told_apart() -> None:
    with pytest.raises(ValueError, match="Linear has no layer derived"):
        decoder_layers(torch.nn.Linear(2, 2))


def test_weights_go_through_numpy_bit_by_bit() -> None:
    source, target = tiny_llama(), tiny_llama()
    with torch.no_grad():
        for parameter in source.parameters():
            parameter.add_(torch.randn_like(parameter))
    arrays = dict(state_numpy(source, "float32"))
    load_weights(target, {name: from_numpy(array) for name, array in arrays.items()})
    assert all(torch.equal(a, b) for a, b in zip(source.parameters(), target.parameters(), strict=True))
    assert len(decoder_layers(target)) == 2


def test_float32_weights_are_the_memory_of_the_model_and_read_only(tiny_gpt2: str) -> None:
    model = load_causal_lm(tiny_gpt2)
    name, array = next(state_numpy(model, "float32"))
    assert array.ctypes.data == model.state_dict()[name].data_ptr()
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 0


def test_bfloat16_travels_as_its_bits() -> None:
    model = tiny_llama()
    for name, array in state_numpy(model, "bfloat16"):
        assert array.dtype == "uint16"
        assert torch.equal(from_numpy(array), model.state_dict()[name].to(torch.bfloat16))
    assert from_numpy(to_numpy(torch.tensor([1, 2]))).dtype == torch.int64


def test_tied_weights_travel_once_under_the_name_that_transformers_saves(tiny_gpt2: str) -> None:
    names = [name for name, _ in state_numpy(load_causal_lm(tiny_gpt2), "float32")]
    assert "transformer.wte.weight" in names
    assert "lm_head.weight" not in names


def test_weights_of_another_model_are_refused_and_nothing_is_copied(tiny_gpt2: str) -> None:
    model, other = load_causal_lm(tiny_gpt2), tiny_llama()
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(ValueError, match=r"missing: .* more; unknown: .* more\)"):
        load_weights(model, dict(other.state_dict()))
    good = {name: from_numpy(array) + 1 for name, array in state_numpy(model, "float32")}
    last = list(good)[-1]
    with pytest.raises(ValueError, match=rf"{last}: shape \(3,\) where the model has"):
        load_weights(model, good | {last: torch.zeros(3)})
    assert all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items())


def test_the_tiny_model_really_has_dropout_to_turn_off(tiny_gpt2: str) -> None:
    assert GPT2LMHeadModel.from_pretrained(tiny_gpt2).config.resid_pdrop == 0.3
