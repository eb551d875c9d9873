"""The calculator of the examples pays for right products, and a tiny model learns to call it."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from examples.calculator import Calculator
from runtime.tasks.base import Completion, Verdict

ROOT = Path(__file__).parents[2]


def played(*turns: str) -> tuple[list[str | None], Verdict]:
    async def play() -> tuple[list[str | None], Verdict]:
        calculator = Calculator(split="training", seed=0)
        calculator.numbers = lambda index: (374, 485)  # type: ignore[method-assign]
        episode = await calculator.open(0)
        assert episode.prompt == "374*485>"
        answers = [await episode.respond(turn) for turn in turns[:-1]]
        return answers, await episode.verdict(Completion(turns, tokens=1, finish_reason="stop"))  # type: ignore[return-value]

    return asyncio.run(play())


@pytest.mark.parametrize(
    ("turns", "answers", "reward", "called"),
    [
        (["181390"], [], 1.0, 0.0),
        (["181391"], [], 0.0, 0.0),
        (["calc(374*485)", "181390"], ["=181390>"], 1.0, 1.0),
        (["calc(374*484)", "181016"], ["=181016>"], 0.0, 1.0),
        (["calc(374*485)", "calc(1*1)"], ["=181390>"], 0.0, 1.0),
        (["calc(374*485"], [], 0.0, 0.0),
    ],
)
def test_the_last_turn_must_be_the_product(turns: list[str], answers: list[str], reward: float, called: float) -> None:
    given, verdict = played(*turns)
    assert given == answers
    assert (verdict.reward, verdict.correct, dict(verdict.parts)) == (reward, reward == 1, {"called": called})


def test_no_held_out_product_is_trained_and_few_demonstrations_call() -> None:
    training, held_out = Calculator(split="training", seed=0), Calculator(split="validation", seed=0)
    assert not {training.numbers(i) for i in range(3000)} & {held_out.numbers(i) for i in range(3000)}
    calls = sum(len(training.demonstration(index)) == 4 for index in range(3000))
    assert 0.07 < calls / 3000 < 0.13


def test_a_tiny_model_learns_to_call_the_calculator(tmp_path: Path) -> None:
    """A shorter run; docs/environments.md has the figures of the whole one."""
    command = "from runtime.cli.entry import main; main()"
    shorter = ["grpo.max_num_steps=40", "data.validation_size=128", "checkpointing.enabled=false"]
    done = subprocess.run(
        [sys.executable, "-c", command, "train", "examples/calculator.yaml", "--output", str(tmp_path / "run")]
        + [part for change in shorter for part in ("--set", change)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = (tmp_path / "run/metrics.jsonl").read_text(encoding="utf-8").splitlines()
    accuracy = [record["accuracy"] for record in map(json.loads, lines) if record["kind"] == "validation"]
    assert accuracy[0] < 0.15
    assert accuracy[-1] > accuracy[0] + 0.2
