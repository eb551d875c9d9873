"""Measure how long a trainer rests for a checkpoint, and what writing it in the background costs the next steps.

A model of the size and shape of SmolLM2-135M with random weights, and a step of AdamW, in one process with one thread,
as a trainer rank has it: the copy, the writing while the trainer rests, and steps with and without a writer beside.
"""

import argparse
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from transformers import LlamaConfig, LlamaForCausalLM

from runtime.checkpoints.checkpoint import TRAINER, commit, staging
from runtime.checkpoints.origin import Origin
from runtime.groups import Rollout, RolloutGroup
from runtime.training.config import LossConfig, OptimizerConfig, PolicyConfig
from runtime.training.state import StateCopy, write_state
from runtime.training.trainer import StepTrainer

CONTROL = {"ready": [], "chunk": [], "accumulated": []}
TOKENS = 64


def trainer_of(folder: Path) -> StepTrainer:
    """A trainer of the model, with random weights."""
    config = LlamaConfig(
        vocab_size=49_152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, max_position_embeddings=256, tie_word_embeddings=True,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    policy = PolicyConfig(model_name=str(folder), max_total_sequence_length=256)
    return StepTrainer(policy, LossConfig(), OptimizerConfig())


def step(trainer: StepTrainer) -> None:
    """One optimizer step on four short rollouts."""
    random = np.random.default_rng(0)
    rollouts = tuple(
        Rollout(
            token_ids=random.integers(0, 49_152, TOKENS).astype(np.int32),
            loss_mask=np.arange(TOKENS) >= TOKENS // 2,
            logprobs=np.full(TOKENS, -10.0, np.float32),
            reward=float(number % 2),
            finished=True,
        )
        for number in range(4)
    )
    trainer.accumulate([RolloutGroup(0, rollouts, trainer.version, trainer.version)], trainer.version)
    trainer.finish_step()


def timed(work: Callable[[], object]) -> float:
    """How long it takes, in seconds."""
    began_s = time.perf_counter()
    work()
    return time.perf_counter() - began_s


def write(directory: Path, state: StateCopy) -> None:
    """A whole checkpoint, as the first rank writes it."""
    with staging(directory) as staged:
        write_state(staged / TRAINER, state)
        commit(
            staged,
            step=state.version,
            control=CONTROL | {"state": {"trainer": [0, state.version]}},
            groups={},
            task_state={},
            random_states={},
            origin=Origin("benchmark", {}, {}),
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, help="where to write; by default a temporary folder")
    parser.add_argument("--steps", type=int, default=6, help="steps without a writer (6)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.directory) as folder:
        trainer = trainer_of(Path(folder) / "model")
        step(trainer)
        alone = [timed(lambda: step(trainer)) for _ in range(given.steps)]
        copies = []
        for _ in range(3):
            state: StateCopy | None = None
            began_s = time.perf_counter()
            state = trainer.copy_state()
            copies.append(time.perf_counter() - began_s)
        assert state is not None
        resting_s = timed(lambda: write(Path(folder) / "checkpoints", state))
        writer = threading.Thread(target=write, args=(Path(folder) / "checkpoints", state))
        writer.start()
        beside = []
        began_s = time.perf_counter()
        while writer.is_alive():
            beside.append(timed(lambda: step(trainer)))
        writing_s = time.perf_counter() - began_s
        bytes_ = sum(tensor.nbytes for tensor in (state.weights | state.moments).values())
        print(f"a checkpoint of {bytes_ / 1e9:.2f} GB")
        print(f"copied in {statistics.median(copies):.2f} s (the trainer rests), written in {resting_s:.2f} s")
        print(f"written beside training: {writing_s:.2f} s at most")
        print(f"a step: {statistics.median(alone):.2f} s alone, {statistics.median(beside):.2f} s beside the writer")


if __name__ == "__main__":
    main()
