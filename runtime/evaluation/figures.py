"""The figures of an evaluation, each with its 95% confidence interval (`runtime.evaluation.statistics`)."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from runtime.evaluation.statistics import Estimate, Floats, mean, median, orders_of_pass, pass_at_k, share
from runtime.groups import Evaluation, HeldOutPrompt, HeldOutRollout
from runtime.tasks.base import Verdict


@dataclass(frozen=True, slots=True)
class Figures:
    """A rollout without a verdict counts as wrong. It has no reward, so that means of rewards leave it out."""

    prompts: int
    rollouts: int
    accuracy: Estimate
    """The share of rollouts that are correct: pass@1."""
    pass_at_k: Mapping[int, Estimate]
    """By k; empty if each prompt has one rollout."""
    reward: Estimate
    parts: Mapping[str, Estimate]
    """The mean of each part of the reward (`Verdict.parts`), by name."""
    tokens: Estimate
    """The mean length of a completion, in tokens, like the next four."""
    tokens_p50: Estimate
    tokens_max: int
    tokens_if_correct: float | None
    """The mean length of correct completions; None without any."""
    tokens_if_wrong: float | None
    truncated: Estimate
    """The share of rollouts that a length limit cut off."""
    without_verdict: Estimate
    """The share of rollouts whose verifier failed."""
    failures: int
    """The number of them."""
    first_failure: str | None
    """Why the first of them has no verdict, with file and line of its data."""
    pass_rates: Mapping[int, int]
    """How many prompts have this many correct rollouts."""

    def as_json(self) -> dict[str, Any]:
        """Estimates become objects of value, low and high."""
        return {
            "prompts": self.prompts,
            "rollouts": self.rollouts,
            "accuracy": self.accuracy.as_json(),
            "pass_at_k": {str(k): estimate.as_json() for k, estimate in self.pass_at_k.items()},
            "reward": self.reward.as_json(),
            "reward_parts": {name: estimate.as_json() for name, estimate in self.parts.items()},
            "completion_tokens": {
                "mean": self.tokens.as_json(),
                "p50": self.tokens_p50.as_json(),
                "max": self.tokens_max,
                "mean_if_correct": self.tokens_if_correct,
                "mean_if_wrong": self.tokens_if_wrong,
            },
            "truncated": self.truncated.as_json(),
            "without_verdict": {
                **self.without_verdict.as_json(),
                "rollouts": self.failures,
                "first_reason": self.first_failure,
            },
            "prompts_by_correct_rollouts": {str(right): prompts for right, prompts in self.pass_rates.items()},
        }

    def metrics(self) -> dict[str, Any]:
        """The line of metrics.jsonl, without step and time; names as in the lines of steps."""
        return {
            "accuracy": self.accuracy.value,
            "accuracy_low": self.accuracy.low,
            "accuracy_high": self.accuracy.high,
            "mean_reward": self.reward.value,
            "rollouts": self.rollouts,
            "without_verdict": self.failures,
            "completion_length_mean": self.tokens.value,
            "completion_length_max": self.tokens_max,
            "completion_length_correct": self.tokens_if_correct,
            "completion_length_wrong": self.tokens_if_wrong,
            "truncated_fraction": self.truncated.value,
            "pass_at_k": {str(k): estimate.value for k, estimate in self.pass_at_k.items()},
            "reward_parts": {name: estimate.value for name, estimate in self.parts.items()},
        }


def figures_of(evaluation: Evaluation) -> Figures:
    """All figures. Every prompt has the same number of rollouts, at least one."""
    prompts, rollouts = evaluation.prompts, evaluation.rollouts
    siblings = len(prompts[0].rollouts)
    right = [sum(rollout.correct for rollout in prompt.rollouts) for prompt in prompts]
    tokens = _table(prompts, lambda rollout: rollout.tokens)
    failures = evaluation.failures
    return Figures(
        prompts=len(prompts),
        rollouts=len(rollouts),
        accuracy=_share(prompts, lambda rollout: rollout.correct),
        pass_at_k={k: share(pass_at_k(right, siblings, k), siblings) for k in orders_of_pass(siblings) if siblings > 1},
        reward=mean(_table(prompts, _reward)),
        parts={name: mean(_table(prompts, _part(name))) for name in _names_of_parts(rollouts)},
        tokens=mean(tokens),
        tokens_p50=median(tokens),
        tokens_max=int(tokens.max()),
        tokens_if_correct=_mean_tokens(rollout for rollout in rollouts if rollout.correct),
        tokens_if_wrong=_mean_tokens(rollout for rollout in rollouts if not rollout.correct),
        truncated=_share(prompts, lambda rollout: not rollout.finished),
        without_verdict=_share(prompts, lambda rollout: isinstance(rollout.verdict, str)),
        failures=len(failures),
        first_failure=failures[0] if failures else None,
        pass_rates=dict(sorted(Counter(right).items())),
    )


def _table(prompts: Sequence[HeldOutPrompt], value: Callable[[HeldOutRollout], float]) -> Floats:
    """Values of shape (prompts, rollouts of a prompt)."""
    return np.array([[value(rollout) for rollout in prompt.rollouts] for prompt in prompts], dtype=np.float64)


def _share(prompts: Sequence[HeldOutPrompt], holds: Callable[[HeldOutRollout], bool]) -> Estimate:
    return share(_table(prompts, holds).mean(axis=1), len(prompts[0].rollouts))


def _names_of_parts(rollouts: Sequence[HeldOutRollout]) -> list[str]:
    named = (rollout.verdict.parts for rollout in rollouts if isinstance(rollout.verdict, Verdict))
    return list(dict.fromkeys(name for parts in named for name in parts))


def _reward(rollout: HeldOutRollout) -> float:
    return rollout.verdict.reward if isinstance(rollout.verdict, Verdict) else math.nan


def _part(name: str) -> Callable[[HeldOutRollout], float]:
    """A part that a verdict lacks is 0."""
    return lambda rollout: rollout.verdict.parts.get(name, 0.0) if isinstance(rollout.verdict, Verdict) else math.nan


def _mean_tokens(rollouts: Iterable[HeldOutRollout]) -> float | None:
    tokens = [rollout.tokens for rollout in rollouts]
    return sum(tokens) / len(tokens) if tokens else None
