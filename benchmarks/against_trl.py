"""Compare trained completion tokens per second of wall time with TRL's GRPOTrainer, on the same cores.

Both sides train the same warmed-up tiny model on the same task with the same group size and step size, without dynamic
sampling (TRL has none). TRL needs a separate virtual environment, since it pins other versions:

    python3 -m venv .venv-trl && .venv-trl/bin/pip install torch==2.13.0 trl==1.16.0 transformers==5.19.0
    python benchmarks/against_trl.py --trl-python .venv-trl/bin/python

The first step of each side is a warm-up and not counted. TRL runs with one and with two threads; the better figure
counts.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from runtime.models.tiny import character_tokenizer, tiny_model, warm_up
from runtime.settings import load_settings
from runtime.tasks.data import load_task

PROMPTS_PER_STEP, GENERATIONS, LEARNING_RATE = 8, 16, 3e-4
HERE = Path(__file__).parent


def prepare(folder: Path, steps: int) -> int:
    """Write the warmed-up model and enough prompts for both sides. Returns the length limit of a completion."""
    settings = load_settings(None)
    task = load_task(settings.data, "training")
    tokenizer = character_tokenizer()
    model = tiny_model(tokenizer, settings.policy.tiny, seed=0)
    warm_up(model, tokenizer, task, settings.warmup, seed=0)
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    indices = range(PROMPTS_PER_STEP * (steps + 1))
    rows = [json.dumps({"prompt": task.prompt(i), "answer": task.reference(i)}) for i in indices]
    (folder / "prompts.jsonl").write_text("\n".join(rows), encoding="utf-8")
    return settings.generation.max_new_tokens


def run(command: list[str], threads: int) -> str:
    """The standard output of a command. Raises CalledProcessError."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
    return subprocess.run(command, check=True, env=environment, stdout=subprocess.PIPE, text=True).stdout


def trl(python: str, folder: Path, steps: int, max_new_tokens: int, threads: int) -> dict[str, Any]:
    """One run of TRL."""
    options = {
        "model": str(folder / "model"), "prompts": str(folder / "prompts.jsonl"), "steps": steps + 1,
        "prompts_per_step": PROMPTS_PER_STEP, "generations": GENERATIONS, "max_new_tokens": max_new_tokens,
        "learning_rate": LEARNING_RATE, "threads": threads, "output": str(folder / "trl"),
    }  # fmt: skip
    printed = run([python, str(HERE / "trl_side.py"), json.dumps(options)], threads)
    result: dict[str, Any] = json.loads(printed.strip().splitlines()[-1])
    return result


def evenstep(folder: Path, steps: int) -> dict[str, Any]:
    """One run of evenstep, summed up from its metrics."""
    output = folder / "evenstep"
    changes = {
        "policy.model_name": folder / "model", "grpo.max_num_steps": steps + 1, "grpo.use_dynamic_sampling": "false",
        "grpo.num_prompts_per_step": PROMPTS_PER_STEP, "grpo.num_generations_per_prompt": GENERATIONS,
        "optimizer.lr": LEARNING_RATE, "validation.every_steps": "null", "logger.plot": "false",
    }  # fmt: skip
    sets = [part for key, value in changes.items() for part in ("--set", f"{key}={value}")]
    run([str(Path(sys.executable).parent / "evenstep"), "train", "--output", str(output), *sets], threads=1)
    lines = (output / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    records = [record for record in map(json.loads, lines) if record["kind"] == "step"]
    rewards = [record["reward"] for record in records]
    return {
        "steps": len(records) - 1,
        "tokens": round(sum(record["trained_tokens_per_s"] * record["wall_s"] for record in records[1:])),
        "seconds": records[-1]["time_s"] - records[0]["time_s"],
        "reward_first": sum(rewards[:5]) / 5,
        "reward_last": sum(rewards[-5:]) / 5,
    }


def main() -> None:
    """Run both sides and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trl-python", required=True, help="the interpreter of TRL's virtual environment")
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        limit = prepare(folder, options.steps)
        rows = {f"TRL, {n} thread(s)": trl(options.trl_python, folder, options.steps, limit, n) for n in (1, 2)}
        rows["evenstep"] = evenstep(folder, options.steps)
    print(f"{'':18} {'steps':>6} {'tokens':>8} {'seconds':>8} {'tokens/s':>9}  reward, first and last 5 steps")
    for side, row in rows.items():
        print(
            f"{side:18} {row['steps']:6} {row['tokens']:8,} {row['seconds']:8.1f} "
            f"{row['tokens'] / row['seconds']:9,.0f}  {row['reward_first']:.2f} → {row['reward_last']:.2f}"
        )
    best = max(row["tokens"] / row["seconds"] for side, row in rows.items() if side != "evenstep")
    print(f"evenstep / TRL: {rows['evenstep']['tokens'] / rows['evenstep']['seconds'] / best:.2f}")


if __name__ == "__main__":
    main()
