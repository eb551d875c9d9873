"""`name: custom`: what is loaded, and each way in which a class does not fit."""

import sys
import tempfile
from pathlib import Path

import pytest

from fsm.config.parse import parse_config
from fsm.config.sampler_loading import build_sampler
from fsm.config.setup import set_up
from fsm.errors import ConfigError
from fsm.samplers.protocol import DropAccountingSampler, PromptGroupSampler
from tests.fsm.helpers import config_of, run_to_the_end, world_of

BUILT_IN = ("in_order", "ready_first", "windowed", "weight_fifo")


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_built_in_samplers_are_written_against_the_same_protocols(name: str) -> None:
    sampler = build_sampler(config_of(name))
    assert isinstance(sampler, PromptGroupSampler)
    assert isinstance(sampler, DropAccountingSampler)


@pytest.mark.parametrize("name", [*BUILT_IN, "custom_samplers:Plain", "custom_samplers:Derived"])
def test_a_sampler_that_fits_runs_to_the_end(name: str) -> None:
    world = world_of(name, prompts=8)
    run_to_the_end(world)
    sheet = world.core.state.sheet
    assert world.status == "completed"
    assert sheet.trained + sheet.evicted == sheet.pulled == 8
    assert sheet.evicted == 0 or name == "windowed"


def test_extra_keys_go_to_the_constructor() -> None:
    sampler = build_sampler(config_of("custom_samplers:Derived", options={"window": 3}))
    assert vars(sampler)["window"] == 3


def test_a_custom_sampler_is_called_by_its_target() -> None:
    assert set_up(config_of("custom_samplers:Derived"), 4).sampler_name == "custom custom_samplers:Derived"


def test_a_sampler_that_says_nothing_of_losses_has_the_defaults_of_a_gated_one() -> None:
    """L3: charged to the step being assembled; the pool is used; no step closes short."""
    failure = {
        "on_dropped_prompt": "replace",
        "max_infra_attempts_per_prompt": 1,
        "max_consecutive_dropped_prompts": 9,
        "min_step_batch_fraction": 0.5,
    }
    limits = world_of("custom_samplers:Plain", failure=failure).core.limits
    assert limits.uses_pool
    assert not limits.closes_short


WRONG = {
    "no_such_module_at_all:Sampler": "module no_such_module_at_all cannot be imported",
    "custom_samplers:Plane": "has no Plane; did you mean Plain?",
    "custom_samplers:Zzz": "has no Zzz; it has",
    "custom_samplers:NOT_A_CLASS": "is a int, not a class",
    "custom_samplers:LacksMost": "lacks select, evict, should_abort_inflight, is_on_policy, required_buffer_capacity",
    "custom_samplers:RaisesWhenMade": "RuntimeError: no file of weights",
    "custom_samplers:MakesSomethingElse": "made a dict, which is no PromptGroupSampler",
    "custom_samplers:HalfOfDropAccounting": (
        "has uses_replacement_pool and lacks closes_short_at_exhaustion, charge_step_for_lost_group"
    ),
    "custom_samplers:HalfOfLabelling": "has labels and lacks label",
    "custom_samplers:NoLabels": "labels is 0; allowed: a whole number from 1 to 64",
    "custom_samplers:OneLabelTooMany": "labels is 65; allowed: a whole number from 1 to 64",
    "custom_samplers:NearlyBoolean": "uses_replacement_pool is 1; allowed: True or False",
    "custom_samplers:PolicyIsAWord": "is_on_policy is 'yes'; allowed: True or False",
    "custom_samplers:CapacityIsText": "required_buffer_capacity returned '4'; allowed: a whole number, or None",
    "custom_samplers:CapacityRaises": "KeyError: 'capacity'",
}


@pytest.mark.parametrize(("target", "says"), WRONG.items())
def test_a_class_that_does_not_fit_is_refused_with_its_target_and_what_is_wrong(target: str, says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        set_up(config_of(target), 8)
    assert says in str(refused.value)
    assert target in str(refused.value)


def test_as_many_labels_as_may_be_are_accepted() -> None:
    assert set_up(config_of("custom_samplers:AsManyLabelsAsMayBe"), 8).sampler_name.endswith("AsManyLabelsAsMayBe")


def test_an_option_that_the_constructor_does_not_take_is_refused_with_what_it_takes() -> None:
    with pytest.raises(ConfigError, match=r"cannot be made with \['depth'\].*depth.*window: int = 1"):
        set_up(config_of("custom_samplers:Derived", options={"depth": 3}), 8)


def test_a_missing_option_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"needs_options:Sampler cannot be made with \[\].*'depth'"):
        _with_module("needs_options", "class Sampler(Plain):\n    def __init__(self, depth): ...")


