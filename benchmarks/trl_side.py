"""TRL's side of `against_trl.py`, which gives it its options as one JSON argument. It runs in TRL's virtual environment
and imports nothing of evenstep.

Prints one JSON line: optimizer steps, trained completion tokens, seconds, mean reward of the first and last steps.
"""

import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import trl
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer


class Clock(TrainerCallback):
    """Seconds from the end of the first optimizer step, which warms up, to the end of the last."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.ends.append(time.perf_counter())


def main() -> None:
    """Train and print."""
    options = SimpleNamespace(**json.loads(sys.argv[1]))
    torch.set_num_threads(options.threads)
    rows = [json.loads(line) for line in Path(options.prompts).read_text(encoding="utf-8").splitlines()]
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    tokens: list[int] = []

    def exact(completions: list[str], answer: list[str], completion_ids: list[list[int]], **_: Any) -> list[float]:
        tokens.append(sum(len(ids) for ids in completion_ids))
        return [float(text == wanted) for text, wanted in zip(completions, answer, strict=True)]

    clock = Clock()
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(options.model),
        processing_class=tokenizer,
        reward_funcs=exact,
        train_dataset=Dataset.from_list(rows),
        callbacks=[clock],
        args=GRPOConfig(
            output_dir=options.output,
            max_steps=options.steps,
            per_device_train_batch_size=options.prompts_per_step * options.generations,
            num_generations=options.generations,
            max_completion_length=options.max_new_tokens,
            learning_rate=options.learning_rate,
            lr_scheduler_type="constant",
            beta=0.0,
            temperature=1.0,
            epsilon=0.2,
            epsilon_high=0.28,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        ),
    )
    trainer.train()
    rewards = [entry["reward"] for entry in trainer.state.log_history if "reward" in entry]
    result = {
        "version": trl.__version__,
        "steps": len(clock.ends) - 1,
        "tokens": sum(tokens[1:]),
        "seconds": clock.ends[-1] - clock.ends[0],
        "reward_first": sum(rewards[:5]) / 5,
        "reward_last": sum(rewards[-5:]) / 5,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
