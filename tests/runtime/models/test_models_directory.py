"""What is wrong with a model directory is told before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtime.models.directory import ModelDirectoryError, check_model_directory, load_tokenizer
from runtime.models.tiny import TinyModelConfig, save_tiny_model


def test_a_whole_directory_gives_its_tokenizer(tmp_path: Path) -> None:
    assert load_tokenizer(save_tiny_model(tmp_path, TinyModelConfig(), seed=0)).eos_token_id == 1


def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelDirectoryError, match=r"elsewhere: there is no such directory; save one"):
        check_model_directory(tmp_path / "elsewhere")


@pytest.mark.parametrize("file", ["config.json", "model.safetensors", "tokenizer_config.json"])
def test_what_is_missing_is_named_with_the_remedy(tmp_path: Path, file: str) -> None:
    save_tiny_model(tmp_path, TinyModelConfig(), seed=0)
    (tmp_path / file).unlink()
    with pytest.raises(ModelDirectoryError, match=rf"has no .*{file.removeprefix('model')}.*save_pretrained"):
        check_model_directory(tmp_path)


def test_a_torn_configuration_is_named(tmp_path: Path) -> None:
    save_tiny_model(tmp_path, TinyModelConfig(), seed=0)
    (tmp_path / "config.json").write_text('{"model_type": ')
    with pytest.raises(ModelDirectoryError, match=r"config.json: is not JSON"):
        check_model_directory(tmp_path)


def test_a_tokenizer_without_an_end_is_refused(tmp_path: Path) -> None:
    save_tiny_model(tmp_path, TinyModelConfig(), seed=0)
    config = tmp_path / "tokenizer_config.json"
    config.write_text("\n".join(line for line in config.read_text().splitlines() if "eos_token" not in line))
    with pytest.raises(ModelDirectoryError, match=r"no end-of-text token"):
        load_tokenizer(tmp_path)


def test_a_width_that_does_not_divide_into_heads_is_refused() -> None:
    with pytest.raises(ValueError, match=r"width 48 is not a multiple of head_size 32"):
        TinyModelConfig(width=48)
