"""Checkpoints of a world, with a trainer's files that need no torch."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from runtime.checkpoints.checkpoint import TRAINER, commit, stage
from runtime.checkpoints.origin import Origin
from runtime.checkpoints.retention import Retention, retire
from runtime.files import sha256_of
from specs.scenarios.world import World
from tests.runtime.bookkeeping import config_of, group_of, prompts_with_data, random_moves, world_of

_DATA = {"data.seed": 0, "data.task.options": {"a": [1]}, "the hash of the prompts": "54f0142466811864"}
ORIGIN = Origin("0123456789abcdef", _DATA, {"policy.model_name": "tiny"})
SEED_OF_STEP = {0: 3, 1: 4, 2: 5}


def world_at(step: int) -> World:
    """A run with that many steps done, and groups ready or selected."""
    world = world_of(config_of("ready_first", window=2), num_prompts=60)
    for seed in range(1000):
        random_moves(world, seed, 1)
        if world.core.state.trainer.version == step and len(prompts_with_data(world)) >= 2:
            return world
    raise AssertionError(f"no such moment at step {step}")


def write_trainer(version: int) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(random.Random(version).randbytes(500))
        (folder / "trainer.json").write_text(json.dumps({"version": version}))

    return write


def save(directory: Path, *, write_trainer: Callable[[Path], object], keep: int, **given: Any) -> Path:
    """Write a checkpoint as a trainer does; `write_trainer` gets a folder that does not exist yet."""
    staged = stage(directory)
    try:
        write_trainer(staged / TRAINER)
        path = commit(staged, **given)
    except BaseException:
        shutil.rmtree(staged, ignore_errors=True)
        raise
    assert retire(directory, Retention(keep)) is None
    return path


def save_world(
    directory: Path,
    world: World,
    *,
    keep: int = 10,
    version: int | None = None,
    origin: Origin = ORIGIN,
    trainer: Callable[[Path], object] | None = None,
) -> Path:
    """`trainer` writes its folder; None: files that need no torch."""
    step = world.core.state.trainer.version
    return save(
        directory,
        step=step,
        control=json.loads(world.snapshot()),
        groups={prompt: group_of(prompt, seed=step) for prompt in prompts_with_data(world)},
        write_trainer=trainer or write_trainer(step if version is None else version),
        task_state={"position": 7, "seed": 1},
        random_states={"sampling": [1, 2, [3, None]]},
        origin=origin,
        keep=keep,
    )


def rewrite_manifest(path: Path) -> None:
    """As if the files that are there had been written."""
    manifest = json.loads((path / "manifest.json").read_text())
    for name, entry in manifest["files"].items():
        entry.update(bytes=(path / name).stat().st_size, sha256=sha256_of(path / name))
    (path / "manifest.json").write_text(json.dumps(manifest))
