"""`evenstep try`: the first prompts of a run as the model gets them, and the rewards of some completions.

It samples nothing and starts no Ray: completions are the row's own answer, and wrong ones that any model could give.
What the start of a run would refuse is refused here, except for the machine and the output directory.
"""

import asyncio
from collections.abc import Generator, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from fsm.errors import ConfigError
from runtime.actors.reward_worker import RewardWorker, verdict_threads
from runtime.control.messages import Listener, Notice, Progress
from runtime.evaluation.config import TRAINING
from runtime.generation.config import VllmEngineConfig
from runtime.generation.engine import RequestRefused
from runtime.generation.on_vllm.setup import VllmMissing, check_vllm_installed, logprobs_mode
from runtime.generation.rollouts import encoded_answer
from runtime.launch.model import check_model_and_prompts, source_of, tokenizer_of
from runtime.launch.preflight import Findings, model_size, problems_of_users
from runtime.launch.run import count_items, read_large_data, refuse
from runtime.models.directory import ModelDirectoryProblem
from runtime.models.renderer import SHARED
from runtime.models.text import TextCodec, make_codec
from runtime.settings import Settings
from runtime.tasks.base import Completion, DataFailure, Rated, Task, TaskError
from runtime.tasks.data import Stream, load_task, take
from runtime.tasks.environments.host import EnvironmentLost
from runtime.tasks.environments.pool import EnvironmentPool, HostedEpisode, TurnTooLong
from runtime.tasks.environments.task import EnvironmentTask, open_environments
from runtime.tasks.rows.item import text_of


@dataclass(frozen=True, slots=True)
class TriedCompletion:
    """A completion that no model has sampled, and its verdict."""

    what: str
    """Its origin, such as `its answer`."""
    turns: tuple[str, ...]
    """Texts of the policy and, in an environment, of its answers, by turns."""
    rated: Rated
    is_answer: bool
    """Whether the data says that it is right."""


@dataclass(frozen=True, slots=True)
class TriedPrompt:
    """A prompt of training, and what its completions are worth."""

    where: str
    text: str
    """As the model gets it, with templates and special tokens."""
    tokens: int
    completions: tuple[TriedCompletion, ...]


def try_out(settings: Settings, prompts: int, listener: Listener) -> list[TriedPrompt]:
    """The first so many prompts in the order in which a run takes them.

    `listener` gets notices and progress, as of a run. Raises ConfigError for what a run would refuse.
    """
    read_large_data(settings, listener)
    refuse([*problems_of_users(settings, lambda text: listener(Notice(text))), *_problems_of_model(settings, listener)])
    num_prompts, _ = count_items(settings, lambda text: listener(Notice(text)))
    found = _heard(check_model_and_prompts(settings), listener)
    for notice in found.notices:
        listener(Notice(notice))
    refuse(found.refusals)
    data = settings.data
    items, _ = take(Stream(num_prompts, data.seed, data.shuffle, max_epochs=1), prompts)
    try:
        codec = make_codec(tokenizer_of(source_of(settings)), data)
        return asyncio.run(_try(settings, codec, [item.index for item in items], listener))
    except (TaskError, DataFailure, EnvironmentLost) as error:
        raise ConfigError(f"the run cannot start: {error}") from None
    finally:
        SHARED.close()


def _problems_of_model(settings: Settings, listener: Listener) -> Iterator[str]:
    """Why the model or the engine is refused. An engine that is not installed here may be where the run will be."""
    try:
        model_size(settings.policy.model_name)
    except ModelDirectoryProblem as problem:
        yield str(problem)
    if not isinstance(settings.generation.engine, VllmEngineConfig):
        return
    try:
        logprobs_mode(settings.generation)
        check_vllm_installed()
    except RequestRefused as refused:
        yield str(refused)
    except VllmMissing as missing:
        listener(Notice(f"evenstep train will not start here: {missing}"))


def _heard(found: Generator[Progress, None, Findings], listener: Listener) -> Findings:
    """The result of a generator, whose progress goes to `listener`."""
    while True:
        try:
            listener(next(found))
        except StopIteration as end:
            result: Findings = end.value
            return result


