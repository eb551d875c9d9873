"""`evenstep eval` on what a run leaves gives what the run has printed, by set and by step."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from runtime.cli.app import app
from runtime.control.messages import Message, ValidationDone
from runtime.trace.notes import Validated
from runtime.trace.reader import open_trace
from runtime.trace.records import NoteRecord
from tests.runtime.ray.helpers import run, settings_of


def validations(output: Path) -> list[dict[str, Any]]:
    lines = (output / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [record for record in map(json.loads, lines) if record["kind"] == "validation"]


def evaluated(*arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["eval", *arguments, "--json"])
    assert result.exit_code == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)["sets"]
    return found


def test_the_final_model_and_a_checkpoint_have_the_accuracy_that_the_run_has_printed(
    model: Path, tmp_path: Path
) -> None:
    held_out = {
        "grpo.use_dynamic_sampling": "false",
        "data.held_out_fraction": "0.5",
        "data.validation_size": "100",
        "validation.every_steps": "4",
        "checkpointing.every_steps": "4",
    }
    told: list[Message] = []
    outcome = run(settings_of(held_out, steps=8), model, tmp_path, told.append)
    assert outcome.status == "completed", outcome.error
    assert outcome.model is not None
    records = validations(tmp_path)
    assert [record["step"] for record in records][:2] == [0, 4]
    assert not any("set" in record for record in records)
    for message in told:
        assert not isinstance(message, ValidationDone) or message.name == "validation"

    final = evaluated(str(outcome.model))["validation"]
    assert final["prompts"] == len(final["per_prompt"]) == 100
    assert final["accuracy"]["value"] == outcome.accuracy_after
    assert final["accuracy"]["low"] < outcome.accuracy_after < final["accuracy"]["high"]
    assert final["reward"]["value"] == pytest.approx(records[-1]["mean_reward"])
    assert final["completion_tokens"]["mean"]["value"] == pytest.approx(records[-1]["completion_length_mean"])
    assert evaluated(str(tmp_path))["validation"]["accuracy"] == final["accuracy"]
    at_four = evaluated(str(tmp_path), "--step", "4")["validation"]
    assert at_four["accuracy"]["value"] == records[1]["accuracy"]


def test_named_sets_are_measured_during_a_run_each_with_its_own_data_sampling_and_steps(
    model: Path, tmp_path: Path
) -> None:
    own = tmp_path / "own.jsonl"
    texts = ("abc", "aab", "dd", "bcda")
    own.write_text("".join(json.dumps({"prompt": f"{t:>4}>", "answer": t[::-1]}) + "\n" for t in texts))
    task = {"name": "jsonl", "path": str(own)}
    overrides = {
        "validation.every_steps": "2",
        "validation.sets.greedy": "{temperature: 0}",
        "validation.sets.several": "{rollouts_per_prompt: 4, top_p: 0.9, temperature: 0.7, every_steps: 0}",
        "validation.sets.own": json.dumps({"data": {"task": task}, "max_new_tokens": 20}),
    }
    outcome = run(settings_of(overrides, steps=4), model, tmp_path / "run")
    assert outcome.status == "completed", outcome.error
    records = validations(tmp_path / "run")
    measured = [(record["set"], record["step"]) for record in records]
    assert [measured.count((name, 0)) for name in ("greedy", "several", "own")] == [1, 1, 1]
    assert [measured.count((name, 2)) for name in ("greedy", "several", "own")] == [1, 0, 1]
    assert measured[-3:] == [("greedy", 4), ("several", 4), ("own", 4)]
    assert [record["rollouts"] for record in records[:3]] == [16, 64, 4]
    assert list(records[1]["pass_at_k"]) == ["1", "2", "4"]
    assert records[0]["pass_at_k"] == {}
    assert list(outcome.accuracy_by_set) == ["greedy", "several", "own"]
    assert outcome.accuracy_after == outcome.accuracy_by_set["greedy"]["after"]
    assert outcome.trace is not None
    notes = [record.note for record in open_trace(outcome.trace).records() if isinstance(record, NoteRecord)]
    assert [note.of_set for note in notes if isinstance(note, Validated)] == [name for name, _ in measured]

    found = evaluated(str(tmp_path / "run"))
    assert {name: one["accuracy"]["value"] for name, one in found.items()} == {
        name: pytest.approx(by["after"]) for name, by in outcome.accuracy_by_set.items()
    }
    assert found["own"]["per_prompt"][0]["where"] == f"{own}:1"
    assert list(evaluated(str(tmp_path / "run"), "--only", "own")) == ["own"]
