"""What is told about a configuration that doesn't load: the key, what was given, what is allowed."""

from typing import Any, Literal

import pytest
import yaml
from pydantic import Field

from fsm.config.blocks import CoreLossConfig, RunConfig
from fsm.config.parse import parse_config
from fsm.config.strict import Strict
from fsm.config.wording import given_as
from fsm.errors import ConfigError


def message(text: str) -> str:
    with pytest.raises(ConfigError) as refused:
        parse_config(yaml.safe_load(text))
    return str(refused.value)


class TestWhatIsTold:
    def test_all_problems_at_once_in_one_error(self) -> None:
        said = message(
            "{gropo: {}, grpo: {num_prompts_per_step: 0}, async_rl: {rollout_failure: {backoff_base_s: -1}}}"
        )
        assert said.startswith("configuration refused, 3 problems:\n  - ")
        for part in (
            "gropo is not a known key; did you mean grpo?",
            "grpo.num_prompts_per_step is 0; allowed: a whole number of at least 1",
            "async_rl.rollout_failure.backoff_base_s is -1; allowed: a number of at least 0",
        ):
            assert part in said

    def test_all_refusals_at_once_in_one_error(self) -> None:
        said = message(
            "{grpo: {num_prompts_per_step: 4}, policy: {train_global_batch_size: 1},"
            " async_rl: {min_groups_for_streaming_train: 5, max_buffered_rollouts: 2}}"
        )
        assert "3 problems" in said

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            (
                "async_rl: {sampler: {name: ready_first, max_stalenes_versions: 3}}",
                "async_rl.sampler.max_stalenes_versions is not a known key of the ready_first sampler; "
                "did you mean max_staleness_versions?",
            ),
            (
                "grpo: {zzz: 1}",
                "grpo.zzz is not a known key of grpo; the known keys are num_prompts_per_step, "
                "num_generations_per_prompt, max_num_steps, max_num_epochs, use_dynamic_sampling, "
                "dynamic_sampling_max_gen_batches",
            ),
            (
                "max_num_steps: 3",
                "max_num_steps is not a known key; it is a key of grpo; "
                "the known keys are grpo, async_rl, loss_fn, policy",
            ),
            (
                "async_rl: {sampler: {name: in_order, sample_freshest_first: true}}",
                "async_rl.sampler.sample_freshest_first is not a known key of the in_order sampler; it is a "
                "key of "
                "the windowed sampler; the known keys are name, max_lookahead_versions",
            ),
            ("grpo: {a.b: 1}", "grpo.a.b is not a known key of grpo; the known"),
            ("grpo: {on: 1}", "grpo.true is not a known key of grpo; the known"),
            ("3: 1", "3 is not a known key; the known keys are grpo"),
            (
                "async_rl: {sampler: {name: windowd}}",
                'async_rl.sampler.name is the text "windowd"; allowed: in_order, ready_first, windowed, '
                "weight_fifo or custom; did you mean windowed?",
            ),
            (
                "grpo: {max_tokens: 3}",
                "grpo.max_tokens is not a known key of grpo; the known keys are num_prompts_",
            ),
            (
                "async_rl: {sampler: {name: [windowed]}}",
                "async_rl.sampler.name is a list; allowed: in_order,",
            ),
            ("async_rl: {sampler: {}}", "async_rl.sampler.name is missing; allowed: in_order,"),
            (
                "async_rl: {sampler: {name: custom}}",
                "async_rl.sampler.target is missing; allowed: text (the sampler",
            ),
            (
                "async_rl: {sampler: {name: custom, target: 'a:B', x: 1, options: {x: 2}}}",
                "async_rl.sampler: x is given twice",
            ),
            (
                "async_rl: {sampler: {name: custom, target: 'a:B', options: 2}}",
                "options is 2; allowed: a mapping",
            ),
            ("async_rl: {sampler: {name: custom, target: 'a:B', 3: 2}}", "has the key 3; allowed: text"),
            ("grpo: 4", "grpo is 4; allowed: a mapping of its keys"),
            (
                "loss_fn: null",
                "loss_fn is null; allowed: a mapping of its keys (leave the key out for its defaults)",
            ),
            ("grpo: {max_num_steps: 2026-01-01}", "(date); allowed: a whole number of at least 1 or null"),
            ("[grpo]", "the configuration is a list; allowed: a mapping of grpo, async_rl, loss_fn, policy"),
            ("grpo", 'the configuration is the text "grpo"'),
        ],
    )
    def test_key_value_and_what_is_allowed(self, text: str, expected: str) -> None:
        assert expected in message(text)

    def test_a_long_text_is_cut(self) -> None:
        assert len(given_as("x" * 1000)) < 80

    @pytest.mark.parametrize("key", ["num_prompts_per_step", "num_generations_per_prompt", "max_num_steps"])
    @pytest.mark.parametrize("value", ['"8"', "true", "8.0", "[8]", "{}", "1.5"])
    def test_nothing_becomes_a_whole_number(self, key: str, value: str) -> None:
        assert f"grpo.{key} is " in message(f"grpo: {{{key}: {value}}}")

    @pytest.mark.parametrize("value", ['"true"', "1", "0", "null", "1.0"])
    def test_nothing_becomes_true_or_false(self, value: str) -> None:
        assert "allowed: true or false" in message(f"grpo: {{use_dynamic_sampling: {value}}}")

    @pytest.mark.parametrize("value", ["true", '"1.0"', ".nan", ".inf", "-.inf", "0", "0.0", "1.0000001", "-0.5"])
    def test_a_fraction_is_above_zero_and_at_most_one(self, value: str) -> None:
        said = message(f"async_rl: {{rollout_failure: {{min_step_batch_fraction: {value}}}}}")
        assert "allowed: a number above 0 and at most 1" in said

    @pytest.mark.parametrize(
        ("block", "key", "least"),
        [
            ("grpo", "max_num_epochs", 1),
            ("grpo", "dynamic_sampling_max_gen_batches", 1),
            ("async_rl", "min_groups_for_streaming_train", 1),
            ("async_rl", "max_inflight_prompts", 1),
            ("async_rl.rollout_failure", "max_replacement_attempts", 0),
            ("async_rl.rollout_failure", "replacement_reserve_prompts", 0),
            ("async_rl.rollout_failure", "max_infra_attempts_per_prompt", 1),
            ("async_rl.rollout_failure", "max_data_attempts_per_prompt", 1),
            ("async_rl.rollout_failure", "max_consecutive_dropped_prompts", 0),
            ("async_rl.rollout_failure", "max_skipped_prompts", 0),
            ("async_rl.rollout_failure", "backoff_base_s", 0),
            ("async_rl.rollout_failure", "max_backoff_s", 0),
            ("async_rl.stall_watchdog", "interval_s", 0),
        ],
    )
    def test_the_least_of_each_count(self, block: str, key: str, least: int) -> None:
        def document(value: int) -> dict[str, Any]:
            inner: dict[str, Any] = {key: value}
            for name in reversed(block.split(".")):
                inner = {name: inner}
            return inner

        parse_config(document(least))
        with pytest.raises(ConfigError, match=rf"{block}\.{key} is {least - 1}; allowed: .* of at least {least}"):
            parse_config(document(least - 1))

    @pytest.mark.parametrize("key", ["rollout_failure: {rollout_timeout_s", "stall_watchdog: {stall_timeout_s"])
    def test_a_deadline_is_above_zero(self, key: str) -> None:
        assert "allowed: a number above 0" in message(f"async_rl: {{{key}: 0}}}}")


