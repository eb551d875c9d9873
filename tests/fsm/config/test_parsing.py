"""The run configuration: what loads, what is refused at setup, and what null comes to."""

import pickle
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from fsm.config.blocks import (
    CustomConfig,
    GrpoConfig,
    InOrderConfig,
    ReadyFirstConfig,
    RunConfig,
    WeightFifoConfig,
    WindowedConfig,
)
from fsm.config.parse import parse_config
from fsm.config.sampler_loading import traits_of
from fsm.config.strict import Strict
from fsm.config.values import (
    SamplerTraits,
    floor_groups,
    resolved_buffer,
    resolved_inflight,
    resolved_streaming_minimum,
)
from fsm.errors import ConfigError

SETUP_SCENARIOS = sorted((Path(__file__).parents[2] / "scenarios" / "setup").glob("*.yaml"))

SECTION_6 = """
grpo:
  num_prompts_per_step: 8
  num_generations_per_prompt: 8
  max_num_steps: null
  max_num_epochs: 1
  use_dynamic_sampling: false
  dynamic_sampling_max_gen_batches: null   # L8
async_rl:
  sampler: {name: in_order, max_lookahead_versions: 1}
  min_groups_for_streaming_train: null     # null: N
  max_inflight_prompts: null               # null: max_buffered_rollouts
  max_buffered_rollouts: null              # null: what the sampler requires (windowed: N × (window + 2))
  rollout_failure:
    on_dropped_prompt: shrink              # or replace
    max_replacement_attempts: 1
    replacement_reserve_prompts: 1
    min_step_batch_fraction: 0.9
    max_infra_attempts_per_prompt: 5
    max_data_attempts_per_prompt: 2
    max_consecutive_dropped_prompts: 0
    max_skipped_prompts: 0
    backoff_base_s: 1.0
    max_backoff_s: 30.0
    rollout_timeout_s: null
  stall_watchdog: {interval_s: 30, stall_timeout_s: 600, stall_action: warn, on_deadlock: stop}   # or abort; or warn
"""

FROM_AN_EXISTING_RUN = """
grpo: {use_dynamic_sampling: true, num_generations_per_prompt: 16, num_prompts_per_step: 8}
async_rl:
  sampler: {name: ready_first, max_staleness_versions: 1}
  rollout_failure:
    {on_dropped_prompt: replace, max_replacement_attempts: 16, replacement_reserve_prompts: 16,
     min_step_batch_fraction: 1.0}
"""


def load(text: str) -> RunConfig:
    return parse_config(yaml.safe_load(text))


def values(config: RunConfig) -> tuple[int, int, int]:
    """Streaming minimum, in flight, buffer."""
    traits = traits_of(config)
    assert traits is not None
    return (
        resolved_streaming_minimum(config),
        resolved_inflight(config, traits),
        resolved_buffer(config, traits),
    )


class TestWhatLoads:
    def test_section_6_is_the_defaults(self) -> None:
        assert load(SECTION_6) == RunConfig() == load("") == load("{}")

    def test_a_run_of_today_carries_over(self) -> None:
        config = load(FROM_AN_EXISTING_RUN)
        assert config.async_rl.sampler == ReadyFirstConfig(max_staleness_versions=1)
        assert config.async_rl.rollout_failure.max_replacement_attempts == 16
        assert values(config) == (8, 16, 16)

    @pytest.mark.parametrize(
        ("sampler", "expected"),
        [
            ("{name: in_order}", InOrderConfig(max_lookahead_versions=1)),
            ("{name: ready_first}", ReadyFirstConfig(max_staleness_versions=1)),
            ("{name: windowed}", WindowedConfig(max_staleness_versions=1, sample_freshest_first=False)),
            ("{name: weight_fifo}", WeightFifoConfig(max_staleness_versions=1)),
        ],
    )
    def test_defaults_of_each_sampler(self, sampler: str, expected: Strict) -> None:
        config = load(f"async_rl: {{sampler: {sampler}}}")
        assert config.async_rl.sampler == expected
        assert not isinstance(config.async_rl.sampler, CustomConfig)

    def test_custom_hands_its_other_keys_to_the_constructor(self) -> None:
        document = yaml.safe_load("async_rl: {sampler: {name: custom, target: 'a.b:C', keep: [1], at_most: 3}}")
        sampler = parse_config(document).async_rl.sampler
        assert isinstance(sampler, CustomConfig)
        assert (sampler.target, sampler.options) == ("a.b:C", {"keep": [1], "at_most": 3})
        document["async_rl"]["sampler"]["keep"].append(2)
        assert sampler.options == {"keep": [1], "at_most": 3}

    @pytest.mark.parametrize(
        "text", [SECTION_6, FROM_AN_EXISTING_RUN, "async_rl: {sampler: {name: custom, target: 'a:B', x: 1}}"]
    )
    def test_what_is_dumped_loads_again(self, text: str) -> None:
        config = load(text)
        assert parse_config(config.model_dump()) == config
        assert parse_config(config.model_dump(mode="json")) == config
        assert pickle.loads(pickle.dumps(config)) == config

    def test_a_whole_number_is_a_number(self) -> None:
        config = load("async_rl: {rollout_failure: {rollout_timeout_s: 60, min_step_batch_fraction: 1}}")
        assert config.async_rl.rollout_failure.rollout_timeout_s == 60.0

    def test_nothing_changes_after_loading(self) -> None:
        config = load("")
        with pytest.raises(ValidationError, match="frozen"):
            config.grpo.num_prompts_per_step = 9
        with pytest.raises(ValidationError, match="frozen"):
            config.grpo = GrpoConfig()


