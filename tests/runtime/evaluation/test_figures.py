"""What an evaluation says of itself."""

import json

import pytest

from runtime.evaluation.figures import figures_of
from runtime.groups import Evaluation, HeldOutPrompt, HeldOutRollout, joined
from runtime.tasks.base import Verdict

RIGHT = HeldOutRollout(Verdict(1.5, True, {"answer": 1.0, "format": 0.5}), 4, True, ("yes",))
WRONG = HeldOutRollout(Verdict(-0.5, False, {"answer": 0.0, "format": -0.5}), 16, False, ("no",))
NONE = HeldOutRollout("data.jsonl:3: it hangs", 10, True, ("?",))


def evaluated(*prompts: tuple[HeldOutRollout, ...], first: int = 0) -> Evaluation:
    return Evaluation(tuple(HeldOutPrompt(first + number, each) for number, each in enumerate(prompts)), 3, 3)


def test_every_figure_of_a_small_set() -> None:
    figures = figures_of(evaluated((RIGHT, RIGHT), (RIGHT, WRONG), (WRONG, WRONG), (NONE, WRONG)))
    assert (figures.prompts, figures.rollouts) == (4, 8)
    assert figures.accuracy.value == 3 / 8
    assert figures.accuracy.low < 3 / 8 < figures.accuracy.high
    assert {k: estimate.value for k, estimate in figures.pass_at_k.items()} == {1: 3 / 8, 2: 2 / 4}
    assert figures.reward.value == pytest.approx((3 * 1.5 - 4 * 0.5) / 7), "one has no verdict"
    assert {name: estimate.value for name, estimate in figures.parts.items()} == {
        "answer": pytest.approx(3 / 7),
        "format": pytest.approx((3 * 0.5 - 4 * 0.5) / 7),
    }
    assert (figures.tokens.value, figures.tokens_p50.value, figures.tokens_max) == ((12 + 64 + 10) / 8, 13.0, 16)
    assert (figures.tokens_if_correct, figures.tokens_if_wrong) == (4.0, (64 + 10) / 5)
    assert figures.truncated.value == 4 / 8
    assert (figures.failures, figures.first_failure) == (1, "data.jsonl:3: it hangs")
    assert figures.without_verdict.value == 1 / 8
    assert figures.pass_rates == {0: 2, 1: 1, 2: 1}


def test_one_rollout_a_prompt_gives_no_pass_at_k_and_json_of_all() -> None:
    figures = figures_of(evaluated((NONE,)))
    assert figures.pass_at_k == {}
    assert figures.reward.value == 0.0
    assert figures.parts == {}
    assert figures.tokens_if_correct is None
    written = json.loads(json.dumps(figures.as_json(), allow_nan=False))
    assert written["without_verdict"]["first_reason"] == "data.jsonl:3: it hangs"
    assert written["completion_tokens"]["max"] == 10


def test_parts_that_were_measured_apart_are_one_set_in_the_order_of_its_prompts() -> None:
    parts = [evaluated((WRONG,), first=2), evaluated((RIGHT,), (RIGHT,))]
    whole = joined(parts)
    assert [prompt.index for prompt in whole.prompts] == [0, 1, 2]
    assert whole.accuracy == 2 / 3
    assert [rollout.turns for rollout in whole.without_turns().rollouts] == [(), (), ()]
