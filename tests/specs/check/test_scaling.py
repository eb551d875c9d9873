"""Scaling keeps how numbers stand to each other, and says what it changed."""

from pathlib import Path

import pytest

from fsm.config.parse import parse_config
from fsm.config.sampler_loading import build_sampler, traits
from fsm.config.setup import set_up
from fsm.config.values import floor_groups, required_buffer, resolved_buffer
from runtime.settings import load_settings
from specs.check.cases import ScopeName, cases_of
from specs.check.scaling import Scope, scale

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.yaml"))
SMALL = Scope(size=3, window=1, steps=3, attempts=2, epochs=2, skipped=1, search=1)


def config(sampler="in_order", window=1, grpo=None, failure=None, **async_rl):
    key = "max_lookahead_versions" if sampler == "in_order" else "max_staleness_versions"
    return parse_config(
        {
            "grpo": {"num_prompts_per_step": 8, "num_generations_per_prompt": 8, **(grpo or {})},
            "async_rl": {
                "sampler": {"name": sampler, key: window},
                "rollout_failure": failure or {},
                **async_rl,
            },
        },
        check=False,
    )


def scaled(*args, scope=SMALL, num_prompts=None, **kwargs):
    return scale(config(*args, **kwargs), scope, num_prompts)


def buffers(scaled_config):
    known = traits(scaled_config, build_sampler(scaled_config))
    return resolved_buffer(scaled_config, known), required_buffer(scaled_config, known)


@pytest.mark.parametrize(("given", "checked"), [(None, None), (1, 1), (3, 2), (7, 2), (8, 3), (9, 4)])
def test_a_streaming_minimum_stands_to_n_as_it_did(given, checked):
    assert scaled(min_groups_for_streaming_train=given).config.async_rl.min_groups_for_streaming_train == checked


@pytest.mark.parametrize(("given", "relation"), [(15, "below"), (16, "equal"), (17, "above"), (40, "above")])
def test_a_buffer_stands_to_what_is_required_as_it_did(given, relation):
    held, required = buffers(scaled(max_buffered_rollouts=given).config)

    assert ("below" if held < required else "equal" if held == required else "above") == relation
    assert (held - required >= 3) == (given - 16 >= 8), "whole batches more stay whole batches more"


@pytest.mark.parametrize("window", [0, 1])
def test_a_buffer_that_holds_a_step_goes_on_holding_one_though_it_is_too_small(window):
    small = scaled(window=1, max_buffered_rollouts=8, scope=SMALL._replace(window=window))
    held, required = buffers(small.config)

    assert held == 3
    assert (held < required) == (window == 1)


@pytest.mark.parametrize("size", [2, 3])
def test_a_buffer_that_cannot_hold_a_step_stays_one(size):
    small = scaled(
        "windowed", min_groups_for_streaming_train=4, max_buffered_rollouts=6, scope=SMALL._replace(size=size)
    )
    held, required = buffers(small.config)

    assert required <= held < size


def test_what_is_null_stays_null():
    limits = scaled("windowed").config.async_rl

    assert (limits.max_buffered_rollouts, limits.max_inflight_prompts, limits.min_groups_for_streaming_train) == (
        None, None, None
    )  # fmt: skip


@pytest.mark.parametrize(("given", "checked"), [(1, 1), (4, 2), (8, 3), (12, 4), (16, 6), (99, 6)])
def test_a_limit_in_flight_stands_to_n_and_to_the_buffer_as_it_did(given, checked):
    assert scaled(max_inflight_prompts=given).config.async_rl.max_inflight_prompts == checked


@pytest.mark.parametrize(
    ("fraction", "floor"), [(1.0, 3), (0.9, 3), (0.8, 2), (0.5, 2), (0.126, 2), (0.125, 1), (0.01, 1)]
)
def test_a_floor_allows_no_loss_some_losses_or_all_but_one_as_it_did(fraction, floor):
    checked = scaled(failure={"min_step_batch_fraction": fraction}).config.async_rl.rollout_failure

    assert floor_groups(3, checked.min_step_batch_fraction) == floor


@pytest.mark.parametrize(("reserve", "checked"), [(1, 1), (5, 2), (8, 3), (20, 4)])
def test_a_reserve_stands_to_n_as_it_did(reserve, checked):
    failure = {"on_dropped_prompt": "replace", "replacement_reserve_prompts": reserve}

    assert scaled(failure=failure).config.async_rl.rollout_failure.replacement_reserve_prompts == checked


@pytest.mark.parametrize(("given", "checked"), [(0, 0), (1, 1), (16, 1)])
def test_budgets_of_none_stay_none_and_others_become_one(given, checked):
    failure = {"max_consecutive_dropped_prompts": given, "max_skipped_prompts": given}
    budgets = scaled(failure=failure).config.async_rl.rollout_failure

    assert (budgets.max_consecutive_dropped_prompts, budgets.max_skipped_prompts) == (checked, checked)


def test_a_limit_of_steps_stays_one_that_is_reached_before_the_data_is_used_up():
    small = scaled(grpo={"max_num_steps": 400})

    assert small.config.grpo.max_num_steps == 3
    assert small.num_prompts == (1 + 3) * 3


def test_there_is_data_for_the_window_and_three_steps():
    assert scaled("ready_first", window=1).num_prompts == 12
    assert scaled("ready_first", window=7).num_prompts == 12, "a window of 7 is checked at 1"


def test_a_trailing_batch_is_there_where_the_sampler_takes_one_unless_the_data_is_known_to_have_none():
    assert scaled("windowed").num_prompts % 3 == 1
    assert scaled("windowed", num_prompts=80).num_prompts % 3 == 0
    assert scaled("in_order").num_prompts % 3 == 0
    assert scaled("in_order", num_prompts=81).num_prompts % 3 == 1


def test_what_was_changed_is_said_and_what_was_not_is_as_given():
    kept = {each.key: each for each in scaled("windowed", window=4).kept}

    assert (kept["async_rl.sampler.max_staleness_versions"].given, kept["grpo.num_prompts_per_step"].given) == (4, 8)
    assert "async_rl.min_groups_for_streaming_train" not in kept


def test_a_configuration_that_is_small_already_is_checked_as_it_is():
    small = scale(config(grpo={"num_prompts_per_step": 2, "num_generations_per_prompt": 2}), SMALL)

    assert small.kept == ()


@pytest.mark.parametrize("scope", list(ScopeName))
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_what_setup_accepts_it_accepts_at_every_scope(path, scope):
    for case in cases_of(load_settings(path), scope):
        assert set_up(case.scaled.config, case.scaled.num_prompts).limits.size <= 3
