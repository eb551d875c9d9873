"""`evenstep eval` from its settings to its figures, in this process: an engine, and verdicts in their own processes.

The sets are sampled and rated by the code of a generation worker and a reward worker (`Examiner`, `RewardWorker`), in
the same parts as during a run of one worker. So the same weights give the accuracy that the run has printed.
"""

import asyncio
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from safetensors.torch import load_file
from transformers import PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

from fsm.errors import ConfigError
from runtime.actors.generation_worker import to_be_rated
from runtime.actors.policy_host import open_engine
from runtime.actors.reward_worker import RewardWorker, pool_size, verdict_threads
from runtime.checkpoints.origin import identity_of
from runtime.control.messages import Progress
from runtime.evaluation.examiner import Examiner
from runtime.evaluation.figures import Figures, figures_of
from runtime.evaluation.sets import PART_PROMPTS, PARTS_AT_A_TIME, EvaluationSet, engine_limits, keys_of_limits
from runtime.generation.config import GenerationConfig, TorchEngineConfig, VllmEngineConfig
from runtime.generation.engine import RequestRefused, WeightsMismatch
from runtime.generation.on_torch.self_check import check_supported
from runtime.generation.on_vllm.setup import VllmMissing, check_vllm_installed
from runtime.generation.rollouts import SampledGroup, gather_or_cancel
from runtime.groups import Evaluation, HeldOutPrompt, joined
from runtime.launch.examinee import Examinee
from runtime.launch.model import check_stops, prepare_model, template_refusals
from runtime.launch.preflight import Findings, set_problems, trained_sets
from runtime.launch.prompt_lengths import long_held_out
from runtime.models.directory import ModelDirectoryProblem, UnsupportedModel, inspect_model
from runtime.models.loading import load_tokenizer
from runtime.models.renderer import SHARED, RenderingLost
from runtime.models.smollm2 import ModelPackageMissing
from runtime.models.text import model_stop_tokens
from runtime.models.weights import model_without_memory, to_numpy
from runtime.settings import Settings
from runtime.tasks.base import DataFailure, Rated, Scored, Task, TaskError
from runtime.tasks.environments.task import open_environments

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class SetProgress:
    """How far a set is."""

    name: str
    rated: int
    """Prompts of `prompts` in all."""
    prompts: int
    accuracy: float
    """Of those that are rated."""


Watch = Callable[[SetProgress], None]


@dataclass(frozen=True, slots=True)
class AskedPrompt:
    """A prompt as messages show it. It is read before anything is measured, since files may go meanwhile."""

    where: str
    prompt: str


@dataclass(frozen=True, slots=True)
class Measured:
    """A set and its evaluation."""

    chosen: EvaluationSet
    evaluation: Evaluation
    figures: Figures
    seconds: float
    """From its first request to its last verdict."""
    asked: Sequence[AskedPrompt]
    """Its prompts by their number in the set."""

    def as_json(self) -> dict[str, Any]:
        """Its sampling and figures, and every prompt with its rollouts."""
        sampling = self.chosen.sampling
        return {
            "sampling": {
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "top_k": sampling.top_k,
                "max_new_tokens": sampling.max_new_tokens,
                "rollouts_per_prompt": self.chosen.rollouts_per_prompt,
                "seed": self.chosen.seed,
            },
            **self.figures.as_json(),
            "seconds": self.seconds,
            "per_prompt": [_prompt_as_json(prompt, self.asked[prompt.index]) for prompt in self.evaluation.prompts],
        }


def _prompt_as_json(prompt: HeldOutPrompt, asked: AskedPrompt) -> dict[str, Any]:
    return {
        "index": prompt.index,
        "where": asked.where,
        "prompt": asked.prompt,
        "rollouts": [
            {
                "correct": rollout.correct,
                **_verdict_as_json(rollout.verdict),
                "tokens": rollout.tokens,
                "finish_reason": "stop" if rollout.finished else "length",
                "turns": list(rollout.turns),
            }
            for rollout in prompt.rollouts
        ],
    }


def _verdict_as_json(verdict: Rated) -> dict[str, Any]:
    if isinstance(verdict, str):
        return {"reward": None, "reward_parts": {}, "without_verdict": verdict}
    return {"reward": verdict.reward, "reward_parts": dict(verdict.parts), "without_verdict": None}


