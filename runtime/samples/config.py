"""The block `samples`: how much of what the policy says is kept."""

from typing import Literal

from pydantic import Field, NonNegativeInt

from fsm.config.strict import Strict

_HEAD = 0.6
"""Of a text whose middle is left out, the part that is its beginning; answers are at the end."""


class SamplesConfig(Strict):
    """What is kept of the policy's words, in samples.jsonl."""

    per_step: NonNegativeInt | Literal["all"] = Field(
        default=2,
        description="Trained prompt groups a step of which samples are kept, and as many of those that were not "
        "trained. Of a group: the rollout with the highest reward, the one with the lowest, and the first that was cut "
        "off. 0: none; all: every rollout of every group, for which every text goes through the controller.",
    )
    max_characters: int | None = Field(
        default=2000,
        ge=100,
        description="Longest text kept of a prompt or a completion; the middle of a longer one is left out. null: all.",
    )
    table_every_steps: int | None = Field(
        default=10,
        ge=1,
        description="Steps between two tables of samples in TensorBoard and W&B, if they are on; null: no tables.",
    )


def cut_middle(text: str, most: int | None) -> str:
    """A text of at most about `most` characters, with a note where others were left out."""
    if most is None or len(text) <= most:
        return text
    head = round(_HEAD * most)
    return f"{text[:head]}\n[… {len(text) - most:,} characters left out …]\n{text[len(text) - most + head :]}"