class _Shaping(Strict):
    gain: float | str = Field(default=1.0, description="Any of two kinds.")
    weights: dict[str, float] = Field(default_factory=dict, description="By name.")


class _Reward(Strict):
    kind: Literal["exact", "close"] = Field(default="exact", description="Which.")
    shaping: list[_Shaping] = Field(default_factory=list, description="In order.")


class _Loss(CoreLossConfig):
    clip: float = Field(default=0.2, gt=0, description="The clip.")


class _FullConfig(RunConfig):
    loss_fn: _Loss = Field(default=_Loss(), description="The loss.")
    reward: _Reward = Field(default=_Reward(), description="The reward.")


class TestBlocksOfTheRuntime:
    """The runtime's own blocks are read, checked and told about as those of the core are."""

    def test_the_given_model_is_returned(self) -> None:
        config = parse_config({"loss_fn": {"clip": 0.3}, "reward": {"kind": "close"}}, model=_FullConfig)
        assert config.loss_fn.clip == 0.3
        assert config.reward.kind == "close"

    def test_refusals_read_the_extended_blocks(self) -> None:
        with pytest.raises(ConfigError, match="use_importance_sampling_correction"):
            parse_config({"loss_fn": {"use_importance_sampling_correction": False}}, model=_FullConfig)

    def test_places_in_lists_mappings_and_unions(self) -> None:
        shaping = [{}, {"gain": [1], "weights": {"a": "x"}, "weigths": 1}]
        with pytest.raises(ConfigError) as refused:
            parse_config({"reward": {"shaping": shaping, "clip": 1}}, model=_FullConfig)
        said = str(refused.value)
        assert "reward.shaping[1].gain is a list; allowed: a number or text" in said
        assert 'reward.shaping[1].weights.a is the text "x"; allowed: a number' in said
        assert "reward.shaping[1].weigths is not a known key of reward.shaping[1]; did you mean weights?" in said
        assert "reward.clip is not a known key of reward; it is a key of loss_fn" in said
        assert "4 problems" in said