async def _try(settings: Settings, codec: TextCodec, indices: Sequence[int], listener: Listener) -> list[TriedPrompt]:
    data, cluster = settings.data, settings.cluster
    task = load_task(data, "training")
    async with AsyncExitStack() as stack:
        if isinstance(task, EnvironmentTask):
            pools = await open_environments({TRAINING: (data, settings.generation.max_prompt_tokens)}, stack)
            return [await _try_episodes(pools[TRAINING], task, codec, index, data.max_turns) for index in indices]
        threads = verdict_threads(data, cluster.reward_threads, cluster.reward_processes)
        rewards = RewardWorker(
            data.model_copy(update={"delay": None}),
            threads,
            cluster.reward_processes,
            memory_mib=cluster.reward_memory_mib,
        )
        stack.push_async_callback(rewards.close)
        said = [_completions(task, index, indices) for index in indices]
        groups = [
            (index, [Completion((text,), codec.count_tokens([text])[0] + 1, "stop") for text in texts.values()])
            for index, texts in zip(indices, said, strict=True)
        ]
        scored = await rewards.score(groups)
        if scored.notice is not None:
            listener(Notice(scored.notice))
        return [
            _prompt(task, codec, index, texts, rated)
            for index, texts, rated in zip(indices, said, scored.groups, strict=True)
        ]


_ANSWER = "its answer"


def _completions(task: Task, index: int, others: Sequence[int]) -> dict[str, str]:
    """By origin: the answer, if there is one, and others that should be worth less, each text once."""
    answer = task.reference(index)
    said = {} if answer is None else {_ANSWER: answer}
    for other in (*others, (index + 1) % task.num_prompts):
        reference = task.reference(other)
        if other != index and reference not in (None, answer):
            said[f"the answer of {task.where(other)}"] = reference
            break
    said |= {"nothing": "", "the prompt": task.prompt(index)}
    first: dict[str, str] = {}
    for what, text in said.items():
        first.setdefault(text, what)
    return {what: text for text, what in first.items()}


def _prompt(task: Task, codec: TextCodec, index: int, texts: dict[str, str], rated: Sequence[Rated]) -> TriedPrompt:
    opening = task.opening(index)
    assert opening is not None, "an environment has no such texts"
    text = codec.prompt_text(opening)
    completions = tuple(
        TriedCompletion(what, (said,), verdict, what == _ANSWER)
        for (what, said), verdict in zip(texts.items(), rated, strict=True)
    )
    return TriedPrompt(task.where(index), text, codec.count_tokens([text])[0], completions)


async def _try_episodes(
    pool: EnvironmentPool, task: EnvironmentTask, codec: TextCodec, index: int, max_turns: int
) -> TriedPrompt:
    """An episode of the demonstration, if there is one, and one in which the policy says nothing."""
    shown = task.demonstration(index)
    completions: list[TriedCompletion] = []
    text, tokens = "", 0
    said = {} if shown is None else {"the demonstration": shown[1::2]}
    for what, turns in {**said, "nothing": ("",) * max_turns}.items():
        episode = await pool.open("training", index)
        try:
            text, tokens = codec.prompt_text(episode.prompt), len(codec.encode_prompt(episode.prompt))
            conversation, rated = await _play(episode, codec, turns, max_turns)
        finally:
            await episode.close()
        completions.append(TriedCompletion(what, tuple(conversation), rated, what != "nothing"))
    return TriedPrompt(task.where(index), text, tokens, tuple(completions))


async def _play(
    episode: HostedEpisode, codec: TextCodec, turns: Sequence[str], max_turns: int
) -> tuple[list[str], Rated]:
    """What both sides say, and the verdict; why there is none if training could not render what is said."""
    conversation: list[str] = []
    try:
        for turn in turns[:max_turns]:
            conversation.append(turn)
            if len(conversation[::2]) == max_turns:
                break
            answer = await episode.respond(turn)
            if answer is None:
                break
            conversation.append(answer if isinstance(answer, str) else text_of(answer))
            await encoded_answer(codec, episode.prompt, answer)
        policy = tuple(conversation[::2])
        return conversation, await episode.verdict(Completion(policy, tokens=len(policy), finish_reason="stop"))
    except TurnTooLong:
        return conversation, "the environment's next turn is longer than generation.max_prompt_tokens allows"
    except (DataFailure, TaskError) as failure:
        return conversation, str(failure)
