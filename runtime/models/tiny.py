"""The small transformer of the default run and its character tokenizer, made here and saved like any other.

GPT-2's architecture, 2 layers of width 64, about 0.1 M parameters. Untied embeddings and an initial standard
deviation of 0.05 (GPT-2 has 0.02) are what let a model this small learn within a minute.
"""

from __future__ import annotations

import string
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from runtime.models.config import TinyModelConfig

PAD, END, UNKNOWN = "<pad>", "<end>", "<unk>"
ALPHABET = string.digits + string.ascii_letters + string.punctuation + " \n"
"""The characters with a token of their own. A task that uses others sees `UNKNOWN` for them."""


def character_tokenizer() -> PreTrainedTokenizerFast:
    """One token a character of ALPHABET, and three special ones: 0 pads, 1 ends, 2 is unknown."""
    vocabulary = {token: index for index, token in enumerate([PAD, END, UNKNOWN, *ALPHABET])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        unk_token=UNKNOWN,
        clean_up_tokenization_spaces=False,
    )


def tiny_model(tokenizer: PreTrainedTokenizerFast, config: TinyModelConfig, seed: int) -> GPT2LMHeadModel:
    """A fresh model for this tokenizer. The same seed gives the same weights; torch's own generator is untouched."""
    settings = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=config.max_positions,
        n_embd=config.width,
        n_layer=config.num_layers,
        n_head=config.width // config.head_size,
        activation_function="gelu_pytorch_tanh",  # gelu_new in one fused operation
        initializer_range=config.init_std,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return GPT2LMHeadModel(settings)


def save_tiny_model(directory: Path, config: TinyModelConfig, seed: int) -> Path:
    """Make a model and its tokenizer and save both as a Hugging Face directory, which is returned."""
    tokenizer = character_tokenizer()
    tiny_model(tokenizer, config, seed).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory
