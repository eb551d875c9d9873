"""What must fit together: "What setup refuses" and "Accepted, with a warning"."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsm.config.blocks import RunConfig
from fsm.config.parse import parse_config
from fsm.config.refusals import refusals, warnings
from fsm.config.sampler_loading import traits_of
from fsm.config.setup import set_up
from fsm.config.values import SamplerTraits, floor_groups, longest_rollout_s
from fsm.core import Core
from fsm.effects import StartBackoff, StartRollout
from fsm.errors import ConfigError
from fsm.events import BackoffOver, Begin, FailureKind, GroupFailed
from fsm.state import is_over

SAMPLERS = ("in_order", "ready_first", "windowed", "weight_fifo")
WINDOW = {"in_order": "max_lookahead_versions"}
POOLED = SamplerTraits("custom", True, False, False, None)
POOLLESS = POOLED._replace(uses_replacement_pool=False, closes_short_at_exhaustion=True)


def config_of(
    sampler: str = "in_order",
    window: int = 1,
    grpo: dict[str, Any] | None = None,
    failure: dict[str, Any] | None = None,
    correction: bool = True,
    global_batch: int | None = None,
    **async_rl: Any,
) -> RunConfig:
    custom = sampler == "custom"
    chosen = {"name": sampler} | (
        {"target": "a:B"} if custom else {WINDOW.get(sampler, "max_staleness_versions"): window}
    )
    document = {
        "grpo": {"num_prompts_per_step": 4, "num_generations_per_prompt": 2} | (grpo or {}),
        "async_rl": {"sampler": chosen, "rollout_failure": failure or {}} | async_rl,
        "loss_fn": {"use_importance_sampling_correction": correction},
        "policy": {"train_global_batch_size": global_batch},
    }
    return parse_config(document, check=False)


def refused(config: RunConfig, traits: SamplerTraits | None = None) -> list[str]:
    found = traits or traits_of(config)
    assert found is not None
    return refusals(config, found)


def warned(config: RunConfig, traits: SamplerTraits | None = None) -> list[str]:
    """The warnings, without the one on deadlines, which the default configuration has."""
    found = traits or traits_of(config)
    assert found is not None
    return [each for each in warnings(config, found) if "rollout_timeout_s" not in each]


def one(found: list[str]) -> str:
    assert len(found) == 1, found
    return found[0]


DYNAMIC = {"use_dynamic_sampling": True}
REPLACE = {"on_dropped_prompt": "replace"}


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("window", [0, 1, 3])
def test_the_defaults_are_accepted_under_every_sampler(sampler: str, window: int) -> None:
    assert refused(config_of(sampler, window)) == []
    assert warned(config_of(sampler, window)) == []


def test_weight_fifo_with_dynamic_sampling() -> None:
    said = one(refused(config_of("weight_fifo", grpo=DYNAMIC)))
    assert "weight_fifo" in said
    assert "Set use_dynamic_sampling to false" in said
    assert len(refused(config_of("weight_fifo", grpo=DYNAMIC, failure=REPLACE))) == 2, "and for replace"


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_replace_is_refused_under_weight_fifo_only(sampler: str) -> None:
    found = refused(config_of(sampler, failure=REPLACE))
    if sampler == "weight_fifo":
        assert "held back from training" in one(found)
        assert "Set on_dropped_prompt to shrink" in one(found)
    else:
        assert found == []


@pytest.mark.parametrize("key", ["max_consecutive_dropped_prompts", "max_skipped_prompts"])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_drop_budget_is_refused_under_weight_fifo_only(sampler: str, key: str) -> None:
    found = refused(config_of(sampler, failure={key: 2}))
    if sampler == "weight_fifo":
        assert f"{key} is 2" in one(found)
        assert f"Set {key} to 0" in one(found)
    else:
        assert found == []


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_group_of_one_has_no_advantage(sampler: str) -> None:
    said = one(refused(config_of(sampler, grpo={"num_generations_per_prompt": 1})))
    assert "grpo.num_generations_per_prompt is 1" in said
    assert "to 2 or more" in said
    assert "filter every group" not in said


@pytest.mark.parametrize("sampler", ["in_order", "ready_first", "windowed"])
def test_dynamic_sampling_with_one_generation_is_one_problem_and_not_two(sampler: str) -> None:
    grpo = DYNAMIC | {"num_generations_per_prompt": 1}
    assert "filter every group" in one(refused(config_of(sampler, grpo=grpo, failure=REPLACE)))


def test_a_custom_sampler_is_refused_for_a_group_of_one_before_it_is_loaded() -> None:
    document = {
        "grpo": {"num_generations_per_prompt": 1},
        "async_rl": {"sampler": {"name": "custom", "target": "there.is:None_"}},
    }
    with pytest.raises(ConfigError, match="num_generations_per_prompt to 2 or more"):
        parse_config(document)


def watched(action: str, stall_timeout_s: float, **failure: Any) -> RunConfig:
    watchdog = {"stall_action": action, "stall_timeout_s": stall_timeout_s}
    return config_of(failure=failure, stall_watchdog=watchdog)


@pytest.mark.parametrize(
    ("failure", "least_s"),
    [
        ({"max_infra_attempts_per_prompt": 1}, 900),
        ({}, 5 * 900 + 1 + 2 + 4 + 8),
        ({"backoff_base_s": 0.0}, 5 * 900),
        ({"max_backoff_s": 3.0}, 5 * 900 + 1 + 2 + 3 + 3),
        ({"max_infra_attempts_per_prompt": 10**9, "max_backoff_s": 2.0}, 10**9 * 902 - 3),
    ],
)
def test_a_watchdog_that_stops_the_run_waits_as_long_as_a_prompt_may_be_retried(
    failure: dict[str, Any], least_s: float
) -> None:
    given = {"rollout_timeout_s": 900} | failure
    said = one(refused(watched("abort", least_s - 1, **given)))
    assert f"Set stall_timeout_s to {least_s} or more" in said
    assert "stall_action to warn" in said
    assert refused(watched("abort", least_s, **given)) == []
    assert refused(watched("warn", 600, **given)) == [], "a warning too early stops nothing"


def test_the_bound_is_as_long_as_the_core_really_goes_on_with_a_prompt_that_hangs() -> None:
    """W1 and L7: the time until the last deadline, by the core's own backoffs."""
    config = config_of(failure={"rollout_timeout_s": 50.0, "max_infra_attempts_per_prompt": 7, "max_backoff_s": 5.0})
    core = Core(set_up(config, num_prompts=4))
    [start, *_] = [effect for effect in core.apply(Begin()) if isinstance(effect, StartRollout)]
    now_s = 0.0
    while not is_over(core.state):
        now_s += 50.0
        effects = core.apply(GroupFailed(start.attempt, FailureKind.INFRA, "its deadline"))
        for backoff in [effect for effect in effects if isinstance(effect, StartBackoff)]:
            now_s += backoff.delay_s
            [start] = core.apply(BackoffOver(backoff.attempt))
    assert now_s == longest_rollout_s(config.async_rl.rollout_failure, data_failures=0)


def test_data_failures_that_come_late_are_warned_of_where_the_watchdog_would_stop_the_run() -> None:
    most_s = 6 * 900 + 2 + 4 + 8 + 16
    for stall_timeout_s in (5 * 900 + 15, most_s - 1):
        assert f"may take {most_s} s" in one(warned_of("data failures", watched("abort", stall_timeout_s, **LATE)))
    assert warned_of("data failures", watched("abort", most_s, **LATE)) == []
    assert warned_of("data failures", watched("warn", 600, **LATE)) == []


LATE = {"rollout_timeout_s": 900, "max_infra_attempts_per_prompt": 5, "max_data_attempts_per_prompt": 2}


def warned_of(text: str, config: RunConfig) -> list[str]:
    traits = traits_of(config)
    assert traits is not None
    return [each for each in warnings(config, traits) if text in each]


def test_a_watchdog_that_stops_a_run_without_deadline_has_no_bound_and_is_warned_of() -> None:
    config = watched("abort", 1)
    assert refused(config) == []
    warning = one(warned_of("rollout_timeout_s is null", config))
    assert warning.startswith("rollouts have no deadline (async_rl.rollout_failure.rollout_timeout_s is null): ")
    assert "also where a sound rollout takes that long" in warning


@pytest.mark.parametrize(("sampler", "fits"), [("in_order", False), ("ready_first", False), ("windowed", True)])
def test_dynamic_sampling_needs_replace_where_there_is_a_pool(sampler: str, fits: bool) -> None:
    assert refused(config_of(sampler, grpo=DYNAMIC, failure=REPLACE)) == []
    found = refused(config_of(sampler, grpo=DYNAMIC))
    assert found == [] if fits else "Set on_dropped_prompt to replace" in one(found)


def test_dynamic_sampling_needs_replace_under_a_custom_sampler_with_a_pool() -> None:
    config = config_of("custom", grpo=DYNAMIC)
    assert "on_dropped_prompt" in one(refused(config, POOLED))
    assert refused(config, POOLLESS) == []


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("key", ["max_replacement_attempts", "replacement_reserve_prompts"])
def test_replace_with_nothing_to_replace_by(sampler: str, key: str) -> None:
    found = refused(config_of(sampler, failure=REPLACE | {key: 0}))
    assert f"{key} is 0" in found[0]
    assert len(found) == (2 if sampler == "weight_fifo" else 1), "weight_fifo refuses replace as well"
    assert refused(config_of(sampler, failure={key: 0})) == [], "shrink doesn't ask"


def test_streaming_minimum_above_n() -> None:
    said = one(refused(config_of(min_groups_for_streaming_train=5)))
    assert "5" in said
    assert "Set it to 4 or less" in said
    assert refused(config_of(min_groups_for_streaming_train=4)) == []


@pytest.mark.parametrize(
    ("sampler", "window", "minimum", "required"),
    [
        ("in_order", 0, None, 4),
        ("in_order", 2, 1, 12),
        ("ready_first", 1, None, 8),
        ("weight_fifo", 3, None, 16),
        ("windowed", 3, None, 4),
        ("windowed", 0, 2, 2),
    ],
)
def test_a_buffer_below_what_the_sampler_requires(
    sampler: str, window: int, minimum: int | None, required: int
) -> None:
    limits: dict[str, Any] = {"min_groups_for_streaming_train": minimum}
    said = one(refused(config_of(sampler, window, max_buffered_rollouts=required - 1, **limits)))
    assert f"max_buffered_rollouts is {required - 1}, but the {sampler} sampler needs {required} (" in said
    assert f"Set it to {required} or more" in said
    assert refused(config_of(sampler, window, max_buffered_rollouts=required, **limits)) == []


def test_a_smaller_window_is_offered_where_it_fits() -> None:
    assert "max_lookahead_versions to 1" in one(refused(config_of("in_order", 3, max_buffered_rollouts=11)))
    assert "versions to" not in one(refused(config_of("in_order", 3, max_buffered_rollouts=3)))


def test_a_custom_samplers_buffer() -> None:
    """What it requires, and never less than a chunk."""
    required = POOLED._replace(required_buffer_capacity=6)
    assert "needs 6" in one(refused(config_of("custom", max_buffered_rollouts=5), required))
    assert refused(config_of("custom", max_buffered_rollouts=6), required) == []
    assert "needs 4" in one(refused(config_of("custom", max_buffered_rollouts=3), POOLED))


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("window", [0, 1, 2])
def test_stale_groups_need_the_correction(sampler: str, window: int) -> None:
    found = refused(config_of(sampler, window, correction=False))
    if sampler == "ready_first" or window > 0:
        assert "Set use_importance_sampling_correction to true" in one(found)
    else:
        assert found == []


@pytest.mark.parametrize("on_policy", [True, False])
def test_a_custom_sampler_says_whether_it_needs_the_correction(on_policy: bool) -> None:
    traits = POOLED._replace(is_on_policy=on_policy)
    assert bool(refused(config_of("custom", correction=False), traits)) is not on_policy


def test_global_batch() -> None:
    assert refused(config_of(global_batch=8)) == []
    said = one(refused(config_of(global_batch=12)))
    assert "4 × 2 = 8" in said
    assert "grpo.num_prompts_per_step to 6" in said
    assert "grpo.num_prompts_per_step to" not in one(refused(config_of(global_batch=13)))


def test_a_custom_samplers_own_checks_wait_for_its_class() -> None:
    sampler = {"name": "custom", "target": "a:B"}
    parse_config({"grpo": DYNAMIC, "async_rl": {"sampler": sampler, "max_buffered_rollouts": 1}})
    with pytest.raises(ConfigError, match="min_groups_for_streaming_train"):
        parse_config({"async_rl": {"sampler": sampler, "min_groups_for_streaming_train": 9}})


def test_checks_can_be_left_out() -> None:
    document = {"grpo": DYNAMIC, "async_rl": {"sampler": {"name": "weight_fifo"}}}
    assert parse_config(document, check=False).grpo.use_dynamic_sampling
    with pytest.raises(ConfigError):
        parse_config({"grop": {}}, check=False)


# Accepted, with a warning


def test_replace_under_windowed() -> None:
    assert "no spare pool" in one(warned(config_of("windowed", failure=REPLACE)))
    assert warned(config_of("ready_first", failure=REPLACE)) == []
    assert "no spare pool" in one(warned(config_of("custom", failure=REPLACE), POOLLESS))


@pytest.mark.parametrize("key", ["max_consecutive_dropped_prompts", "max_skipped_prompts"])
@pytest.mark.parametrize(("sampler", "means"), [("in_order", "stops the run"), ("windowed", "left over")])
def test_a_floor_that_allows_no_loss_beside_a_drop_budget(sampler: str, key: str, means: str) -> None:
    said = one(warned(config_of(sampler, failure={key: 2, "min_step_batch_fraction": 0.76})))
    assert f"{key}: 2" in said
    assert means in said
    assert warned(config_of(sampler, failure={key: 2, "min_step_batch_fraction": 0.75})) == []
    assert warned(config_of(sampler, failure={"min_step_batch_fraction": 1.0})) == []


def test_one_group_a_step_can_lose_none() -> None:
    config = config_of(grpo={"num_prompts_per_step": 1}, failure={"max_skipped_prompts": 1})
    assert "allows one lost group" not in one(warned(config))


@given(st.integers(2, 5000))
def test_the_fraction_offered_allows_one_loss(groups: int) -> None:
    config = config_of(
        grpo={"num_prompts_per_step": groups},
        failure={"max_skipped_prompts": 1, "min_step_batch_fraction": 1.0},
    )
    offered = one(warned(config)).split("; ")[-1].split()[0]
    assert floor_groups(groups, float(offered)) == groups - 1


def test_a_reserve_of_more_than_one_batch() -> None:
    assert "3 batches" in one(warned(config_of(failure=REPLACE | {"replacement_reserve_prompts": 9})))
    assert warned(config_of(failure=REPLACE | {"replacement_reserve_prompts": 4})) == []
    assert warned(config_of(failure={"replacement_reserve_prompts": 9})) == [], "shrink holds nothing back"


@pytest.mark.parametrize(("action", "does"), [("warn", "warns"), ("abort", "stops the run")])
def test_no_deadline(action: str, does: str) -> None:
    config = config_of(stall_watchdog={"stall_action": action, "stall_timeout_s": 90})
    traits = traits_of(config)
    assert traits is not None
    said = one(warnings(config, traits))
    assert f"only the watchdog {does}, 90 s after" in said
    assert warnings(config_of(failure={"rollout_timeout_s": 60}), traits) == []


def test_a_search_limit_without_dynamic_sampling() -> None:
    limit = {"dynamic_sampling_max_gen_batches": 10}
    assert "the limit means nothing" in one(warned(config_of(grpo=limit)))
    assert warned(config_of(grpo=limit | DYNAMIC, failure=REPLACE)) == []


def test_a_run_that_nothing_ends_is_warned_of() -> None:
    assert "nothing ends the run" in one(warned(config_of(grpo={"max_num_epochs": None})))
    assert warned(config_of(grpo={"max_num_epochs": None, "max_num_steps": 5})) == []
