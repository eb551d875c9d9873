"""Evaluation sets where an engine samples them: in a generation worker, and in `evenstep eval`."""

from collections.abc import Callable, Mapping, Sequence

from transformers import PreTrainedTokenizerBase

from runtime.evaluation.sets import EvaluationSet, HeldOut
from runtime.generation.engine import Engine
from runtime.generation.evaluate import RateGroups, evaluate
from runtime.generation.rollouts import Encoded, encode_item
from runtime.groups import Evaluation, HeldOutPrompt
from runtime.models.text import make_codec
from runtime.tasks.data import load_task
from runtime.tasks.environments.pool import EnvironmentPool
from runtime.tasks.environments.task import open_of


class Examiner:
    """Measures sets on one engine, without interrupting its other work."""

    def __init__(
        self,
        engine: Engine,
        tokenizer: PreTrainedTokenizerBase,
        sets: Sequence[EvaluationSet],
        environments: Mapping[str, EnvironmentPool],
    ) -> None:
        """environments: those of the sets that have one, by name. Raises TaskError for a set whose data is wrong."""
        self._engine = engine
        self._environments = environments
        self._sets = {each.name: each for each in sets}
        self.tasks = {each.name: load_task(each.data, "validation") for each in sets}
        self._codecs = {each.name: make_codec(tokenizer, each.data) for each in sets}

    @property
    def held_out(self) -> HeldOut:
        return {name: task.num_prompts for name, task in self.tasks.items()}

    async def encode(self, name: str, indices: Sequence[int]) -> dict[int, Encoded]:
        """Prompts of a set, by index."""
        return {index: await encode_item(self.tasks[name], self._codecs[name], index) for index in indices}

    async def measure(
        self,
        name: str,
        label: str,
        prompts: Mapping[int, Encoded],
        rate: RateGroups,
        ended: Callable[[HeldOutPrompt], None] = lambda prompt: None,
    ) -> Evaluation:
        """Roll out these prompts of a set, as `encode` gives them. Calls `ended` with each that is rated.

        Raises the errors of `evaluate`.

        label: begins the request ids; no other request in flight may begin with it.
        """
        chosen = self._sets[name]
        return await evaluate(
            self._engine,
            self.tasks[name],
            self._codecs[name],
            rate,
            prompts=prompts,
            sampling=chosen.sampling,
            seed=chosen.seed,
            label=label,
            max_prompt_tokens=chosen.max_prompt_tokens,
            rollouts_per_prompt=chosen.rollouts_per_prompt,
            max_turns=chosen.data.max_turns,
            ended=ended,
            open_episode=open_of(self._environments, name, "validation"),
            limit_key=f"{chosen.key}.max_prompt_tokens",
        )
