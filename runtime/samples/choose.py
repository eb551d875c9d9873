"""Which samples to show. Each chooser reads the samples once and keeps only as many as it may show."""

import heapq
import random
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from enum import StrEnum

from runtime.files import Json
from runtime.samples.file import SamplesFile

_COMPARED = 2_000
"""Characters of two completions that are compared, at most: the comparison is quadratic."""


class Pick(StrEnum):
    """The order of choice."""

    NEWEST = "newest"
    BEST = "best"
    WORST = "worst"
    RANDOM = "random"
    CHANGED = "changed"


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which samples are considered. None: all."""

    step: int | None = None
    fate: str | None = None
    truncated: bool = False
    text: str | None = None
    """In the prompt, or in a turn; upper and lower case are the same."""

    def among(self, samples: Iterable[Json]) -> Iterator[Json]:
        """The samples that are wanted."""
        for sample in samples:
            if (
                self.step in (None, sample["step"])
                and self.fate in (None, sample["fate"])
                and (not self.truncated or sample["finish_reason"] == "length")
                and (self.text is None or _has(sample, self.text.lower()))
            ):
                yield sample


def _has(sample: Json, text: str) -> bool:
    return any(text in said.lower() for said in (sample["prompt_text"], *(turn["text"] for turn in sample["turns"])))


def through_time(file: SamplesFile, prompt: int) -> Iterator[Json]:
    """All samples of the item that was prompt number `prompt`, in order: an item has a new number in each epoch."""
    item = next((sample["item"] for sample in file.read() if sample["prompt"] == prompt), None)
    return (sample for sample in file.read() if sample["item"] == item)


def chosen(samples: Iterable[Json], pick: Pick, most: int, seed: int = 0) -> list[Json]:
    """At most `most` samples, the first choice first. Samples of steps that were taken again come in `NEWEST` alone."""
    if pick is Pick.NEWEST:
        return list(deque(samples, maxlen=most))
    lasting = (sample for sample in samples if not sample["again"])
    match pick:
        case Pick.BEST:
            return heapq.nlargest(most, lasting, key=lambda sample: (sample["reward"], sample["step"]))
        case Pick.WORST:
            return heapq.nsmallest(most, lasting, key=lambda sample: (sample["reward"], -sample["step"]))
        case Pick.RANDOM:
            draws = random.Random(seed)
            numbered = ((draws.random(), number, sample) for number, sample in enumerate(lasting))
            drawn = heapq.nlargest(most, numbered)
            return sorted((sample for _, _, sample in drawn), key=lambda sample: sample["step"])
    return [sample for pair in changed_most(lasting, most) for sample in pair]


def changed_most(samples: Iterable[Json], most: int) -> list[tuple[Json, Json]]:
    """The items whose completions changed most between their first step and their last one: a sample of each.

    First by how much the reward changed, then by how little of the words stayed. Of each step it takes the sample of
    lowest sibling number.
    """
    first: dict[int, Json] = {}
    last: dict[int, Json] = {}
    for sample in samples:
        item = sample["item"]
        first.setdefault(item, sample)
        if item not in last or last[item]["step"] != sample["step"]:
            last[item] = sample
    pairs = [(first[item], last[item]) for item in first if first[item]["step"] != last[item]["step"]]
    return heapq.nlargest(most, pairs, key=lambda pair: _change(*pair))


def _change(before: Json, after: Json) -> tuple[float, float]:
    one, other = (said(sample)[:_COMPARED] for sample in (before, after))
    reward = abs(after["reward"] - before["reward"])
    return reward, 1 - SequenceMatcher(None, one, other, autojunk=False).ratio()


def said(sample: Json) -> str:
    """What the policy said, over all turns."""
    return "\n".join(turn["text"] for turn in sample["turns"] if turn["role"] == "policy")
