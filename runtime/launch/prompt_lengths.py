"""Prompts of a list are counted in tokens before the run starts, so that too long ones are known, and unknown text.

Of a list with more than COUNTED_MAX prompts a sample is counted. Any other prompt that is too long is a data failure
once its rollout starts (L7), which names its row.
"""

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial

from transformers import PreTrainedTokenizerBase

from fsm.config.blocks import GrpoConfig
from fsm.config.setup import NO_LIMIT_OF_EPOCHS
from runtime.control.messages import Progress
from runtime.evaluation.sets import EvaluationSet
from runtime.launch.preflight import Findings
from runtime.models.text import NotRendered, TextCodec, make_codec, why_empty
from runtime.models.unknown import UnknownText
from runtime.settings import Settings
from runtime.tasks.base import Chat, DataFailure, Task, TaskError
from runtime.tasks.data import load_task
from runtime.tasks.environments.task import EnvironmentTask
from runtime.wording import counted

COUNTED_MAX, SAMPLED, _BATCH = 100_000, 10_000, 1_000
"""Prompts of a list that are all counted; how many of a longer list; how many are encoded at a time."""
NAMED = 3
"""How many too long prompts a message names."""


@dataclass(frozen=True, slots=True)
class _Long:
    where: str
    tokens: int


def count_prompts(settings: Settings, tokenizer: PreTrainedTokenizerBase) -> Generator[Progress, None, Findings]:
    """Count listed prompts, templates included, against `generation.max_prompt_tokens`.

    Training prompts that are too long are data failures, of which `max_skipped_prompts` may occur in a run (L7); a
    validation skips none. Tasks that draw their prompts during the run are not counted.
    """
    try:
        codec = make_codec(tokenizer, settings.data)
        training = load_task(settings.data, "training")
        if isinstance(training, EnvironmentTask):
            return _try_first_prompt(training, codec, settings)
        limit = settings.generation.max_prompt_tokens
        long_training, unknown = yield from _too_long(training, codec, limit, "training")
        held_out = yield from long_held_out(settings.sets, tokenizer)
    except TaskError as error:
        return Findings(refusals=(str(error),))
    refusals, notices = list(held_out.refusals), [*unknown.notices, *held_out.notices]
    sampled = len(_counted(training)) < training.num_prompts and training.is_listed
    if sampled:
        notices.append(
            f"{SAMPLED} of the {counted(training.num_prompts, 'training prompt')} were counted; any other that is "
            f"longer than generation.max_prompt_tokens = {limit} is a data failure once its rollout starts"
        )
    expected = math.ceil(len(long_training) * training.num_prompts / SAMPLED) if sampled else len(long_training)
    skipped = expected * _passes(settings.grpo, training.num_prompts)
    budget = settings.async_rl.rollout_failure.max_skipped_prompts
    if skipped > budget:
        skips = f", or have them skipped, with async_rl.rollout_failure.max_skipped_prompts: {skipped}"
        refused = _refusal(long_training, len(_counted(training)), settings)
        refusals.append(refused + (skips if skipped < NO_LIMIT_OF_EPOCHS else ""))
    elif skipped:
        notices.append(
            f"{len(long_training)} of {counted(len(_counted(training)), 'prompt')} are longer than "
            f"generation.max_prompt_tokens = {settings.generation.max_prompt_tokens} and will be skipped: "
            f"{_named(long_training)}"
        )
    return Findings(tuple(refusals), tuple(notices), (*unknown.unknown, *held_out.unknown))


def long_held_out(
    sets: Sequence[EvaluationSet], tokenizer: PreTrainedTokenizerBase
) -> Generator[Progress, None, Findings]:
    """Refusals of sets with too long prompts, and what the tokenizer does not know of them. Raises TaskError."""
    refusals: list[str] = []
    notices: list[str] = []
    unknown: list[str] = []
    for each in sets:
        task = load_task(each.data, "validation")
        codec = make_codec(tokenizer, each.data)
        found, not_known = yield from _too_long(task, codec, each.max_prompt_tokens, each.name)
        notices += not_known.notices
        unknown += not_known.unknown
        if found:
            refusals.append(
                f"{len(found)} of {counted(len(_counted(task)), 'prompt')} of {each.name} are longer than "
                f"max_prompt_tokens = {each.max_prompt_tokens}: {_named(found)}; set "
                f"generation.max_prompt_tokens or {each.key}.max_prompt_tokens to "
                f"{found[0].tokens}, shorten these prompts or leave them out of the data"
            )
    return Findings(tuple(refusals), tuple(notices), tuple(unknown))


def _try_first_prompt(task: EnvironmentTask, codec: TextCodec, settings: Settings) -> Findings:
    """An environment's prompts are drawn, so the first stands for all. Raises TaskError without a chat template."""
    prompt, limit = task.first_prompt(), settings.generation.max_prompt_tokens
    try:
        ids = codec.encode_prompt(prompt).tolist()
        unknown = UnknownText(codec.tokenizer)
        unknown.look(codec.prompt_text(prompt), ids, lambda: task.where(0))
    except DataFailure as error:
        raise TaskError(f"{task.where(0)}: {error}") from error
    try:
        codec.encode_turn("another turn", in_chat=codec.chat or not isinstance(prompt, str))
    except NotRendered as error:
        raise TaskError(
            f"the chat template does not render a turn after an answer ({error.happened}); correct it, or name another "
            "data.chat_template"
        ) from error
    if len(ids) <= limit:
        return _what_is_unknown(unknown, UnknownText(codec.tokenizer), "the environment")
    return Findings(
        refusals=(
            f"{task.where(0)} has {counted(len(ids), 'token')}, and generation.max_prompt_tokens is {limit}; raise it, "
            "and leave room in it for the turns that follow, or shorten the prompt",
        )
    )