class TestWhatNullComesTo:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("", (8, 16, 16)),
            (
                "{grpo: {num_prompts_per_step: 3}, async_rl: {sampler: {name: in_order, max_lookahead_versions: 0}}}",
                (3, 3, 3),
            ),
            (
                "{grpo: {num_prompts_per_step: 5},"
                " async_rl: {sampler: {name: weight_fifo, max_staleness_versions: 3}}}",
                (5, 20, 20),
            ),
            (
                "{grpo: {num_prompts_per_step: 5}, async_rl: {sampler: {name: windowed, max_staleness_versions: 3}}}",
                (5, 25, 25),
            ),
            (
                "async_rl: {sampler: {name: windowed}, min_groups_for_streaming_train: 2, max_buffered_rollouts: 2}",
                (2, 2, 2),
            ),
            ("async_rl: {max_buffered_rollouts: 40, max_inflight_prompts: 3}", (8, 3, 40)),
        ],
    )
    def test_built_in_samplers(self, text: str, expected: tuple[int, int, int]) -> None:
        assert values(load(text)) == expected

    @pytest.mark.parametrize(
        ("required", "minimum", "expected"), [(None, None, 12), (None, 2, 12), (7, 2, 7), (1, None, 6)]
    )
    def test_custom_samplers(self, required: int | None, minimum: int | None, expected: int) -> None:
        config = parse_config(
            {
                "grpo": {"num_prompts_per_step": 6},
                "async_rl": {
                    "sampler": {"name": "custom", "target": "a:B"},
                    "min_groups_for_streaming_train": minimum,
                },
            }
        )
        traits = SamplerTraits("custom", True, False, False, required)
        assert traits_of(config) is None
        assert resolved_buffer(config, traits) == resolved_inflight(config, traits) == expected

    @given(st.integers(1, 10**6), st.integers(1, 10**6), st.integers(0, 9))
    def test_the_floor_is_exact_for_the_decimal_as_written(self, groups: int, numerator: int, digits: int) -> None:
        numerator = min(numerator, 10**digits)
        fraction = float(f"{numerator}e-{digits}")
        exact = groups * Fraction(numerator, 10**digits)
        floor = floor_groups(groups, fraction)
        assert floor - 1 < exact <= floor

    @pytest.mark.parametrize(
        ("groups", "fraction", "floor"),
        [
            (100, 0.55, 55),
            (8, 0.9, 8),
            (4, 0.7, 3),
            (1, 1e-9, 1),
            (7, 1.0, 7),
            (3, 1, 3),
            (10, 0.1, 1),
            (1000, 0.007, 7),
        ],
    )
    def test_floors(self, groups: int, fraction: float, floor: int) -> None:
        assert floor_groups(groups, fraction) == floor


@pytest.mark.parametrize("path", SETUP_SCENARIOS, ids=lambda path: path.stem)
def test_setup_scenarios_are_refused(path: Path) -> None:
    scenario = yaml.safe_load(path.read_text(encoding="utf-8"))
    with pytest.raises(ConfigError) as refused:
        parse_config(scenario["config"])
    assert scenario["config_error"] in str(refused.value)
    assert "problems" not in str(refused.value), "a scenario shows one thing"


def _blocks(block: type[Strict]) -> list[type[Strict]]:
    inner = [each for each in Strict.__subclasses__() if each.__module__ == block.__module__]
    return sorted({block, *inner}, key=lambda each: each.__name__)


@pytest.mark.parametrize("block", _blocks(RunConfig), ids=lambda block: block.__name__)
def test_every_key_has_one_sentence(block: type[Strict]) -> None:
    for name, field in block.model_fields.items():
        assert field.description, f"{block.__name__}.{name}"
        assert field.description.endswith(".")
        assert ". " not in field.description


def test_import_is_light() -> None:
    code = (
        "import sys, time; start = time.process_time(); import fsm.config.parse; "
        "print(time.process_time() - start, *({'asyncio', 'torch', 'ray'} & set(sys.modules)))"
    )
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(2)]
    took, *loaded = runs[-1].stdout.split()
    assert not loaded
    assert float(took) < 1.0, "0.2 s of processor time; the bound allows for a machine five times slower"
