"""The torch engine: its log-probabilities against plain forward passes, its scheduling, what it refuses."""

import pickle

import numpy as np
import pytest
import torch
from transformers import GPT2LMHeadModel, MistralConfig, MistralForCausalLM, PreTrainedTokenizerFast

from runtime.generation.engine import (
    PolicyNotFinite,
    PromptTooLong,
    RequestRefused,
    WeightsMismatch,
)
from runtime.models.directory import UnsupportedModel
from runtime.models.tiny import TinyModelConfig, tiny_model
from runtime.models.weights import export_weights
from tests.runtime.generation.helpers import (
    END,
    make_config,
    make_engine,
    make_request,
    plain_logprobs,
    run,
    small_llama,
)

PROMPTS = [[5], [5, 9], [7, 30, 12, 40, 41, 42, 8], [50, 51, 52, 53]]


@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_equal_those_of_a_plain_forward_pass_whenever_a_group_joined(
    model: GPT2LMHeadModel, architecture: str, temperature: float
) -> None:
    policy = model if architecture == "gpt2" else small_llama()
    # 7 places for groups of 3: most groups wait, join later, and take the places of others that ended.
    engine = make_engine(policy, make_config(max_batch_sequences=7, stop_token_ids=tuple(range(2, 10))))
    requests = [
        make_request(f"g{i}", PROMPTS[i % 4], num_generations=3, seed=i, temperature=temperature) for i in range(12)
    ]
    engine.submit(requests[:5])
    finished = {}
    for request in requests[5:]:
        finished.update({group.request_id: group for group in engine.step()})
        engine.submit([request])
    finished.update(run(engine))
    assert len(finished) == 12
    lengths = set()
    for request in requests:
        for sequence in finished[request.request_id].sequences:
            lengths.add(len(sequence.token_ids))
            np.testing.assert_allclose(sequence.logprobs, plain_logprobs(policy, request, sequence), atol=2e-5)
    assert len(lengths) > 5


def test_tokens_after_a_swap_come_from_the_new_weights_over_the_cache_of_the_old(
    model: GPT2LMHeadModel, tokenizer: PreTrainedTokenizerFast
) -> None:
    """The reference keeps the old keys and values as well: transformers' own cache, fed one token at a time."""
    old = tiny_model(tokenizer, TinyModelConfig(), seed=0)
    new = tiny_model(tokenizer, TinyModelConfig(), seed=9)
    request = make_request("g", num_generations=3)
    engine = make_engine(model)
    engine.submit([request])
    swap_after = 4
    for _ in range(swap_after):
        engine.step()
    assert engine.load_weights(export_weights(new), 1) == 1
    group = run(engine)["g"]
    assert (group.start_weight, group.end_weight) == (0, 1)
    compared = 0
    for sequence in group.sequences:
        cache = None
        prompt = request.prompt_token_ids.tolist()
        ids = torch.tensor([prompt])
        for place, token in enumerate(sequence.token_ids.tolist()):
            policy = old if place < swap_after else new
            with torch.no_grad():
                output = policy(input_ids=ids, past_key_values=cache, use_cache=True)
            cache = output.past_key_values
            expected = torch.log_softmax(output.logits[0, -1], -1)[token]
            assert sequence.logprobs[place] == pytest.approx(float(expected), abs=2e-5)
            ids = torch.tensor([[token]])
            compared += place >= swap_after
    assert compared > 5


def test_tied_weights_are_loaded_on_both_sides_of_the_model() -> None:
    policy = small_llama()
    trained = small_llama()
    with torch.no_grad():
        for parameter in trained.parameters():
            parameter.mul_(1.3)
    engine = make_engine(policy)
    engine.load_weights(export_weights(trained), 1)
    request = make_request("g")
    engine.submit([request])
    for sequence in run(engine)["g"].sequences:
        np.testing.assert_allclose(sequence.logprobs, plain_logprobs(trained, request, sequence), atol=2e-5)


def test_a_group_that_ended_before_the_swap_keeps_its_version(model: GPT2LMHeadModel) -> None:
    engine = make_engine(model, version=4)
    engine.submit([make_request("short", max_new_tokens=1), make_request("long")])
    (short,) = engine.step()
    engine.load_weights(export_weights(model), 5)
    engine.submit([make_request("late")])
    rest = run(engine)
    assert (short.start_weight, short.end_weight) == (4, 4)
    assert (rest["long"].start_weight, rest["long"].end_weight) == (4, 5)
    assert (rest["late"].start_weight, rest["late"].end_weight) == (5, 5)


