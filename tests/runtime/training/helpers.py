"""A tiny GPT-2 and made-up rollouts, for the tests of training (and their child processes)."""

import multiprocessing
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from runtime.groups import Rollout, RolloutGroup
from runtime.training.config import LossConfig, OptimizerConfig, PolicyConfig
from runtime.training.ranks import Ranks
from runtime.training.state import StateCopy, write_state
from runtime.training.step_metrics import StepMetrics
from runtime.training.trainer import StepTrainer

VOCABULARY = 13
POSITIONS = 24


def save_tiny_gpt2(directory: Path) -> str:
    """Two layers of width 32, with dropout rates that the trainer must turn off."""
    torch.manual_seed(7)
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=POSITIONS,
        n_embd=32,
        n_layer=2,
        n_head=2,
        resid_pdrop=0.3,
        embd_pdrop=0.3,
        attn_pdrop=0.3,
        bos_token_id=0,
        eos_token_id=0,
        initializer_range=0.2,
    )
    GPT2LMHeadModel(config).save_pretrained(directory)
    return str(directory)


def save_trainer(trainer: StepTrainer, directory: Path) -> None:
    """Write the trainer's state as a checkpoint has it. Every rank must call it, and returns when it is written."""
    write_copy(trainer.copy_state(), directory, trainer.ranks)


def write_copy(state: StateCopy | None, directory: Path, ranks: Ranks) -> None:
    """Every rank must call it; the first has the copy and writes it."""
    if state is not None:
        write_state(directory, state)
    ranks.sum(torch.zeros(1))


def tiny_llama() -> LlamaForCausalLM:
    """Two layers of width 16, with a head of its own."""
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=POSITIONS,
            tie_word_embeddings=False,
        )
    )


def make_groups(
    count: int, *, seed: int, siblings: int = 4, start_weight: int = 0, rewards: list[float] | None = None
) -> list[RolloutGroup]:
    """Groups of random tokens, lengths, log-probabilities and rewards; every fourth rollout is cut off."""
    rng = np.random.default_rng(seed)
    groups = []
    for prompt in range(count):
        context = int(rng.integers(1, 5))
        rollouts = []
        for sibling in range(siblings):
            tokens = context + int(rng.integers(1, 12))
            mask = np.arange(tokens) >= context
            rollouts.append(
                Rollout(
                    token_ids=rng.integers(0, VOCABULARY, tokens).astype(np.int32),
                    loss_mask=mask,
                    logprobs=np.where(mask, -rng.gamma(2.0, 1.2, tokens), 0).astype(np.float32),
                    reward=float(rng.normal()) if rewards is None else rewards[sibling],
                    finished=sibling % 4 != 3,
                )
            )
        groups.append(
            RolloutGroup(prompt=prompt, rollouts=tuple(rollouts), start_weight=start_weight, end_weight=start_weight)
        )
    return groups


def make_trainer(
    model: str,
    *,
    loss: LossConfig | None = None,
    optimizer: OptimizerConfig | None = None,
    ranks: Ranks | None = None,
    **policy: object,
) -> StepTrainer:
    """A trainer whose AdamW has a large eps, so that rounding of tiny gradients stays rounding."""
    options = {"model_name": model, "max_total_sequence_length": POSITIONS, "train_microbatch_tokens": 64}
    return StepTrainer(
        PolicyConfig.model_validate(options | policy),
        loss or LossConfig(),
        optimizer or OptimizerConfig(lr=1e-2, eps=1e-3, weight_decay=0.1),
        ranks=ranks,
    )


def train(trainer: StepTrainer, chunks: list[list[RolloutGroup]]) -> StepMetrics:
    for chunk in chunks:
        trainer.accumulate(chunk, trainer.version)
    return trainer.finish_step()


def two_steps(trainer: StepTrainer, cut: int) -> list[StepMetrics]:
    """Two steps of six groups, in chunks of `cut`."""
    steps = []
    for seed in (1, 2):
        groups = make_groups(6, seed=seed)
        chunks = [list(chunk) for chunk in zip(*[iter(groups)] * cut, strict=True)]
        steps.append(train(trainer, chunks))
    return steps


def copied_weights(trainer: StepTrainer) -> dict[str, np.ndarray]:
    return {name: array.copy() for name, array in trainer.state_numpy().items()}


def assert_same_weights(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray], *, tolerance: float = 0.0) -> None:
    assert ours.keys() == theirs.keys()
    for name, array in ours.items():
        np.testing.assert_allclose(array, theirs[name], rtol=0, atol=tolerance, err_msg=name)


def run_two_ranks(run_rank: Callable[..., None], *args: object) -> None:
    """Run `run_rank(rank, *args)` in two processes that meet on the loopback, until both have ended well."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GLOO_SOCKET_IFNAME", "lo")
        patch.setenv("OMP_NUM_THREADS", "1")
        context = multiprocessing.get_context("spawn")
        processes = [context.Process(target=run_rank, args=(rank, *args)) for rank in range(2)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(timeout=240)
        still_alive = [process for process in processes if process.is_alive()]
        for process in still_alive:
            process.kill()
    assert not still_alive
    assert [process.exitcode for process in processes] == [0, 0]
