"""Samples of real runs: what the policy said, of every fate, in proportion, and across a resume."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from runtime.metrics.writers import SAMPLES_FILE
from runtime.samples.file import samples_of
from runtime.tasks.base import Completion
from runtime.tasks.data import load_task
from runtime.tasks.embedded import CharacterTask
from runtime.training.advantages import group_advantages
from tests.runtime.ray.helpers import metrics_of, run, settings_of


def lines_of(output: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (output / SAMPLES_FILE).read_text(encoding="ascii").splitlines()]


def test_all_rollouts_of_a_run_on_request_are_what_the_verifier_and_the_trainer_saw(
    model: Path, tmp_path: Path
) -> None:
    settings = settings_of(
        {"samples.per_step": "all", "generation.max_new_tokens": "3", "generation.temperature": "1.5"}, steps=4
    )
    outcome = run(settings, model, tmp_path / "run")
    assert outcome.status == "completed", outcome.error
    lines = lines_of(tmp_path / "run")
    task = load_task(settings.data, "training")
    assert isinstance(task, CharacterTask)
    groups: dict[int, list[dict[str, Any]]] = {}
    for line in lines:
        groups.setdefault(line["prompt"], []).append(line)
        (turn,) = line["turns"]
        verdict = task.verify(line["item"], Completion((turn["text"],), line["tokens"], "stop"), 0)
        assert (line["reward"], line["correct"]) == (verdict.reward, verdict.correct)
        assert line["prompt_text"] == settings.data.prompt_template.replace("{prompt}", task.prompt(line["item"]))
        assert (line["finish_reason"] == "length") <= (line["tokens"] == 3)
    for siblings in groups.values():
        assert [line["sibling"] for line in siblings] == list(range(8))
        rewards = np.array([[line["reward"] for line in siblings]])
        loss = settings.loss_fn
        advantages = group_advantages(
            rewards,
            normalize_rewards=loss.normalize_rewards,
            use_leave_one_out_baseline=loss.use_leave_one_out_baseline,
        )[0]
        assert [line["advantage"] for line in siblings] == advantages.tolist()
        if siblings[0]["fate"] == "filtered":
            assert set(advantages) == {0.0}
    assert {"trained", "filtered"} <= {line["fate"] for line in lines}
    assert "length" in {line["finish_reason"] for line in lines}
    for record in metrics_of(tmp_path / "run"):
        trained = {line["prompt"] for line in lines if line["step"] == record["step"] and line["fate"] == "trained"}
        assert len(trained) == record["selected"]
        shown = [line["reward"] for line in lines if line["prompt"] in trained]
        assert abs(sum(shown) / len(shown) - record["reward"]) < 1e-6


def test_a_resumed_run_appends_and_marks_the_steps_that_it_takes_again(model: Path, tmp_path: Path) -> None:
    output = tmp_path / "run"
    few = {"checkpointing.every_steps": "2", "checkpointing.keep": "4"}
    assert run(settings_of(few, steps=4), model, output).status == "completed"
    before = (output / SAMPLES_FILE).read_bytes()
    assert before
    newest = max((output / "checkpoints").iterdir(), key=lambda path: path.name)
    newest.rename(tmp_path / "lost")  # so it resumes after two steps
    (output / SAMPLES_FILE).write_bytes(before + b'{"kind": "sam')  # and its writer was killed
    assert run(settings_of(few, steps=7), model, output, resume=True).status == "completed"
    assert (output / SAMPLES_FILE).read_bytes().startswith(before)
    file = samples_of(output)
    samples = list(file.read())
    assert file.skipped == 1
    for sample in samples:
        assert sample["again"] == (sample["incarnation"] == 0 and sample["step"] >= 2)
    steps = {sample["step"] for sample in samples if sample["incarnation"] == 1}
    assert steps <= {2, 3, 4, 5, 6, 7}  # the last are those that were ready when it ended
    assert len(steps) > 2
    assert any(sample["again"] for sample in samples)


def test_a_default_run_keeps_a_few_samples_a_step_and_none_on_request(model: Path, tmp_path: Path) -> None:
    settings = settings_of({"samples.per_step": "1"}, steps=4)
    assert run(settings, model, tmp_path / "one").status == "completed"
    trained: dict[int, set[int]] = {}
    for line in lines_of(tmp_path / "one"):
        if line["fate"] == "trained":
            trained.setdefault(line["step"], set()).add(line["prompt"])
    assert trained
    assert all(len(prompts) == 1 for prompts in trained.values())
    assert run(settings_of({"samples.per_step": "0"}, steps=2), model, tmp_path / "none").status == "completed"
    assert not (tmp_path / "none" / SAMPLES_FILE).exists()
