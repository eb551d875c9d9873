"""Every state of small runs, every answer of the world at any time: nothing hangs, miscounts or trains twice."""

from __future__ import annotations

from itertools import product

import pytest

from fsm.config import parse_config
from fsm.laws import Laws, laws_of
from fsm.setup import set_up
from fsm.table import fire
from specs.checker import HOLDS, VIOLATED, explore
from specs.model import World
from specs.properties import EDGES, staleness

WINDOW_KEY = {"in_order": "max_lookahead_versions"}
BUILTIN = ("in_order", "ready_first", "windowed", "weight_fifo")


def laws(sampler: str, size: int, window: int, minimum: int, pool: str, num_prompts: int, **overrides) -> Laws:
    """The laws of a small run; dynamic sampling and drops wherever the sampler may have them."""
    fifo = sampler == "weight_fifo"
    document = {
        "grpo": {
            "num_prompts_per_step": size,
            "num_generations_per_prompt": 2,
            "use_dynamic_sampling": not fifo and (pool == "replace" or sampler == "windowed"),
        },
        "async_rl": {
            "sampler": {"name": sampler, WINDOW_KEY.get(sampler, "max_staleness_versions"): window},
            "min_groups_for_streaming_train": minimum,
            "rollout_failure": {
                "on_dropped_prompt": pool,
                "max_consecutive_dropped_prompts": 0 if fifo else 1,
                "min_step_batch_fraction": 0.5,
            },
        },
    }
    for path, value in overrides.items():
        block, key = path.split("__")
        document[block][key] = value
    check = "async_rl__max_buffered_rollouts" not in overrides
    setup = set_up(parse_config(document, check=check), num_prompts, check=check)
    return laws_of(setup.limits, setup.sampler, setup.sampler_name, fire)


SCOPES = [
    (sampler, size, window, minimum, pool)
    for sampler, size, window, pool in product(BUILTIN, (1, 2), (0, 1), ("shrink", "replace"))
    for minimum in range(1, size + 1)
]


@pytest.mark.parametrize(("sampler", "size", "window", "minimum", "pool"), SCOPES)
def test_no_answer_of_the_world_at_any_time_breaks_a_property(sampler, size, window, minimum, pool):
    run = laws(sampler, size, window, minimum, pool, num_prompts=size * 3 + 1)
    edges = EDGES if sampler == "ready_first" else (*EDGES, staleness(window))

    result = explore(run, World(backs_off=size == 1), edges=edges, max_states=60_000)

    assert (result.verdict, result.broken) == (HOLDS, None), result.counterexample


def test_a_buffer_below_the_streaming_minimum_is_found_to_deadlock_at_once():
    run = laws("windowed", 2, 1, 2, "shrink", 4, async_rl__max_buffered_rollouts=1)

    result = explore(run, World(fails=False, crashes=False))

    assert (result.verdict, result.broken) == (VIOLATED, "deadlock")
    assert [answer.name for answer in result.counterexample] == ["commit"]


def test_a_bound_on_states_that_is_hit_is_never_a_pass():
    run = laws("ready_first", 2, 1, 1, "replace", 7)

    assert explore(run, World(), max_states=50).verdict == "undetermined"
