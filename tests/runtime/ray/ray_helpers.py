"""A small run, and a model for it that is made once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runtime.models.prepare import prepare_model
from runtime.settings import Settings, load_settings

SMALL = [
    "grpo.num_prompts_per_step=4",
    "grpo.num_generations_per_prompt=8",
    "async_rl.rollout_failure.backoff_base_s=0.1",
    "async_rl.rollout_failure.min_step_batch_fraction=0.25",
    "data.task={name: reverse, min_length: 2, max_length: 4, letters: 4}",
    "data.validation_size=16",
    "generation.max_new_tokens=8",
    "validation.every_steps=null",
]


def settings_of(overrides: Mapping[str, str], *, steps: int | None = None, prompts: int | None = None) -> Settings:
    given = [*SMALL, f"grpo.max_num_steps={'null' if steps is None else steps}"]
    if prompts is not None:
        given.append(f"data.num_prompts={prompts}")
    return load_settings(None, [*given, *(f"{key}={value}" for key, value in overrides.items())])


def made_model(directory: Path) -> Path:
    return prepare_model(settings_of({"warmup.steps": "40"}), directory)


def metrics_of(output: Path) -> list[dict[str, Any]]:
    lines = (output / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [record for record in map(json.loads, lines) if record["kind"] == "step"]
