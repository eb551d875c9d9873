"""The core has no clock and no randomness: the same events, the same effects and snapshots."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsm.core import AppliedEvent, Core
from fsm.events import FailureKind
from fsm.machines.table import fire
from fsm.snapshot import restore, snapshot
from specs.scenarios.world import World
from tests.fsm.helpers import REPLACE, config_of, go_on, quick_core, running_prompts, snapshot_text, step_on

LOSSES = {"max_consecutive_dropped_prompts": 100, "max_skipped_prompts": 100, "min_step_batch_fraction": 0.01}


def a_run(sampler: str, seed: int, moves: int = 60) -> list[AppliedEvent]:
    """What a random world does to a run of `sampler`, move by move. The randomness is the world's."""
    world, heard = _begun(sampler)
    chance = random.Random(seed)
    for _ in range(moves):
        if world.over:
            break
        _one_move(world, chance, losses=sampler != "weight_fifo")
    return heard


def _begun(sampler: str) -> tuple[World, list[AppliedEvent]]:
    losses = sampler != "weight_fifo"
    heard: list[AppliedEvent] = []
    config = config_of(
        sampler,
        2,
        size=3,
        min_groups_for_streaming_train=2,
        grpo={"use_dynamic_sampling": losses, "max_num_epochs": 2},
        failure={"backoff_base_s": 1.0, **(REPLACE | LOSSES if losses else {})},
    )
    return World(config, 14, observer=heard.append, make_core=quick_core), heard


def _one_move(world: World, chance: random.Random, *, losses: bool) -> None:
    running = running_prompts(world)
    what = chance.choice(["well", "well", "commit", "commit", "fail", "tick", "trainer", "filter", "drop"])
    if what in ("commit", "filter", "fail", "drop") and running:
        prompt = chance.choice(running)
        kind = chance.choice(list(FailureKind)) if losses else FailureKind.INFRA
        if what == "commit" or (what in ("drop", "filter") and not losses):
            world.commit(prompt)
        elif what == "filter":
            world.filter(prompt)
        else:
            world.fail(prompt, kind)
    elif what == "tick":
        world.tick(chance.choice([0.5, 2.0]))
    elif what == "trainer":
        step_on(world)
    else:
        go_on(world)


def written(sampler: str, seed: int) -> str:
    """Every event of a run with its effects and the snapshot after it, as text."""
    config = _begun(sampler)[0].setup
    core = Core(config)
    lines = []
    for transition in a_run(sampler, seed):
        effects = core.apply(transition.event)
        lines.append(f"{transition.event!r} {effects!r} {snapshot_text(core)}")
    return "\n".join(lines)


SAMPLERS = ("in_order", "ready_first", "windowed", "weight_fifo")


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(SAMPLERS), st.integers(0, 10_000))
def test_the_same_events_give_the_same_effects_and_snapshots_byte_for_byte(sampler: str, seed: int) -> None:
    """Whether `transitions` machines fire the rules or the plain function that the checker uses."""
    world, _ = _begun(sampler)
    cores = [quick_core(world.setup), Core(world.setup, fire=fire)]
    for transition in a_run(sampler, seed):
        effects = [core.apply(transition.event) for core in cores]
        assert repr(effects[0]) == repr(effects[1]) == repr(transition.effects)
        assert snapshot_text(cores[0]) == snapshot_text(cores[1])
        assert cores[0].state == cores[1].state
        assert cores[0].waits_for() == cores[1].waits_for()


def test_the_seed_of_hash_changes_no_effect_and_no_snapshot() -> None:
    """In fresh interpreters, since the order of sets and of hashes is fixed at their start."""
    root = Path(__file__).parents[3]
    program = (
        "import hashlib, tests.fsm.core.test_determinism as t\n"
        "print([hashlib.sha256(t.written(s, n).encode()).hexdigest() for s in t.SAMPLERS for n in range(4)])"
    )
    found = set()
    for seed in ("0", "1", "4242"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(root)}
        run = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert run.returncode == 0, run.stderr
        found.add(run.stdout)
    assert len(found) == 1


def _unlike(first: dict[str, object], second: dict[str, object]) -> set[str]:
    return {key for key in first.keys() | second.keys() if first.get(key) != second.get(key)}


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(SAMPLERS), st.integers(0, 10_000), st.integers(0, 60))
def test_a_snapshot_survives_json_and_restore(sampler: str, seed: int, moves: int) -> None:
    """C1: nothing is lost on the way, and a restored core that has not begun is the core that was saved."""
    world, _ = _begun(sampler)
    chance = random.Random(seed)
    for _ in range(moves):
        if not world.over:
            _one_move(world, chance, losses=sampler != "weight_fifo")
    if world.over:
        return
    saved = snapshot(world.core)
    loaded = json.loads(json.dumps(saved))
    assert loaded == saved, "plain JSON: nothing becomes something else on the way"
    same = restore(world.setup, loaded, incarnation=loaded["incarnation"], make_core=quick_core)
    assert snapshot_text(same) == json.dumps(saved)
    assert same.state == world.core.state
    assert same.waits_for() == world.core.waits_for()
    assert _unlike(snapshot(restore(world.setup, loaded, make_core=quick_core)), saved) == {"incarnation"}


IMPORTS = """
import sys, time
start = time.process_time()
import importlib, pkgutil, fsm
for module in pkgutil.walk_packages(fsm.__path__, "fsm."):
    importlib.import_module(module.name)
print(time.process_time() - start)
print(*[name for name in ("torch", "ray", "asyncio", "specs", "runtime", "numpy") if name in sys.modules])
"""


@pytest.fixture(scope="module")
def imports() -> list[list[str]]:
    """Five fresh interpreters that import all of fsm: the seconds of work, and what came along that must not."""
    runs = [
        subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, timeout=60, check=True)
        for _ in range(5)
    ]
    return [run.stdout.splitlines() for run in runs]


def test_importing_fsm_loads_neither_torch_nor_ray_nor_asyncio(imports: list[list[str]]) -> None:
    assert all(lines[1] == "" for lines in imports)


def test_importing_fsm_takes_under_half_a_second(imports: list[list[str]]) -> None:
    """The best of five, in seconds of work: what else the machine is busy with is not the import's time."""
    assert min(float(lines[0]) for lines in imports) < 0.5
