"""What can be said of the vLLM engine without vLLM. The engine itself is tested in tests_vllm, by `make test-vllm`."""

from dataclasses import replace
from pathlib import Path

import pytest

from runtime.generation.config import GenerationConfig, Sampling, VllmEngineConfig
from runtime.generation.engine import PromptTooLong, RequestRefused, check_requests
from runtime.generation.on_vllm import setup as vllm_setup
from runtime.generation.on_vllm.engine import VllmEngine
from runtime.generation.on_vllm.setup import (
    VllmMissing,
    check_measurable,
    logprobs_mode,
    set_environment,
)
from tests.runtime.generation.helpers import make_config, make_request


def vllm_config(**options: object) -> GenerationConfig:
    return make_config(engine=VllmEngineConfig(max_batch_sequences=64), **options)


@pytest.mark.parametrize(
    ("options", "mode"),
    [
        ({}, "processed_logprobs"),
        ({"temperature": 0.6}, "processed_logprobs"),
        ({"top_k": 5}, "raw_logprobs"),
        ({"top_p": 0.9}, "raw_logprobs"),
        ({"top_p": 0.9, "temperature": 0.0}, "processed_logprobs"),
    ],
)
def test_the_logprobs_asked_for_are_those_before_the_cut(options: dict[str, object], mode: str) -> None:
    assert logprobs_mode(vllm_config(**options)) == mode


def test_a_cut_beside_a_temperature_is_refused() -> None:
    with pytest.raises(RequestRefused, match=r"generation has temperature 0\.6 .* set temperature to 1, or top_p to 1"):
        logprobs_mode(vllm_config(top_p=0.9, temperature=0.6))


@pytest.mark.parametrize("mode", ["processed_logprobs", "raw_logprobs"])
def test_an_evaluation_has_a_cut_beside_a_temperature_since_nobody_trains_on_it(mode: vllm_setup.LogprobsMode) -> None:
    sampling = Sampling(temperature=0.6, top_p=0.95, top_k=20, purpose="evaluation")
    check_measurable(replace(make_request("g"), sampling=sampling), mode)
    with pytest.raises(RequestRefused):
        check_measurable(replace(make_request("g"), sampling=replace(sampling, purpose="training")), mode)


@pytest.mark.parametrize("mode", ["processed_logprobs", "raw_logprobs"])
def test_greedy_decoding_is_measured_rightly_in_either_mode(mode: vllm_setup.LogprobsMode) -> None:
    check_measurable(make_request("g", temperature=0.0), mode)
    check_measurable(make_request("g", temperature=1.0), mode)


def test_a_request_that_the_mode_gets_wrong_is_refused() -> None:
    check_measurable(make_request("g", temperature=0.7), "processed_logprobs")
    with pytest.raises(RequestRefused, match=r"'g' has temperature 0\.7"):
        check_measurable(make_request("g", temperature=0.7), "raw_logprobs")
    check_measurable(make_request("g", top_p=0.5), "raw_logprobs")
    with pytest.raises(RequestRefused, match=r"'g' has top_k None and top_p 0\.5, but generation has neither"):
        check_measurable(make_request("g", top_p=0.5), "processed_logprobs")


def test_where_vllm_is_missing_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_setup, "find_spec", lambda name: None)
    with pytest.raises(VllmMissing, match=r"-e '\.\[train,vllm\]'.*scripts/setup_vllm_cpu.sh"):
        VllmEngine(Path("nowhere"), vllm_config(), stop_token_ids=[1])


def test_the_wrong_engine_is_refused() -> None:
    with pytest.raises(RequestRefused, match="'torch'; VllmEngine needs 'vllm'"):
        VllmEngine(Path("nowhere"), make_config(), stop_token_ids=[1])


def test_threads_are_the_configurations_and_what_else_is_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {"OMP_NUM_THREADS": "1", "VLLM_LOGGING_LEVEL": "DEBUG"}
    monkeypatch.setattr(vllm_setup.os, "environ", variables)
    set_environment(VllmEngineConfig(threads=3))
    assert (variables["OMP_NUM_THREADS"], variables["VLLM_LOGGING_LEVEL"]) == ("3", "DEBUG")
    assert variables["HF_HUB_OFFLINE"] == "1"


def test_requests_are_checked_alike_for_every_engine() -> None:
    config = vllm_config()
    check_requests([make_request("a"), make_request("b")], config, in_flight=())
    with pytest.raises(PromptTooLong, match=r"17 tokens and generation\.max_prompt_tokens is 16"):
        check_requests([make_request("a", [5] * 17)], config, in_flight=())
    with pytest.raises(RequestRefused, match="65 generations"):
        check_requests([make_request("a", num_generations=65)], config, in_flight=())
    with pytest.raises(RequestRefused, match="13 new tokens"):
        check_requests([make_request("a", max_new_tokens=13)], config, in_flight=())
    with pytest.raises(RequestRefused, match="'a' is in flight already"):
        check_requests([make_request("a")], config, in_flight=("a",))
    with pytest.raises(RequestRefused, match="must occur once"):
        check_requests([make_request("a"), make_request("a")], config, in_flight=())
