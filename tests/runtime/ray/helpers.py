"""A small run, a model for it that is made once, and how to drive it on the session that is there."""

import json
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

import ray

from fsm.config.setup import set_up
from runtime.checkpoints.origin import origin_of
from runtime.checkpoints.resume import ResumeRequest, find_resume_point
from runtime.control.messages import Outcome, RunPlan, Start
from runtime.launch.driving import drive
from runtime.launch.model import prepare_model
from runtime.naming import Names
from runtime.output.directory import new_run_id
from runtime.settings import Settings, load_settings
from runtime.tasks.data import load_task

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
ON_POLICY = {
    "async_rl.sampler": "{name: in_order, max_lookahead_versions: 0}",
    "grpo.use_dynamic_sampling": "false",
    "generation.engine.batching": "whole",
    "data.validation_size": "0",
}
"""With a seed a prompt: rollouts are the same as long as the weights are."""

_runs = count()


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


def run(settings: Settings, model: Path, output: Path, listener: Any = lambda message: None, **plan: Any) -> Outcome:
    output.mkdir(exist_ok=True)
    names = Names(f"test-{next(_runs)}", settings.cluster.namespace)
    start = start_of(settings, output if plan.get("resume", False) else None)
    return drive(RunPlan(settings, names, model, output, start), listener)


def kill_actor(settings: Settings, part: str, *, for_good: bool = True) -> str | None:
    """Kill the actor that has `part` in its name, and return its name; None where none is there.

    Messages come in batches, every half second: when one is heard, the run may be over, or the actor be restarting.
    """
    for name in (actor["name"] for actor in ray.util.list_named_actors(True)):
        if part in name:
            ray.kill(ray.get_actor(name, namespace=settings.cluster.namespace), no_restart=for_good)
            return str(name)
    return None


def start_of(settings: Settings, resumed: Path | None = None) -> Start:
    """Of a new run, or of one that goes on in a directory. The machine and the data are not looked at."""
    task = load_task(settings.data, "training")
    held_out = {each.name: load_task(each.data, "validation").num_prompts for each in settings.sets}
    origin = origin_of(settings, task, new_run_id())
    if resumed is None:
        return Start(task.num_prompts, held_out, origin, None)
    point = find_resume_point(resumed, ResumeRequest(), origin, set_up(settings, task.num_prompts), settings.data)
    return Start(task.num_prompts, held_out, point.origin, point)


def adds_up(balance: dict[str, int]) -> bool:
    places = ("spare", "queued", "in_flight", "ready", "selected")
    over = ("trained", "filtered", "dropped", "evicted", "aborted")
    left = sum(balance[place] for place in places)
    return balance["leftover"] == left and balance["pulled"] == left + sum(balance[place] for place in over)