def measure(
    settings: Settings, examinee: Examinee, sets: Sequence[EvaluationSet], tell: Tell, watch: Watch
) -> list[Measured]:
    """Measure sets of the settings, one after the other.

    tell: gets what a user should know, and what takes long.
    Raises ConfigError for what cannot be measured, with the remedy; PolicyNotFinite for a model that gives no numbers.
    """
    with TemporaryDirectory(prefix="evenstep-eval-") as made:
        try:
            directory = _directory_of(settings, examinee, Path(made) / "model")
            tokenizer = load_tokenizer(directory)
            stops = model_stop_tokens(tokenizer, directory)
            _refuse_long_sequences(settings, sets, directory)
            problems = list(dict.fromkeys(_problems(settings, sets, tokenizer, stops, tell)))
            if problems:
                raise ConfigError("\n  - ".join(["nothing can be measured:", *problems]))
            return asyncio.run(_measure(settings, sets, directory, examinee.weights, stops, tell, watch))
        except (
            DataFailure, TaskError, ModelDirectoryProblem, ModelPackageMissing, UnsupportedModel, RenderingLost,
            RequestRefused, VllmMissing, WeightsMismatch,
        ) as problem:  # fmt: skip
            raise ConfigError(f"nothing can be measured: {problem}") from None
        finally:
            SHARED.close()


def _directory_of(settings: Settings, examinee: Examinee, made: Path) -> Path:
    """The examinee's model directory; `made` for one that the package makes. Raises what `inspect_model` does."""
    policy = settings.policy.model_copy(update={"model_name": examinee.model_name})
    directory = prepare_model(settings.model_copy(update={"policy": policy}), made)
    inspect_model(directory)
    return directory


def _refuse_long_sequences(settings: Settings, sets: Sequence[EvaluationSet], directory: Path) -> None:
    """Raise UnsupportedModel, with the keys at fault, for sequences that the torch engine cannot compute."""
    generation, limits = settings.generation, _engine_of(settings, sets)
    if not isinstance(generation.engine, TorchEngineConfig):
        return
    unused = {"max_prompt_tokens": generation.max_prompt_tokens > limits.max_prompt_tokens}
    unused["max_new_tokens"] = generation.max_new_tokens > limits.max_new_tokens
    keys = keys_of_limits(
        generation.model_copy(update={key: 0 for key, is_unused in unused.items() if is_unused}), sets
    )
    check_supported(model_without_memory(directory), limits.max_prompt_tokens + limits.max_new_tokens, keys)


def _problems(
    settings: Settings,
    sets: Sequence[EvaluationSet],
    tokenizer: PreTrainedTokenizerBase,
    stops: tuple[int, ...],
    tell: Tell,
) -> Iterator[str]:
    """Why sets cannot be measured, found before the model is loaded."""
    if isinstance(settings.generation.engine, VllmEngineConfig):
        check_vllm_installed()
    if not sets:
        yield (
            "no prompts are held out, since data.validation_size is 0: set it to how many to measure, or name sets in "
            "validation.sets"
        )
    cluster = settings.cluster
    size = pool_size(_threads(settings, sets), cluster.reward_processes, cluster.reward_memory_mib)
    found = (
        trained_sets(settings.data, sets)
        or set_problems(sets, replace(size, processes=1), tell)
        or template_refusals([each.data for each in sets], tokenizer)
    )
    yield from found
    if found:
        return
    counted_sets = _result_of(long_held_out(sets, tokenizer))
    yield from counted_sets.refusals
    notices: dict[str, None] = dict.fromkeys((*counted_sets.unknown, *counted_sets.notices))
    for data in (each.data for each in sets):
        findings = check_stops(settings.model_copy(update={"data": data}), tokenizer, stops)
        yield from findings.refusals
        notices |= dict.fromkeys(findings.notices)
    for notice in notices:
        tell(notice)
    for each in sets:
        if each.rollouts_per_prompt > 1 and each.sampling.temperature == 0:
            tell(
                f"{each.key} samples {each.rollouts_per_prompt} completions of each prompt at temperature 0, and they "
                "are all equal: one is enough"
            )


