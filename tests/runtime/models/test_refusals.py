"""Models that cannot be trained or sampled from are refused by name, before anything starts."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from runtime.generation.config import GenerationConfig
from runtime.generation.on_torch.engine import load_torch_engine
from runtime.launch.model import prepare
from runtime.launch.preflight import Prepared
from runtime.models.directory import UnsupportedModel
from runtime.settings import Settings, load_settings
from runtime.training.model import load_causal_lm
from tests.runtime.models.architectures import ARCHITECTURES, logits_of, save, trainer_of

SMALL = {
    "vocab_size": 98,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 1,
}


def settings_for(model: Path, *overrides: str) -> Settings:
    return load_settings(
        None,
        [
            f"policy.model_name={model}",
            *("policy.max_total_sequence_length=64", "generation.max_prompt_tokens=48", "data.validation_size=8"),
            *overrides,
        ],
    )


def save_other(directory: Path, model_type: str, **options: object) -> Path:
    """A random model of an architecture that is not among those of the helpers, with their tokenizer."""
    save("llama", directory)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **{**SMALL, **options}))
    model.save_pretrained(directory)
    return directory


def refusals(model: Path, *overrides: str) -> tuple[str, ...]:
    *_, made = prepare(settings_for(model, *overrides), model.parent / "unused")
    assert isinstance(made, Prepared)
    counted, prepared = made.found, made.directory
    assert (prepared is None) == bool(counted.refusals)
    return counted.refusals


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("options", [(), ("policy.train_last_layers=1",), ("policy.gradient_checkpointing=true",)])
def test_what_works_is_not_refused(name: str, options: tuple[str, ...], tmp_path: Path) -> None:
    assert refusals(save(name, tmp_path / "model"), *options) == ()


def test_layers_without_keys_and_values_are_refused_by_name(tmp_path: Path) -> None:
    model = save_other(
        tmp_path / "model", "lfm2", layer_types=["conv", "full_attention"], num_key_value_heads=2, intermediate_size=32
    )
    (refusal,) = refusals(model)
    assert "Lfm2ForCausalLM has layers of ['conv', 'full_attention']" in refusal
    assert "use generation.engine.name: vllm" in refusal


def test_windows_below_the_rollouts_are_refused_by_whatever_name_they_have(tmp_path: Path) -> None:
    gemma = save("gemma3_text", tmp_path / "gemma", sliding_window=20)
    (refusal,) = refusals(gemma)
    assert "attends to a window of 20 tokens and generation.max_prompt_tokens + max_new_tokens is 64" in refusal
    neo = save_other(
        tmp_path / "neo",
        "gpt_neo",
        attention_types=[[["global", "local"], 1]],
        num_layers=2,
        num_heads=4,
        window_size=20,
    )
    (refusal,) = refusals(neo)
    assert "GPTNeoForCausalLM attends to a window of 20 tokens" in refusal
    assert refusals(neo, "generation.max_prompt_tokens=10", "generation.max_new_tokens=10") == ()


def test_every_reason_is_told_at_once(tmp_path: Path) -> None:
    model = save("llama", tmp_path / "model", max_position_embeddings=32)
    reasons = refusals(model, "policy.train_last_layers=3")
    assert len(reasons) == 3
    assert "policy.max_total_sequence_length is 64, but the model has 32 positions" in reasons[0]
    assert "train_last_layers is 3, but the model has 2 decoder layers" in reasons[1]
    assert "LlamaForCausalLM has 32 positions" in reasons[2]


def test_more_last_layers_than_the_tiny_model_has_is_refused(tmp_path: Path) -> None:
    settings = load_settings(None, ["policy.train_last_layers=3"])
    *_, made = prepare(settings, tmp_path / "model")
    assert isinstance(made, Prepared)
    counted, prepared = made.found, made.directory
    assert prepared is None
    assert not (tmp_path / "model").exists()
    assert "train_last_layers is 3, but the model has 2 decoder layers" in counted.refusals[0]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"model_type": "unheard_of", "architectures": ["Unheard"]}, "make no causal LM of .*unheard_of"),
        ({"model_type": "vit"}, "make no causal LM of .*Unrecognized configuration class"),
        ({"quantization_config": {"quant_method": "fp8"}}, "are quantised .* dequantise the model"),
    ],
)
def test_what_is_no_plain_causal_lm_is_refused(change: dict[str, object], says: str, tmp_path: Path) -> None:
    model = save("llama", tmp_path / "model")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | change))
    (refusal,) = refusals(model)
    assert re.search(says, refusal), refusal


@pytest.mark.parametrize(
    ("model_type", "options", "says"),
    [
        ("opt", {"ffn_dim": 32, "word_embed_proj_dim": 32}, "OPTForCausalLM does not work with the key-value cache"),
        ("bloom", {"n_head": 4, "n_layer": 2}, "BloomForCausalLM does not work with the key-value cache"),
        ("rwkv", {"attention_hidden_size": 32}, "RwkvForCausalLM gives other logits with the key-value cache"),
        (
            "bert",
            {"is_decoder": True, "intermediate_size": 32},
            "BertLMHeadModel does not work with the key-value cache",
        ),
    ],
)
def test_what_computes_something_else_through_the_engine_s_cache_is_refused(
    model_type: str, options: dict[str, object], says: str, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    directory = save_other(tmp_path / "model", model_type, **options)
    config = GenerationConfig.model_validate({"max_prompt_tokens": 24, "max_new_tokens": 16})
    with pytest.raises(UnsupportedModel, match=says):
        load_torch_engine(directory, config, stop_token_ids=[1])


def test_routers_that_are_noisy_in_training_are_trained_as_they_sample(tmp_path: Path) -> None:
    directory = save_other(
        tmp_path / "model",
        "phimoe",
        num_key_value_heads=2,
        intermediate_size=32,
        num_local_experts=4,
        router_jitter_noise=0.5,
    )
    model = trainer_of(directory, gradient_checkpointing=True).model
    plain = AutoModelForCausalLM.from_pretrained(directory).eval()
    torch.testing.assert_close(logits_of(model), logits_of(plain), rtol=0, atol=1e-5)
    assert not torch.equal(logits_of(plain.train()), logits_of(plain.train())), "the noise that training mode adds"


def test_bfloat16_is_not_taken_for_another_policy(tmp_path: Path) -> None:
    for name in ARCHITECTURES:
        config = GenerationConfig.model_validate(
            {"engine": {"name": "torch", "precision": "bfloat16"}, "max_prompt_tokens": 24, "max_new_tokens": 16}
        )
        load_torch_engine(save(name, tmp_path / name), config, stop_token_ids=[1])


def _with_tensors(directory: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> Path:
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


@pytest.mark.parametrize(
    ("change", "config", "says"),
    [
        (lambda held: held.pop("model.norm.weight"), {}, "lacks weights of LlamaForCausalLM.*: model.norm.weight; "),
        (lambda _: None, {"num_hidden_layers": 3}, r"lacks weights .*model\.layers\.2\..* and \d more; check num_hid"),
        (lambda held: held.update({"model.norm.weight": torch.ones(7)}), {}, r"other shapes .*norm.weight \(7,\), not"),
        (lambda held: held["model.norm.weight"].fill_(float("nan")), {}, "NaN or infinite, .*: model.norm.weight"),
    ],
    ids=["missing", "a layer more", "shape", "NaN"],
)
def test_a_model_whose_files_do_not_hold_its_weights_is_neither_sampled_nor_trained(
    change: Callable[[dict[str, torch.Tensor]], object], config: dict[str, int], says: str, tmp_path: Path
) -> None:
    directory = _with_tensors(save("llama", tmp_path / "model"), change)
    known = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(known | config))
    engine = GenerationConfig.model_validate({"max_prompt_tokens": 24, "max_new_tokens": 16})
    with pytest.raises(UnsupportedModel, match=says):
        load_torch_engine(directory, engine, stop_token_ids=[1])
    with pytest.raises(UnsupportedModel, match=says):
        load_causal_lm(str(directory))


def test_tied_weights_are_not_missing_and_others_that_are_unknown_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = save("llama", tmp_path / "model", tie_word_embeddings=True)
    _with_tensors(directory, lambda held: held.update({"foreign.weight": torch.ones(7)}))
    load_causal_lm(str(directory))
    assert "foreign.weight" in caplog.text


def test_a_tokenizer_that_is_none_is_refused_with_its_file(tmp_path: Path) -> None:
    directory = save("llama", tmp_path / "model")
    (directory / "tokenizer.json").write_text("{}")
    (refusal,) = refusals(directory)
    assert f"{directory}/tokenizer.json or another file of the tokenizer" in refusal
