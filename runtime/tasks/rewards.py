"""The keys of tasks whose completions are rated by functions that the configuration names, and the row they get."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Self

from pydantic import Field, model_validator

from fsm.config.plain import LONGEST_S
from fsm.config.strict import Strict
from runtime.tasks.base import Completion
from runtime.tasks.judges import FunctionJudge, Verifier

EXACT = "runtime.tasks.verifiers:exact"
VERDICT_TIMEOUT = Field(
    default=100.0,
    gt=0,
    le=LONGEST_S,
    description=(
        "Deadline of one verdict, in seconds. Loading the verifier has the same deadline, at least 60 s. A verdict "
        "that misses it is a data failure of its prompt, and its process is killed."
    ),
)


class RewardConfig(Strict):
    """One of several verifiers, whose rewards are added up."""

    target: str = Field(min_length=1, description="module:function, as for verifier.")
    weight: float = Field(default=1.0, description="Factor of its reward in the total; may be negative or 0.")
    name: str | None = Field(
        default=None, pattern="^[^/]+$", description="Name in metrics and in correct_from; null: the function's."
    )

    @property
    def label(self) -> str:
        """Its name in metrics."""
        return self.target.rpartition(":")[2] if self.name is None else self.name


class RatedByFunctions(Strict):
    """The keys that all tasks share whose completions are rated by functions that the configuration names."""

    verifier: str | None = Field(
        default=EXACT,
        description=(
            "module:function, called with the completion and the answer, or with the completion and the row if its "
            "second parameter is named row. Returns any finite number, or a mapping of named parts. "
            "null: rewards lists them."
        ),
    )
    rewards: tuple[RewardConfig, ...] = Field(
        default=(),
        strict=False,
        description="A list of verifiers, whose weighted sum is the reward; in place of verifier.",
    )
    correct_at: float = Field(default=1.0, description="Lowest reward that counts as correct.")
    correct_from: str | None = Field(
        default=None,
        min_length=1,
        description="The part of the reward that correct_at is compared with, by name; null: the total.",
    )
    verdict_timeout_s: float = VERDICT_TIMEOUT

    @model_validator(mode="before")
    @classmethod
    def _rewards_replace_the_default_verifier(cls, data: object) -> object:
        if isinstance(data, dict) and data.get("rewards") and "verifier" not in data:
            return {**data, "verifier": None}
        return data

    @model_validator(mode="after")
    def _one_way_to_rate(self) -> Self:
        """`verifier` and `rewards` together, or neither; two rewards of one name; `correct_from` that names none."""
        if (self.verifier is None) is not bool(self.rewards):
            raise ValueError(
                f"verifier is {self.verifier!r} and rewards lists {len(self.rewards)}: give one verifier, or a list of "
                "rewards, each with its target"
            )
        labels = [reward.label for reward in self.rewards]
        twice = [label for label, count in Counter(labels).items() if count > 1]
        if twice:
            raise ValueError(f"rewards has {twice[0]!r} more than once: give each another name")
        if self.rewards and self.correct_from is not None and self.correct_from.split("/")[0] not in labels:
            raise ValueError(f"correct_from is {self.correct_from!r}, and rewards has {labels}: name one of these")
        return self

    @property
    def weights(self) -> Mapping[str, float]:
        """Of the parts of the reward that are added up, by name; empty if all count alike."""
        weights = {reward.label: reward.weight for reward in self.rewards}
        return weights if any(weight != 1 for weight in weights.values()) else {}

    @property
    def judge(self) -> FunctionJudge:
        """Rates the cases that `case_of` builds."""
        verifiers = tuple(Verifier(reward.target, reward.weight, reward.label) for reward in self.rewards)
        if self.verifier is not None:
            verifiers = (Verifier(self.verifier, 1.0, None),)
        return FunctionJudge(verifiers, self.correct_at, self.correct_from)


def weights_of(task: object) -> Mapping[str, float]:
    """Weights of the parts of a task's reward, by its configuration."""
    return task.weights if isinstance(task, RatedByFunctions) else {}


def case_of(
    completion: Completion, *, prompt: object, answer: str | None, columns: Mapping[str, Any]
) -> tuple[str, dict[str, Any]]:
    """A case for FunctionJudge: the last turn's text, and the row.

    prompt: text, or a list of chat messages.
    answer: None if the data has none.
    columns: The line's other columns. The row's own keys win over columns of the same name.
    """
    row = {
        **columns,
        "prompt": prompt,
        "answer": answer,
        "turns": list(completion.turns),
        "completion_tokens": completion.tokens,
        "finish_reason": completion.finish_reason,
    }
    return completion.text, row