def _passes(grpo: GrpoConfig, num_prompts: int) -> int:
    """Passes over the data, the last one begun; without a limit of epochs, as many as the steps take."""
    if grpo.max_num_epochs is not None:
        return grpo.max_num_epochs
    if grpo.max_num_steps is None:
        return NO_LIMIT_OF_EPOCHS
    return -(-grpo.max_num_steps * grpo.num_prompts_per_step // max(num_prompts, 1))


def _too_long(
    task: Task, codec: TextCodec, limit: int, name: str
) -> Generator[Progress, None, tuple[list[_Long], Findings]]:
    """Too long prompts among the counted ones, the longest first, and what the tokenizer does not know of them.

    There are none for a task that draws its items. name: of the prompts, for messages.

    Templates of a batch are rendered, in another process, while the batch before it is encoded. Raises TaskError for
    messages that the chat template does not take, or of which it leaves nothing.
    """
    found: list[_Long] = []
    prompts, answers = UnknownText(codec.tokenizer), UnknownText(codec.tokenizer)
    indices = _counted(task)
    batch = _begun(task, codec, indices[:_BATCH])
    done = 0
    while done < len(indices):
        texts, begun, taken = batch.texts(task), batch, indices[done:]
        done += len(texts)
        batch = _begun(task, codec, indices[done : done + _BATCH])
        for index, opening, text, ids in zip(taken, begun.openings, texts, codec.token_ids(texts), strict=False):
            if not ids:
                raise TaskError(f"{task.where(index)}: {why_empty(opening)}")
            if len(ids) > limit:
                found.append(_Long(task.where(index), len(ids)))
            prompts.look(text, ids, partial(task.where, index))
        for at in answers.suspects(begun.answers[: len(texts)]):
            answers.look_at(begun.answers[at] or "", partial(task.where, taken[at]))
        yield Progress("counting prompts", done, len(indices))
    return sorted(found, key=lambda long: -long.tokens), _what_is_unknown(prompts, answers, name)


def _what_is_unknown(prompts: UnknownText, answers: UnknownText, name: str) -> Findings:
    """What the tokenizer does not know of prompts, and of the answers that they have."""
    mend = "name another policy.model_name, or change the data"
    notices, unknown = [], []
    if prompts.rows:
        has = f"{counted(prompts.rows, 'prompt')} of {name} {_have(prompts.rows)}"
        unknown.append(f"{has} {prompts.says()}, which the model gets as one and the same token; {mend}")
    if answers.rows:
        has = f"{counted(answers.rows, 'answer')} of {name} {_have(answers.rows)}"
        notices.append(f"{has} {answers.says()}, so that the model cannot write them; {mend}")
    return Findings(notices=tuple(notices), unknown=tuple(unknown))


def _have(rows: int) -> str:
    return "has" if rows == 1 else "have"


@dataclass(frozen=True, slots=True)
class _Batch:
    """Prompts that are being rendered."""

    indices: Sequence[int]
    openings: Sequence[str | Chat]
    answers: Sequence[str | None]
    rendered: Callable[[], list[str]]

    def texts(self, task: Task) -> list[str]:
        """Those of the first prompts, one or more. Raises TaskError for a row that is not rendered."""
        try:
            return self.rendered()
        except NotRendered as error:
            raise TaskError(f"{task.where(self.indices[error.at])}: {error}") from error


def _begun(task: Task, codec: TextCodec, indices: Sequence[int]) -> _Batch:
    """Raises TaskError for a row that cannot be read, or has messages if there is no chat template."""
    openings: list[str | Chat] = []
    answers: list[str | None] = []
    for index in indices:
        try:
            opening = task.opening(index)
        except DataFailure as error:
            raise TaskError(f"{task.where(index)}: {error}") from error
        assert opening is not None, "an environment draws its prompts"
        openings.append(opening)
        answers.append(task.reference(index))
    return _Batch(indices, openings, answers, codec.begin_texts(openings))


def _counted(task: Task) -> Sequence[int]:
    """Which prompts are counted: none of a task that draws them, all of a list, or a sample spread over a long one."""
    prompts = task.num_prompts if task.is_listed else 0
    return range(prompts) if prompts <= COUNTED_MAX else [number * prompts // SAMPLED for number in range(SAMPLED)]


def _refusal(found: list[_Long], prompts: int, settings: Settings) -> str:
    generation, longest = settings.generation, found[0].tokens
    sequence = longest + generation.max_new_tokens
    also = (
        f" and policy.max_total_sequence_length to {sequence}"
        if sequence > settings.policy.max_total_sequence_length
        else ""
    )
    return (
        f"{len(found)} of {counted(prompts, 'prompt')} of training are longer than generation.max_prompt_tokens = "
        f"{generation.max_prompt_tokens}: {_named(found)}; set max_prompt_tokens to {longest}{also}, shorten these "
        "prompts or leave them out of the data"
    )


def _named(found: list[_Long]) -> str:
    more = f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
    return ", ".join(f"{long.where} has {counted(long.tokens, 'token')}" for long in found[:NAMED]) + more
