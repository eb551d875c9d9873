"""In the generation worker: which rollouts of a group are kept as samples, and their lines as far as they are known.

The choice depends on the prompt's number, on the item and on the verdicts alone, so every attempt makes the same one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest

from runtime.files import Json
from runtime.generation.rollouts import Sample, SampledGroup
from runtime.groups import RolloutGroup
from runtime.models.text import TextCodec
from runtime.samples.config import SamplesConfig, cut_middle
from runtime.tasks.base import Task, Verdict
from runtime.training.batching import advantages_of, in_the_loss
from runtime.training.config import LossConfig

_SHORTEST_TURN = 100
"""Characters kept of each turn of a long conversation at least."""


@dataclass(frozen=True, slots=True)
class SampleTaker:
    """Makes samples of the groups of a run."""

    config: SamplesConfig
    loss: LossConfig
    num_prompts_per_step: int
    task: Task
    codec: TextCodec

    def wants(self, prompt: int, index: int) -> bool:
        """Whether samples of a group are taken.

        They are of every so many prompts, and of the first items in each epoch: those can be followed through time.
        """
        per_step = self.config.per_step
        if per_step == "all":
            return True
        return per_step > 0 and (index < per_step or prompt % max(1, self.num_prompts_per_step // per_step) == 0)

    def take(self, sampled: SampledGroup, group: RolloutGroup, verdicts: Sequence[Verdict]) -> tuple[Json, ...]:
        """Lines of samples.jsonl for the kept rollouts of a rated group, without step and fate."""
        if not self.wants(sampled.prompt, sampled.index):
            return ()
        advantages = advantages_of(group, self.loss)
        prompt_text = cut_middle(self._asked(sampled), self.config.max_characters)
        where = self.task.where(sampled.index)
        return tuple(
            {
                "prompt": sampled.prompt,
                "item": sampled.index,
                "where": where,
                "sibling": sibling,
                "siblings": len(verdicts),
                "prompt_text": prompt_text,
                "turns": self._turns(sampled.samples[sibling]),
                "tokens": sampled.samples[sibling].completion.tokens,
                "finish_reason": sampled.samples[sibling].completion.finish_reason,
                "reward": verdicts[sibling].reward,
                "parts": dict(verdicts[sibling].parts),
                "weights": dict(self.task.weights),
                "correct": verdicts[sibling].correct,
                "advantage": advantages[sibling],
                "masked": not in_the_loss(group.rollouts[sibling], self.loss),
                "start_weight": group.start_weight,
                "end_weight": group.end_weight,
            }
            for sibling in self._siblings(sampled, verdicts)
        )

    def _asked(self, sampled: SampledGroup) -> str:
        """The prompt as the model got it, with templates and special tokens."""
        begins = (sample.token_ids[: sample.ends[0]] for sample in sampled.samples)
        prompt = next((ids for ids in begins if len(ids)), None)
        return self.task.prompt(sampled.index) if prompt is None else self.codec.decode_whole(prompt)

    def _siblings(self, sampled: SampledGroup, verdicts: Sequence[Verdict]) -> list[int]:
        """All; or the first of highest reward, the last of lowest, and the first that was cut off."""
        numbers = range(len(verdicts))
        if self.config.per_step == "all":
            return list(numbers)
        best = max(numbers, key=lambda number: (verdicts[number].reward, -number))
        worst = min(numbers, key=lambda number: (verdicts[number].reward, -number))
        truncated = [number for number in numbers if not sampled.samples[number].finished][:1]
        return sorted({best, worst, *truncated})

    def _turns(self, sample: Sample) -> list[dict[str, str]]:
        """The conversation after the prompt. The environment's turns are as the chat template renders them."""
        most = self.config.max_characters
        answers = _environment_turns(sample, self.codec)
        if most is not None:
            most = max(most // (len(sample.turns) + len(answers)), _SHORTEST_TURN)
        turns: list[dict[str, str]] = []
        for said, answer in zip_longest(sample.turns, answers):
            if said is not None:
                turns.append({"role": "policy", "text": cut_middle(said, most)})
            if answer is not None:
                turns.append({"role": "environment", "text": cut_middle(answer, most)})
        return turns


def _environment_turns(sample: Sample, codec: TextCodec) -> list[str]:
    """The texts between the policy's turns. An empty turn of a task without chat has no tokens, and is one anyway."""
    return [codec.decode(sample.token_ids[begin:end]) for begin, end in list(pairwise(sample.ends))[1::2]]
