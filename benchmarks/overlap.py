"""Measure the gain of asynchrony: wall time of the same steps with lookahead 1 and with lookahead 0 (in_order).

Rollouts wait, as for a slow verifier or tool: every verdict takes 0.2 to 1 s, long-tailed. With this model size,
generating a step's groups and training on them take about as long. Both runs train the same prompts in the same order.

The bound is the best possible ratio: max(generation, training) / (generation + training), from the phases of the run
without lookahead. `--default` measures the CPU-bound default run, where two cores share one kind of work and overlap
gains little.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

WAITING: dict[str, Any] = {
    "data.delay": "{median_s: 0.35, sigma: 0.5, min_s: 0.2, max_s: 1.0}",
    "policy.tiny": "{num_layers: 4, width: 256}",
    "grpo.num_generations_per_prompt": 8,
    "cluster.reward_threads": 256,
    "warmup.steps": 8,
}
"""Makes rollouts wait, and training take as long as generation."""

COMMON: dict[str, Any] = {
    "grpo.use_dynamic_sampling": "false",
    "validation.every_steps": "null",
    "logger.plot": "false",
    "trace.enabled": "false",
}


class Phases(NamedTuple):
    """Medians over the steps of one run, in seconds."""

    wall_s: float
    """Sum of all steps but the first."""
    generation_s: float
    """The trainer waits for groups."""
    training_s: float
    """Training, finishing and syncing."""


def measure(folder: Path, lookahead: int, steps: int, settings: dict[str, Any]) -> Phases:
    """One run of `evenstep train`, without its first step, a warm-up."""
    output = folder / f"lookahead-{lookahead}"
    sampler = f"{{name: in_order, max_lookahead_versions: {lookahead}}}"
    changes = COMMON | settings | {"grpo.max_num_steps": steps + 1, "async_rl.sampler": sampler}
    sets = [part for key, value in changes.items() for part in ("--set", f"{key}={value}")]
    command = [str(Path(sys.executable).parent / "evenstep"), "train", "--output", str(output), *sets]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    lines = (output / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    records = [record for record in map(json.loads, lines) if record["kind"] == "step"][1:]
    busy = [record["training_s"] + record["finishing_s"] + record["syncing_s"] for record in records]
    return Phases(
        sum(record["wall_s"] for record in records),
        statistics.median(record["assembling_s"] for record in records),
        statistics.median(busy),
    )


def compare(title: str, steps: int, settings: dict[str, Any]) -> None:
    """Run both, and print the comparison."""
    with tempfile.TemporaryDirectory() as name:
        alone = measure(Path(name), 0, steps, settings)
        ahead = measure(Path(name), 1, steps, settings)
    bound = max(alone.generation_s, alone.training_s) / (alone.generation_s + alone.training_s)
    print(f"{title}, {steps} steps")
    for lookahead, phases in enumerate((alone, ahead)):
        waits, trains = f"waits {phases.generation_s:.2f} s", f"trains {phases.training_s:.2f} s"
        print(f"  lookahead {lookahead}: {phases.wall_s:6.1f} s; a step {waits}, {trains}")
    print(f"  lookahead 1 / lookahead 0: {ahead.wall_s / alone.wall_s:.2f}; bound {bound:.2f}", flush=True)


def main() -> None:
    """Print the comparison for rollouts that wait and for the default run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--default", action="store_true", help="only the CPU-bound default run")
    parser.add_argument("--waiting", action="store_true", help="only the run whose rollouts wait")
    options = parser.parse_args()
    if not options.default:
        compare("rollouts that wait 0.2 to 1 s", options.steps, WAITING)
    if not options.waiting:
        compare("the default run, CPU-bound", options.steps * 3, {})


if __name__ == "__main__":
    main()
