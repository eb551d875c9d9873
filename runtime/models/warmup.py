"""A few seconds of supervised training, so that reinforcement learning has something to reinforce.

Stops well before the task is learnt: about 10% to 15% accuracy leaves both right and wrong answers in a group.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from runtime.models.config import WarmupConfig
from runtime.tasks.base import Task
from runtime.tasks.errors import TaskError
from runtime.tasks.seeds import derive_seed

_IGNORED = -100
"""torch's cross entropy leaves out targets of this value."""


@dataclass(frozen=True, slots=True)
class WarmupProgress:
    """One warm-up step: `loss` is the mean cross entropy of the answers' tokens, in nats."""

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
    Raises TaskError when the task has no reference answer.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate)
    rng = np.random.Generator(np.random.PCG64(derive_seed(seed, "warm-up")))
    model.train()
    for step in range(config.steps):
        indices = rng.integers(0, task.num_prompts, size=config.batch_size)
        ids, labels = _batch(tokenizer, task, [int(index) for index in indices])
        logits = model(input_ids=ids, attention_mask=(labels != _IGNORED) | (ids != tokenizer.pad_token_id)).logits[
            :, :-1
        ]
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1).float(), labels[:, 1:].flatten(), ignore_index=_IGNORED
        )
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        progress(WarmupProgress(step=step, steps=config.steps, loss=loss.item()))
    model.eval()


def _batch(tokenizer: PreTrainedTokenizerBase, task: Task, indices: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and labels, (batch, longest); labels are ignored on prompts and padding."""
    answers = [task.reference(index) for index in indices]
    for index, answer in zip(indices, answers, strict=True):
        if answer is None:
            raise TaskError(
                f"item {index} of the task has no reference answer to warm up on; set the warm-up's steps to 0"
            )
    prompts = tokenizer([task.prompt(index) for index in indices], add_special_tokens=False)["input_ids"]
    completions = tokenizer(answers, add_special_tokens=False)["input_ids"]
    rows = [
        ([*prompt, *completion, tokenizer.eos_token_id], len(prompt))
        for prompt, completion in zip(prompts, completions, strict=True)
    ]
    longest = max(len(tokens) for tokens, _ in rows)
    ids = torch.full((len(rows), longest), tokenizer.pad_token_id)
    labels = torch.full((len(rows), longest), _IGNORED)
    for row, (tokens, prompt_tokens) in enumerate(rows):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        labels[row, prompt_tokens : len(tokens)] = torch.tensor(tokens[prompt_tokens:])
    return ids, labels