def test_a_module_that_raises_when_imported_is_refused_as_what_it_is() -> None:
    with pytest.raises(ConfigError, match=r"broken_module.*cannot be imported"):
        _with_module("broken_module", "import a_module_that_does_not_exist")


@pytest.mark.parametrize("text", ["raise SystemExit(0)", "raise RuntimeError('boom')", "class X(:"])
def test_a_module_that_ends_the_process_or_raises_is_refused_with_its_file_and_line(text: str) -> None:
    with pytest.raises(ConfigError, match=r"ends_when_imported cannot be imported: .*ends_when_imported\.py, line 2: "):
        _with_module("ends_when_imported", text)


@pytest.mark.parametrize("method", ["__init__", "required_buffer_capacity"])
@pytest.mark.parametrize("error", ["SystemExit(0)", "RuntimeError('no')"])
def test_a_sampler_that_ends_the_process_at_setup_is_refused(method: str, error: str) -> None:
    with pytest.raises(ConfigError, match=rf"ends_at_setup:Sampler.*: {error.partition('(')[0]}: "):
        _with_module("ends_at_setup", f"class Sampler(Plain):\n    def {method}(self, *given):\n        raise {error}")


def test_a_property_that_raises_is_refused_as_what_it_is() -> None:
    text = "class Sampler(Plain):\n    is_on_policy = property(lambda self: 1 / 0)"
    with pytest.raises(ConfigError, match="raising_property:Sampler cannot be asked what it is: ZeroDivisionError"):
        _with_module("raising_property", text)


@pytest.mark.parametrize("error", ["SystemExit(0)", "RuntimeError('no')"])
def test_a_class_that_cannot_say_what_it_takes_is_refused(error: str) -> None:
    meta = f"class Meta(type):\n    @property\n    def __signature__(cls): raise {error}"
    text = f"{meta}\nclass Sampler(Plain, metaclass=Meta): ..."
    with pytest.raises(ConfigError, match="without_signature:Sampler cannot be asked what its constructor takes: "):
        _with_module("without_signature", text)


def test_ctrl_c_while_a_module_is_imported_is_its_users() -> None:
    with pytest.raises(KeyboardInterrupt):
        _with_module("interrupted_import", "raise KeyboardInterrupt")


def _with_module(name: str, text: str) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        Path(folder, f"{name}.py").write_text(f"from custom_samplers import Plain\n{text}\n", encoding="utf-8")
        patch.syspath_prepend(folder)
        try:
            set_up(config_of(f"{name}:Sampler"), 8)
        finally:
            sys.modules.pop(name, None)


@pytest.mark.parametrize(
    "target", ["custom_samplers", "custom_samplers.Plain", ":Plain", "custom_samplers:", "a:b:c", ""]
)
def test_a_target_that_names_no_class_is_refused_before_anything_is_imported(target: str) -> None:
    with pytest.raises(ConfigError, match="module:ClassName"):
        parse_config({"async_rl": {"sampler": {"name": "custom", "target": target}}})


def test_a_buffer_below_what_a_custom_sampler_requires_is_refused() -> None:
    """A4."""
    with pytest.raises(ConfigError, match=r"max_buffered_rollouts is 19, but the custom .* sampler needs 20"):
        set_up(config_of("custom_samplers:NeedsMuchRoom", max_buffered_rollouts=19), 8)
    assert set_up(config_of("custom_samplers:NeedsMuchRoom"), 8).limits.max_buffered == 20


def test_a_custom_sampler_that_admits_stale_data_needs_the_correction_in_the_loss() -> None:
    document = {
        "async_rl": {"sampler": {"name": "custom", "target": "custom_samplers:Derived"}},
        "loss_fn": {"use_importance_sampling_correction": False},
    }
    with pytest.raises(ConfigError, match="admits stale groups"):
        set_up(parse_config(document), 8)