def test_a_short_answer_does_not_wait_for_a_long_one(model: GPT2LMHeadModel) -> None:
    engine = make_engine(model, make_config(max_batch_sequences=8))
    engine.submit([make_request("long", num_generations=4), make_request("a", num_generations=4, max_new_tokens=1)])
    engine.submit([make_request("b", num_generations=4, max_new_tokens=1)])
    assert [group.request_id for group in engine.step()] == ["a"]
    assert [group.request_id for group in engine.step()] == ["b"]
    assert engine.health().active_sequences <= 4


def test_a_completion_ends_with_its_stop_token_or_at_its_length(model: GPT2LMHeadModel) -> None:
    engine = make_engine(model)
    engine.submit([make_request(f"g{i}", num_generations=16, seed=i) for i in range(4)])
    sequences = [sequence for group in run(engine).values() for sequence in group.sequences]
    assert {sequence.finished for sequence in sequences} == {True, False}
    for sequence in sequences:
        assert END not in sequence.token_ids[:-1]
        assert sequence.finished == (sequence.token_ids[-1] == END)
        assert sequence.finished or len(sequence.token_ids) == 12


def test_further_stop_tokens_end_a_completion_too(model: GPT2LMHeadModel) -> None:
    engine = make_engine(model, make_config(stop_token_ids=tuple(range(2, 60))))
    engine.submit([make_request("g", num_generations=32)])
    (group,) = run(engine).values()
    assert all(not set(range(60)) & set(sequence.token_ids[:-1].tolist()) - {0} for sequence in group.sequences)


def test_whole_batches_give_the_same_bits_whatever_else_is_under_way(model: GPT2LMHeadModel) -> None:
    def bits(*, busy: bool) -> list[bytes]:
        engine = make_engine(model, make_config(max_batch_sequences=12, batching="whole"))
        if busy:
            engine.submit([make_request("other", [8] * 9, num_generations=7, seed=77)])
            engine.step()
        engine.submit([make_request(f"g{i}", PROMPTS[i], num_generations=5, seed=i) for i in range(4)])
        if busy:
            engine.step()
            engine.submit([make_request("another", num_generations=3)])
        finished = run(engine)
        return [
            sequence.token_ids.tobytes() + sequence.logprobs.tobytes()
            for i in range(4)
            for sequence in finished[f"g{i}"].sequences
        ]

    assert bits(busy=False) == bits(busy=True)


def test_a_groups_tokens_depend_on_its_own_seed_and_not_on_its_neighbours(model: GPT2LMHeadModel) -> None:
    def tokens(*, neighbours: int) -> list[list[int]]:
        engine = make_engine(model)
        engine.submit([make_request(f"n{i}", [20 + i] * 3, seed=100 + i) for i in range(neighbours)])
        engine.submit([make_request("g", seed=5)])
        return [sequence.token_ids.tolist() for sequence in run(engine)["g"].sequences]

    alone = tokens(neighbours=0)
    assert tokens(neighbours=10) == alone
    assert len({tuple(sequence) for sequence in alone}) > 1


def test_temperature_zero_takes_the_likeliest_token(model: GPT2LMHeadModel) -> None:
    engine = make_engine(model)
    request = make_request("g", num_generations=3, temperature=0.0)
    engine.submit([request, make_request("sampled", seed=1)])
    first, *others = run(engine)["g"].sequences
    assert all(other.token_ids.tolist() == first.token_ids.tolist() for other in others)
    ids = request.prompt_token_ids.tolist()
    for token in first.token_ids.tolist():
        with torch.no_grad():
            assert int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()) == token
        ids.append(token)
    np.testing.assert_allclose(first.logprobs, plain_logprobs(model, request, first), atol=2e-5)


def test_aborting_frees_the_places_and_leaves_the_others_as_they_were(model: GPT2LMHeadModel) -> None:
    engine = make_engine(model, make_config(max_batch_sequences=8))
    requests = [make_request(name, num_generations=4, seed=seed) for seed, name in enumerate(["a", "b", "waiting"])]
    engine.submit(requests)
    engine.step()
    assert engine.abort("a")
    assert not engine.abort("a")
    assert engine.health().active_sequences <= 4
    assert engine.abort("waiting")
    finished = run(engine)
    assert set(finished) == {"b"}
    for sequence in finished["b"].sequences:
        np.testing.assert_allclose(sequence.logprobs, plain_logprobs(model, requests[1], sequence), atol=2e-5)


