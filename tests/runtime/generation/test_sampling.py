"""How tokens are drawn."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.generation.config import Sampling
from runtime.generation.on_torch.sampling import sample, uniforms

PROBABILITIES = [0.0, 0.5, 0.0, 0.3, 0.15, 0.05, 0.0]


def draw(option: Sampling, draws: int = 20_000) -> tuple[list[float], torch.Tensor]:
    """Frequencies of the tokens over evenly spaced random numbers, and the log-probabilities reported."""
    logits = torch.log(torch.tensor(PROBABILITIES)).expand(draws, -1)
    uniform = (torch.arange(draws) / draws).float()
    ids, logprobs = sample(logits, [option] * draws, uniform)
    assert (logprobs == torch.log_softmax(logits / (option.temperature or 1.0), -1)[0, ids]).all()
    return (torch.bincount(ids, minlength=len(PROBABILITIES)) / draws).tolist(), logprobs


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        (Sampling(), PROBABILITIES),
        (Sampling(top_k=2), [0, 0.5 / 0.8, 0, 0.3 / 0.8, 0, 0, 0]),
        (Sampling(top_k=1), [0, 1, 0, 0, 0, 0, 0]),
        (Sampling(top_p=0.7), [0, 0.5 / 0.8, 0, 0.3 / 0.8, 0, 0, 0]),
        (Sampling(top_p=0.01), [0, 1, 0, 0, 0, 0, 0]),
        (Sampling(top_k=3, top_p=0.9), [0, 0.5 / 0.95, 0, 0.3 / 0.95, 0.15 / 0.95, 0, 0]),
        (Sampling(temperature=0.0), [0, 1, 0, 0, 0, 0, 0]),
        (Sampling(temperature=0.5), [0, 0.25 / 0.365, 0, 0.09 / 0.365, 0.0225 / 0.365, 0.0025 / 0.365, 0]),
    ],
)
def test_tokens_come_as_often_as_their_probability_among_those_kept(option: Sampling, expected: list[float]) -> None:
    frequencies, _ = draw(option)
    assert frequencies == pytest.approx(expected, abs=2e-4)


def test_each_sequence_has_options_of_its_own() -> None:
    logits = torch.log(torch.tensor(PROBABILITIES)).expand(3, -1)
    options = [Sampling(temperature=0.0), Sampling(), Sampling(top_k=2)]
    ids, _ = sample(logits, options, torch.tensor([0.99, 0.99, 0.99]))
    assert ids.tolist() == [1, 5, 3]


@settings(max_examples=200, deadline=None)
@given(
    logits=st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=40),
    bits=st.sampled_from([0, 1, 2**22, 2**23 - 2, 2**23 - 1]),
    banned=st.booleans(),
)
def test_no_random_number_draws_a_token_of_probability_zero(logits: list[float], bits: int, banned: bool) -> None:
    values = [*([float("-inf")] if banned else []), *logits, *([float("-inf")] if banned else [])]
    uniform = torch.tensor([bits / 2**23])
    for option in (Sampling(), Sampling(top_p=0.99), Sampling(top_k=3)):
        ids, logprobs = sample(torch.tensor([values]), [option], uniform)
        assert torch.isfinite(logprobs).all()
        assert values[int(ids)] != float("-inf")


def test_random_numbers_are_a_function_of_the_seed_and_below_one() -> None:
    first, again, other = uniforms(3, 4, 1000), uniforms(3, 4, 1000), uniforms(4, 4, 1000)
    assert (first == again).all()
    assert (first != other).mean() > 0.99
    assert first.dtype == np.float32
    assert first.min() >= 0
    assert first.max() < 1
    assert first.mean() == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("wrong", [{"temperature": -1.0}, {"top_p": 0.0}, {"top_k": 0}, {"max_new_tokens": 0}])
def test_impossible_sampling_options_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Sampling(**wrong)  # type: ignore[arg-type]
