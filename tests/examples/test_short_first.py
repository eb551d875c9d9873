"""The example of a custom sampler, driven through the real core."""

from typing import Any

import pytest

from examples.short_first import LONG, SHORT, ShortFirst
from fsm.config.blocks import RunConfig
from fsm.config.parse import parse_config
from fsm.errors import ConfigError
from fsm.events import GroupRecord
from fsm.samplers.protocol import DropAccountingSampler, PromptGroupSampler
from specs.scenarios.world import World

TARGET = "examples.short_first:ShortFirst"


def config(**options: Any) -> RunConfig:
    return parse_config(
        {
            "grpo": {"num_prompts_per_step": 2, "num_generations_per_prompt": 2},
            "async_rl": {"sampler": {"name": "custom", "target": TARGET, "short_tokens": 100, **options}},
        }
    )


def finish(world: World, prompt: int, tokens: int) -> None:
    world.commit(prompt, GroupRecord(prompt, completion_tokens=tokens, reward_mean=0.5, reward_std=0.5))


def training(world: World) -> list[int]:
    return list(world.core.book.roster.chunk)


def test_it_fits_both_protocols() -> None:
    sampler = ShortFirst()
    assert isinstance(sampler, PromptGroupSampler)
    assert isinstance(sampler, DropAccountingSampler)


@pytest.mark.parametrize(("tokens", "label"), [(0, SHORT), (100, SHORT), (101, LONG)])
def test_a_group_is_short_up_to_the_threshold(tokens: int, label: int) -> None:
    record = GroupRecord(prompt=0, completion_tokens=tokens, reward_mean=0.5, reward_std=0.5)
    assert ShortFirst(short_tokens=100).label(record) == label


def test_short_groups_are_taken_before_long_ones_that_were_dispatched_earlier() -> None:
    world = World(config(max_staleness_versions=2), num_prompts=6)
    finish(world, 5, tokens=10)
    finish(world, 3, tokens=500)
    assert training(world) == [5, 3]
    finish(world, 0, tokens=400)
    finish(world, 4, tokens=100)
    finish(world, 1, tokens=20)
    world.close()
    assert training(world) == [1, 4]
    finish(world, 2, tokens=30)
    world.close()
    assert training(world) == [2, 0]  # both at the edge of the window; 2 is short
    world.close()
    assert world.status == "completed"


def test_groups_of_one_label_are_taken_in_order_of_dispatch() -> None:
    world = World(config(), num_prompts=4)
    for prompt in (3, 1):
        finish(world, prompt, tokens=500)
    assert training(world) == [1, 3]


def test_a_long_group_at_the_edge_of_the_window_goes_first() -> None:
    world = World(config(max_staleness_versions=1), num_prompts=6)
    finish(world, 1, tokens=10)
    finish(world, 2, tokens=10)
    finish(world, 0, tokens=900)
    world.close()
    assert world.core.state.trainer.version == 1
    finish(world, 5, tokens=10)
    assert training(world) == [0, 5]


def test_it_asks_for_room_for_every_batch_that_may_be_admitted() -> None:
    assert ShortFirst(max_staleness_versions=2).required_buffer_capacity(3) == 9
    assert World(config(max_staleness_versions=2), num_prompts=12).core.limits.max_buffered == 6


@pytest.mark.parametrize(("window", "on_policy"), [(0, True), (1, False)])
def test_it_is_on_policy_without_a_window(window: int, on_policy: bool) -> None:
    assert ShortFirst(window).is_on_policy is on_policy


def test_an_option_that_it_does_not_have_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="short_token"):
        World(config(short_token=3), num_prompts=4)