def test_a_prompt_above_the_limit_is_a_data_failure_and_starts_nothing(model: GPT2LMHeadModel) -> None:
    engine = make_engine(model)
    with pytest.raises(PromptTooLong, match=r"'long'.* 17 tokens and generation.max_prompt_tokens is 16; shorten"):
        engine.submit([make_request("fine"), make_request("long", [5] * 17)])
    assert not engine.has_work


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_generations": 65}, r"65 generations and generation.engine.max_batch_sequences is 64"),
        ({"num_generations": 0}, r"0 generations"),
        ({"max_new_tokens": 13}, r"13 new tokens and generation.max_new_tokens is 12"),
    ],
)
def test_a_request_beyond_the_configuration_is_refused_with_both_values(
    model: GPT2LMHeadModel, change: dict[str, int], message: str
) -> None:
    with pytest.raises(RequestRefused, match=message):
        make_engine(model).submit([make_request("g", **change)])  # type: ignore[arg-type]


def test_an_id_in_flight_cannot_be_used_again(model: GPT2LMHeadModel) -> None:
    engine = make_engine(model)
    engine.submit([make_request("g")])
    with pytest.raises(RequestRefused, match="'g' is in flight already"):
        engine.submit([make_request("g")])
    with pytest.raises(RequestRefused, match="must occur once"):
        engine.submit([make_request("h"), make_request("h")])


def test_weights_of_another_model_are_refused_and_nothing_is_loaded(
    model: GPT2LMHeadModel, tokenizer: PreTrainedTokenizerFast
) -> None:
    engine = make_engine(model)
    before = export_weights(model)
    other = export_weights(tiny_model(tokenizer, TinyModelConfig(width=32), seed=1))
    with pytest.raises(WeightsMismatch, match=r"version 3 does not fit.*shape"):
        engine.load_weights(other, 3)
    incomplete = dict(before)
    del incomplete["transformer.ln_f.bias"]
    with pytest.raises(WeightsMismatch, match=r"missing: transformer.ln_f.bias; unknown: none"):
        engine.load_weights(incomplete, 3)
    assert engine.health().version == 0
    after = export_weights(model)
    assert all((after[name] == before[name]).all() for name in before)


def test_diverged_weights_are_named_and_good_ones_work_again(model: GPT2LMHeadModel) -> None:
    engine = make_engine(model)
    good = export_weights(model)
    bad = {name: np.full_like(array, np.nan) for name, array in good.items()}
    engine.load_weights(bad, 7)
    engine.submit([make_request("a"), make_request("b")])
    with pytest.raises(PolicyNotFinite, match=r"weight version 7 .*'a' and 1 more") as raised:
        engine.step()
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value), "it crosses processes"
    assert not engine.has_work
    engine.load_weights(good, 8)
    request = make_request("c")
    engine.submit([request])
    for sequence in run(engine)["c"].sequences:
        np.testing.assert_allclose(sequence.logprobs, plain_logprobs(model, request, sequence), atol=2e-5)


def test_a_model_without_enough_positions_or_with_a_narrow_window_is_refused(model: GPT2LMHeadModel) -> None:
    with pytest.raises(UnsupportedModel, match=r"GPT2LMHeadModel has 128 positions .* is 130; lower them to 128"):
        make_engine(model, make_config(max_prompt_tokens=118))
    sliding = MistralForCausalLM(
        MistralConfig(
            vocab_size=60,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            sliding_window=20,
            max_position_embeddings=64,
        )
    )
    with pytest.raises(UnsupportedModel, match=r"a window of 20 tokens .* is 28; lower them to 20"):
        make_engine(sliding)


def test_health_counts_what_was_generated(model: GPT2LMHeadModel) -> None:
    engine = make_engine(model)
    engine.submit([make_request("g")])
    assert engine.health().waiting_groups == 1
    (group,) = run(engine).values()
    health = engine.health()
    assert health.generated_tokens == sum(len(sequence.token_ids) for sequence in group.sequences)
    assert (health.active_sequences, health.waiting_groups) == (0, 0)
    assert health.busy_s > 0
    keys = engine._policy.cache.row_layers[0].keys
    assert keys is not None
    assert tuple(keys.shape) == (4, 2, 5 + 12, 32), "rows, heads, columns, head size"
