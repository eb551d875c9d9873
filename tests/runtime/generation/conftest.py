import pytest
import torch
from transformers import GPT2LMHeadModel, PreTrainedTokenizerFast

from runtime.models.text import TextCodec
from runtime.models.tiny import TinyModelConfig, character_tokenizer, tiny_model


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    return character_tokenizer()


@pytest.fixture
def model(tokenizer: PreTrainedTokenizerFast) -> GPT2LMHeadModel:
    return tiny_model(tokenizer, TinyModelConfig(), seed=0)


@pytest.fixture
def codec(tokenizer: PreTrainedTokenizerFast) -> TextCodec:
    return TextCodec(tokenizer)