def _result_of(steps: Generator[Progress, None, Findings]) -> Findings:
    """The result of a generator whose progress nobody sees."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: Findings = end.value
            return result


def _threads(settings: Settings, sets: Sequence[EvaluationSet]) -> int:
    cluster = settings.cluster
    return max([1, *(verdict_threads(each.data, cluster.reward_threads, cluster.reward_processes) for each in sets)])


async def _measure(
    settings: Settings,
    sets: Sequence[EvaluationSet],
    directory: Path,
    weights: Path | None,
    stops: tuple[int, ...],
    tell: Tell,
    watch: Watch,
) -> list[Measured]:
    if not sys.stderr.isatty():
        disable_progress_bar()  # transformers' bar of the weights
    tell(f"loading the model (engine: {settings.generation.engine.name})")
    async with AsyncExitStack() as stack:
        stack.callback(SHARED.close)
        engine = await stack.enter_async_context(open_engine(directory, _engine_of(settings, sets), stops))
        if weights is not None:
            stored = load_file(weights / "model.safetensors")
            await engine.load_weights({name: to_numpy(tensor) for name, tensor in stored.items()}, version=1)
        tokenizer = load_tokenizer(directory)
        datas = {each.name: (each.data, each.max_prompt_tokens) for each in sets}
        environments = await open_environments(datas, stack)
        examiner = Examiner(engine, tokenizer, sets, environments)
        asked = {name: _asked(task) for name, task in examiner.tasks.items()}
        cluster = settings.cluster
        began_with = {name: identity_of(task) for name, task in examiner.tasks.items() if task.is_listed}
        rewards = RewardWorker(
            None,
            _threads(settings, sets),
            cluster.reward_processes,
            began_with,
            sets,
            memory_mib=cluster.reward_memory_mib,
        )
        stack.push_async_callback(rewards.close)
        return [await _measure_set(examiner, rewards, each, asked[each.name], tell, watch) for each in sets]


def _engine_of(settings: Settings, sets: Sequence[EvaluationSet]) -> GenerationConfig:
    """An engine for the sets alone. Without a sampling of its own, since vLLM would check that it can be trained on."""
    alone = {"max_prompt_tokens": 1, "max_new_tokens": 1, "temperature": 1.0, "top_p": 1.0, "top_k": None}
    return engine_limits(settings.generation.model_copy(update=alone), sets)


def _asked(task: Task) -> list[AskedPrompt]:
    """Raises DataFailure for a file that was changed."""
    return [AskedPrompt(task.where(index), task.prompt(index)) for index in range(task.num_prompts)]


async def _measure_set(
    examiner: Examiner,
    rewards: RewardWorker,
    chosen: EvaluationSet,
    asked: Sequence[AskedPrompt],
    tell: Tell,
    watch: Watch,
) -> Measured:
    """In parts, as the fleet does."""
    began_s = time.monotonic()
    prompts = examiner.held_out[chosen.name]
    right: list[int] = []
    """Correct rollouts of each prompt that is rated."""
    places = asyncio.Semaphore(PARTS_AT_A_TIME)

    async def rate(groups: Sequence[SampledGroup]) -> Scored:
        return await rewards.score(to_be_rated(groups), chosen.name)

    def ended(prompt: HeldOutPrompt) -> None:
        right.append(sum(rollout.correct for rollout in prompt.rollouts))
        rollouts = len(right) * chosen.rollouts_per_prompt
        watch(SetProgress(chosen.name, len(right), prompts, sum(right) / rollouts))

    async def part(first: int) -> Evaluation:
        async with places:
            encoded = await examiner.encode(chosen.name, range(first, min(first + PART_PROMPTS, prompts)))
            return await examiner.measure(chosen.name, chosen.name, encoded, rate, ended)

    parts = await gather_or_cancel([asyncio.create_task(part(first)) for first in range(0, prompts, PART_PROMPTS)])
    evaluation = joined(parts)
    for notice in dict.fromkeys(evaluation.notices):
        tell(notice)
    return Measured(chosen, evaluation, figures_of(evaluation), time.monotonic() - began_s, asked)
