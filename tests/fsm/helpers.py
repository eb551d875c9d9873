"""What the tests of the core share: short ways to a configuration and a world, and one event after another."""

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import pytest

from fsm.config.blocks import RunConfig
from fsm.config.parse import parse_config
from fsm.config.setup import Setup
from fsm.core import AppliedEvent, Core
from fsm.errors import IllegalEvent
from fsm.events import Event
from fsm.machines.catalog import TABLES
from fsm.machines.drive import Drive
from fsm.machines.trainer import TrainerState
from fsm.snapshot import snapshot
from specs.scenarios.world import World

SAMPLERS = ("in_order", "ready_first", "windowed", "weight_fifo")
WINDOW_KEY = {"in_order": "max_lookahead_versions"}
REPLACE = {"on_dropped_prompt": "replace", "max_replacement_attempts": 1, "replacement_reserve_prompts": 1}


DRIVE = Drive(TABLES)
"""One set of `transitions` machines for all cores of a test: they keep nothing from one event to the next."""


def quick_core(setup: Setup, observer: Callable[[AppliedEvent], None] | None = None) -> Core:
    """A core as production has it, but made without building its machines again."""
    return Core(setup, observer=observer, fire=DRIVE)


def examples(default: int) -> int:
    """How many examples a property test tries: EVENSTEP_EXAMPLES times as many, where that is set."""
    return default * int(os.environ.get("EVENSTEP_EXAMPLES", "1"))


def config_of(
    sampler: str = "in_order",
    window: int = 1,
    *,
    size: int = 2,
    grpo: dict[str, Any] | None = None,
    failure: dict[str, Any] | None = None,
    options: dict[str, Any] | None = None,
    check: bool = True,
    **async_rl: Any,
) -> RunConfig:
    """A configuration. `sampler` is a built-in name, or the target of a custom one that is made with `options`."""
    chosen: dict[str, Any] = (
        {"name": "custom", "target": sampler, **(options or {})}
        if ":" in sampler
        else {"name": sampler, WINDOW_KEY.get(sampler, "max_staleness_versions"): window}
    )
    if sampler == "windowed" and "sample_freshest_first" in async_rl:
        chosen["sample_freshest_first"] = async_rl.pop("sample_freshest_first")
    document = {
        "grpo": {"num_prompts_per_step": size, "num_generations_per_prompt": 2} | (grpo or {}),
        "async_rl": {"sampler": chosen, "rollout_failure": {"backoff_base_s": 0.0} | (failure or {})} | async_rl,
    }
    return parse_config(document, check=check)


def world_of(
    sampler: str = "in_order", window: int = 1, *, prompts: int = 8, check: bool = True, **given: Any
) -> World:
    """A world over `prompts` prompts; the rest as in `config_of`."""
    return World(config_of(sampler, window, check=check, **given), prompts, check_setup=check)


def snapshot_text(core: Core) -> str:
    """The snapshot, byte for byte."""
    return json.dumps(snapshot(core))


def all_of(core: Core) -> tuple[Any, ...]:
    """Everything that a refused event could change."""
    return (snapshot_text(core), repr(core.state), core.error, tuple(core.notices), core.waits_for())


def refused(core: Core, event: Event, kind: type[IllegalEvent] = IllegalEvent) -> str:
    """Feed an event that must be refused and change nothing. Returns why it is refused."""
    before = all_of(core)
    with pytest.raises(IllegalEvent) as why:
        core.apply(event)
    assert why.type is kind, f"{event} raised {why.type.__name__}: {why.value}"
    assert all_of(core) == before, f"{event} was refused, and yet changed something"
    return str(why.value)


def running_prompts(world: World) -> list[int]:
    """Prompts whose attempt runs, in order of dispatch."""
    return [group.prompt for group in world.core.book.roster.in_order() if group.group_class.start_weight >= 0]


def step_on(world: World) -> bool:
    """The trainer reports whatever it is busy with. False where it is not busy."""
    match world.core.state.trainer.status:
        case TrainerState.TRAINING:
            world.chunk_trained()
        case TrainerState.FINISHING:
            world.step_finished()
        case TrainerState.SYNCING:
            world.weights_synced()
        case TrainerState.ASSEMBLING:
            return False
    return True


def is_failing() -> bool:
    """An exception is on its way: a teardown that finds more would hide it."""
    return sys.exc_info()[0] is not None


def go_on(world: World, *, newest: bool = False, trainer_first: bool = False) -> None:
    """The next thing that goes well: a rollout finishes, else the trainer reports, else time passes."""
    if trainer_first and step_on(world):
        return
    running = running_prompts(world)
    if running:
        world.commit(running[-1 if newest else 0])
    elif not step_on(world):
        if not world.core.book.roster.backing_off:
            raise AssertionError(f"nothing can happen any more: {world.core.waits_for()}")
        world.tick(30.0)


def run_to_the_end(world: World, events: int = 100_000) -> None:
    """All goes well until the run is over."""
    for _ in range(events):
        if world.over:
            return
        go_on(world)
    raise AssertionError(f"the run does not end: {world.core.waits_for()}")
