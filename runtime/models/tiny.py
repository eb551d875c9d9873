"""The small transformer of the default run, its character tokenizer, and its supervised warm-up.

GPT-2's architecture with 2 layers of width 64, about 0.1 M parameters. Untied embeddings and an initial standard
deviation of 0.05 (GPT-2 has 0.02) let a model this small learn within a minute.

The warm-up takes a few seconds and gives reinforcement learning right answers to reinforce. It stops long before the
task is learnt: 10% to 15% accuracy gives a group both right and wrong answers.
"""

import string
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from runtime.files import give_usual_mode
from runtime.models.config import TinyModelConfig, WarmupConfig
from runtime.tasks.base import Task, TaskError
from runtime.tasks.split import derive_seed

PAD, END, UNKNOWN = "<pad>", "<end>", "<unk>"
ALPHABET = string.digits + string.ascii_letters + string.punctuation + " \n"
"""The characters that have tokens. All others become `UNKNOWN`."""


def character_tokenizer() -> PreTrainedTokenizerFast:
    """One token a character of ALPHABET, and three special ones: 0 pads, 1 ends, 2 is unknown."""
    vocabulary = {token: index for index, token in enumerate([PAD, END, UNKNOWN, *ALPHABET])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, eos_token=END, unk_token=UNKNOWN, clean_up_tokenization_spaces=False
    )
    fast.name_or_path = "tiny"
    return fast


def tiny_model(tokenizer: PreTrainedTokenizerFast, config: TinyModelConfig, seed: int) -> GPT2LMHeadModel:
    """A new model for this tokenizer. The same seed gives the same weights; torch's global generator is untouched."""
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
    """Save a new model and its tokenizer as a Hugging Face directory. Returns the directory."""
    tokenizer = character_tokenizer()
    tiny_model(tokenizer, config, seed).save_pretrained(directory)
    give_usual_mode(directory / "model.safetensors")
    tokenizer.save_pretrained(directory)
    return directory


_IGNORED = -100
"""torch's cross entropy leaves out targets of this value."""


@dataclass(frozen=True, slots=True)
class WarmupProgress:
    """One warm-up step. `loss` is the mean cross entropy of the answers' tokens, in nats."""

    step: int
    steps: int
    loss: float


def warm_up(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    task: Task,
    config: WarmupConfig,
    *,
    seed: int,
    progress: Callable[[WarmupProgress], None] = lambda _: None,
) -> None:
    """Train `model` in place on the task's reference answers, each followed by the end token.

    The same seed and thread count give the same weights. `task` should be the training split.
    Raises TaskError if the task has no reference answer.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate)
    rng = np.random.Generator(np.random.PCG64(derive_seed(seed, "warm-up")))
    model.train()
    for step in range(config.steps):
        indices = rng.integers(0, task.num_prompts, size=config.batch_size)
        ids, labels = _batch(tokenizer, task, [int(index) for index in indices])
        attended = (labels != _IGNORED) | (ids != tokenizer.pad_token_id)
        logits = model(input_ids=ids, attention_mask=attended).logits[:, :-1].flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(logits.float(), labels[:, 1:].flatten(), ignore_index=_IGNORED)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        progress(WarmupProgress(step=step, steps=config.steps, loss=loss.item()))
    model.eval()


def _batch(tokenizer: PreTrainedTokenizerBase, task: Task, indices: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and labels, (batch, longest); labels are ignored on prompts and padding."""
    rows = [_dialogue(tokenizer, task, index) for index in indices]
    longest = max(len(tokens) for tokens, _ in rows)
    ids = torch.full((len(rows), longest), tokenizer.pad_token_id)
    labels = torch.full((len(rows), longest), _IGNORED)
    for row, (tokens, learnt) in enumerate(rows):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        labels[row, : len(tokens)] = torch.tensor(learnt)
    return ids, labels


def _dialogue(tokenizer: PreTrainedTokenizerBase, task: Task, index: int) -> tuple[list[int], list[int]]:
    """Token ids of a demonstration, and the labels of the policy's turns, each followed by the end token."""
    texts = task.demonstration(index)
    if texts is None:
        raise TaskError(f"item {index} of the task has no reference answer to warm up on; set the warm-up's steps to 0")
    tokens: list[int] = []
    labels: list[int] = []
    for number, text in enumerate(tokenizer(list(texts), add_special_tokens=False)["input_ids"]):
        is_policys = number % 2 == 1
        turn = [*text, tokenizer.eos_token_id] if is_policys else text
        tokens += turn
        labels += turn if is_policys else [_IGNORED] * len(turn)
    return tokens, labels
