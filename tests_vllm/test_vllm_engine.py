"""The vLLM engine for real, on a CPU, with the tiny model in float32."""

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from vllm_helpers import (
    END,
    TOLERANCE,
    Running,
    make_policy,
    make_request,
    open_engine,
    outcome,
    plain_logprobs,
    swapped_logprobs,
    tokens,
)

from runtime.generation.engine import GeneratedGroup, GenerationAborted, PromptTooLong, RequestRefused, WeightsMismatch
from runtime.models.config import TinyModelConfig
from runtime.models.tiny import character_tokenizer, tiny_model
from runtime.models.weights import export_weights, import_weights

OLD, NEW = make_policy(0), make_policy(9)
PROMPTS = [[5, 9, 30, 12, 40], [7], [20, 21], list(range(3, 80)) * 3]
"""The last is longer than a block of vLLM's prefix cache, 128 tokens on a CPU."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with asyncio.Runner() as runner:
        engine = open_engine(tmp_path_factory.mktemp("tiny"), runner)
        try:
            yield Running(engine, runner)
        finally:
            runner.run(engine.__aexit__(None, None, None))


@pytest.fixture(autouse=True)
def _old_weights(running: Running) -> None:
    if running.engine.health().version != 0:
        running.run(running.engine.load_weights(export_weights(OLD), 0))


@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
def test_logprobs_equal_those_of_a_plain_forward_pass(running: Running, temperature: float) -> None:
    requests = [
        make_request(f"g{i}", PROMPTS[i % 4], num_generations=3, seed=i, temperature=temperature) for i in range(12)
    ]
    for request, group in zip(requests, running.generate(*requests), strict=True):
        assert (group.request_id, group.start_weight, group.end_weight) == (request.request_id, 0, 0)
        assert len(group.sequences) == 3
        for sequence in group.sequences:
            np.testing.assert_allclose(sequence.logprobs, plain_logprobs(OLD, request, sequence), atol=TOLERANCE)


def test_more_prompt_tokens_than_a_batch_takes_are_read_in_several(running: Running) -> None:
    prompts = [[3 + i, *PROMPTS[3]] for i in range(12)]
    groups = running.generate(*(make_request(f"g{i}", prompt, seed=100 * i) for i, prompt in enumerate(prompts)))
    assert sum(len(group.sequences) for group in groups) == 48


def test_a_completion_ends_with_its_stop_token_or_at_its_length(running: Running) -> None:
    groups = running.generate(*(make_request(f"g{i}", num_generations=16, seed=100 * i) for i in range(3)))
    sequences = [sequence for group in groups for sequence in group.sequences]
    assert len(sequences) == 48
    assert {sequence.finished for sequence in sequences} == {True, False}
    for sequence in sequences:
        assert END not in sequence.token_ids[:-1]
        assert sequence.finished == (sequence.token_ids[-1] == END)
        assert sequence.finished or len(sequence.token_ids) == 24


def test_a_groups_tokens_depend_on_its_own_seed_and_not_on_its_neighbours(running: Running) -> None:
    (alone,) = running.generate(make_request("g", seed=5))
    neighbours = [make_request(f"n{i}", [20 + i] * 3, seed=100 * i) for i in range(10)]
    *_, beside = running.generate(*neighbours, make_request("g", seed=5))
    (other,) = running.generate(make_request("g", seed=6000))
    assert tokens(beside) == tokens(alone)
    assert len({tuple(sequence) for sequence in tokens(alone)}) > 1
    assert tokens(other) != tokens(alone)


def test_greedy_siblings_are_equal_and_take_the_likeliest_token(running: Running) -> None:
    request = make_request("g", num_generations=3, temperature=0.0)
    (group,) = running.generate(request)
    first, *others = tokens(group)
    assert others == [first, first]
    ids = request.prompt_token_ids.tolist()
    for token in first:
        with torch.no_grad():
            assert int(OLD(input_ids=torch.tensor([ids])).logits[0, -1].argmax()) == token
        ids.append(token)


def test_an_evaluation_is_cut_and_has_a_temperature_under_an_engine_without_either(running: Running) -> None:
    request = make_request("cut", num_generations=8, temperature=0.5, top_p=0.1, purpose="evaluation")
    (group,) = running.generate(request)
    start = len(request.prompt_token_ids)
    for sequence in group.sequences:
        ids = torch.tensor([*request.prompt_token_ids.tolist(), *sequence.token_ids.tolist()])
        with torch.no_grad():
            chances = torch.softmax(OLD(input_ids=ids[None]).logits[0].float() / 0.5, dim=-1)[start - 1 : -1]
        own = chances.gather(1, ids[start:, None])
        likelier = torch.where(chances > own, chances, 0.0).sum(dim=-1)
        assert (likelier < 0.1 + TOLERANCE).all(), "a token beyond the fewest that reach top_p was sampled"
        assert np.isfinite(sequence.logprobs).all()


def test_a_swap_in_flight_changes_the_later_tokens_and_all_groups_finish(running: Running) -> None:
    requests = [make_request(f"g{i}", num_generations=4, seed=100 * i, max_new_tokens=100) for i in range(4)]

    async def scenario() -> tuple[list[GeneratedGroup], GeneratedGroup]:
        futures = running.engine.submit(requests)
        await _until_active(running, 16)
        await asyncio.sleep(0.05)
        assert await running.engine.load_weights(export_weights(NEW), 3) == 3
        (late,) = running.engine.submit([make_request("late")])
        return list(await asyncio.gather(*futures)), await late

    groups, late = running.run(scenario())
    assert [(group.start_weight, group.end_weight) for group in groups] == [(0, 3)] * 4
    assert (late.start_weight, late.end_weight) == (3, 3)
    swapped = 0
    for request, group in zip(requests, groups, strict=True):
        for sequence in group.sequences:
            under_old = plain_logprobs(OLD, request, sequence)
            moved = np.flatnonzero(np.abs(sequence.logprobs - under_old) > TOLERANCE)
            swap = int(moved[0]) if len(moved) else len(sequence.token_ids)
            expected = swapped_logprobs(OLD, NEW, request, sequence, swap)
            np.testing.assert_allclose(sequence.logprobs, expected, atol=TOLERANCE)
            swapped += 0 < swap < len(sequence.token_ids)
    assert swapped >= 4


def test_after_a_swap_no_prefix_of_the_old_weights_is_used(running: Running) -> None:
    request = make_request("g", PROMPTS[3])
    running.generate(request)
    running.run(running.engine.load_weights(export_weights(NEW), 1))
    (group,) = running.generate(request)
    for sequence in group.sequences:
        np.testing.assert_allclose(sequence.logprobs, plain_logprobs(NEW, request, sequence), atol=TOLERANCE)


def test_weights_in_bfloat16_are_loaded_as_what_they_round_to(running: Running) -> None:
    rounded, weights = make_policy(9), export_weights(NEW, torch.bfloat16)
    import_weights(rounded, weights)
    running.run(running.engine.load_weights(weights, 1))
    request = make_request("g")
    (group,) = running.generate(request)
    for sequence in group.sequences:
        np.testing.assert_allclose(sequence.logprobs, plain_logprobs(rounded, request, sequence), atol=TOLERANCE)


def test_weights_of_another_model_are_refused_and_the_old_ones_stay(running: Running) -> None:
    other = export_weights(tiny_model(character_tokenizer(), TinyModelConfig(width=32), seed=1))
    with pytest.raises(WeightsMismatch, match=r"version 3 does not fit.*keeps version 0.*shape"):
        running.run(running.engine.load_weights(other, 3))
    incomplete = export_weights(OLD)
    del incomplete["transformer.ln_f.bias"]
    with pytest.raises(WeightsMismatch, match=r"missing: transformer.ln_f.bias; unknown: none"):
        running.run(running.engine.load_weights(incomplete, 3))
    request = make_request("g")
    (group,) = running.generate(request)
    assert group.end_weight == 0
    for sequence in group.sequences:
        np.testing.assert_allclose(sequence.logprobs, plain_logprobs(OLD, request, sequence), atol=TOLERANCE)


def test_an_aborted_request_says_so_and_the_others_go_on(running: Running) -> None:
    async def scenario() -> None:
        engine = running.engine
        gone, stays, unborn = engine.submit(
            [make_request(name, seed=seed, max_new_tokens=100) for seed, name in enumerate(["gone", "stays", "unborn"])]
        )
        assert engine.abort("unborn")
        await _until_active(running, 8)
        assert engine.abort("gone")
        assert not engine.abort("gone")
        assert not engine.abort("never")
        for future, name in ((gone, "gone"), (unborn, "unborn")):
            error = await outcome(future)
            assert isinstance(error, GenerationAborted)
            assert error.request_id == name
        (again,) = engine.submit([make_request("gone")])
        assert len((await stays).sequences) == len((await again).sequences) == 4
        health = engine.health()
        assert (health.active_sequences, health.waiting_groups) == (0, 0)

    running.run(scenario())


def test_groups_beyond_the_places_wait_and_health_counts_them(running: Running) -> None:
    async def scenario() -> None:
        before = running.engine.health()
        requests = [make_request(f"g{i}", num_generations=32, seed=100 * i, max_new_tokens=100) for i in range(4)]
        futures = running.engine.submit(requests)
        await _until_active(running, 64)
        assert running.engine.health().waiting_groups >= 1
        groups = await asyncio.gather(*futures)
        after = running.engine.health()
        generated = sum(len(sequence.token_ids) for group in groups for sequence in group.sequences)
        assert after.generated_tokens - before.generated_tokens == generated
        assert after.busy_s > before.busy_s

    running.run(scenario())


def test_what_the_configuration_does_not_allow_is_refused_and_starts_nothing(running: Running) -> None:
    async def scenario() -> None:
        submit = running.engine.submit
        with pytest.raises(PromptTooLong, match=r"'long'.* 301 tokens and generation.max_prompt_tokens is 300"):
            submit([make_request("fine"), make_request("long", [5] * 301)])
        with pytest.raises(RequestRefused, match="65 generations"):
            submit([make_request("wide", num_generations=65)])
        with pytest.raises(RequestRefused, match=r"has top_k 5 and top_p 1\.0, but generation has neither"):
            submit([make_request("cut", top_k=5)])
        assert running.engine.health().active_sequences == 0

    running.run(scenario())


async def _until_active(running: Running, sequences: int) -> None:
    async with asyncio.timeout(30):
        while running.engine.health().active_sequences < sequences:
            await asyncio.sleep(0.005)
