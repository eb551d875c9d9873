"""A core that is reinstated from a snapshot is the core that was: same snapshot, same answers to what came next."""

import json
from typing import Any

import pytest

from fsm.config.parse import parse_config
from fsm.core import AppliedEvent
from fsm.events import Event
from fsm.snapshot import reinstate, snapshot
from specs.scenarios.world import World


def events_of_a_run(sampler: dict[str, Any]) -> tuple[World, list[Event], list[str]]:
    """A run of 6 steps to its end, its events, and the snapshot after each."""
    config = parse_config({"grpo": {"num_prompts_per_step": 2, "max_num_steps": 6}, "async_rl": {"sampler": sampler}})
    seen: list[AppliedEvent] = []
    world = World(config, 40, observer=seen.append)
    saved = [world.snapshot()]
    while not world.over:
        before = len(seen)
        running = sorted(world.core.book.roster.in_flight)
        if running:
            world.commit(running[-1])
        else:
            world.close()
        saved += [""] * (len(seen) - before - 1) + [world.snapshot()]
    return world, [transition.event for transition in seen], saved


@pytest.mark.parametrize("sampler", ["in_order", "ready_first", "windowed", "weight_fifo"])
def test_a_reinstated_core_goes_on_as_the_one_that_was_saved(sampler: str) -> None:
    world, events, saved = events_of_a_run({"name": sampler})
    for moment in (0, len(events) // 2, len(events) - 1):
        if not saved[moment]:
            continue
        core = reinstate(world.setup, json.loads(saved[moment]))
        assert json.dumps(snapshot(core)) == saved[moment]
        for event in events[moment + 1 :]:
            core.apply(event)
        assert json.dumps(snapshot(core)) == saved[-1]
