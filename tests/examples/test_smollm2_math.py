"""The example of mathematics runs as its file says, on the real model."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.models.smollm2 import ModelPackageMissing, smollm2_directory

ROOT = Path(__file__).parents[2]


def test_mathematics_is_trained_with_two_rewards_of_which_one_is_a_penalty(tmp_path: Path) -> None:
    pytest.importorskip("math_verify")
    try:
        smollm2_directory()
    except ModelPackageMissing as missing:
        pytest.skip(str(missing))
    steps = ("--set", "grpo.max_num_steps=2", "--set", "generation.max_new_tokens=32")
    done = subprocess.run(
        [sys.executable, "-c", "from runtime.cli.entry import main; main()", "train", "examples/smollm2_math.yaml",
         "--output", str(tmp_path / "run"), *steps],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), "COLUMNS": "10000"},
        capture_output=True,
        text=True,
        timeout=500,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    records = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [record["kind"] for record in records] == ["validation", "step", "step", "validation"]
    for record in records:
        assert set(record["reward_parts"]) == {"math", "finished"}
        assert -1.0 <= record["reward_parts"]["finished"] <= 0.0 <= record["reward_parts"]["math"] <= 1.0
    assert all(record["without_verdict"] == 0 for record in records if record["kind"] == "validation")
    assert "each process computes one verdict at a time" in done.stdout + done.stderr
