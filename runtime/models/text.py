"""From a task's texts to a model's tokens, and back."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedTokenizerBase

from runtime.models.directory import end_tokens
from runtime.models.render_process import RAISED, SYNTAX, Conversation, Rendering
from runtime.models.renderer import SHARED, Renderer, TemplateFault
from runtime.models.template_syntax import said_of_syntax
from runtime.tasks.base import Chat, DataFailure, TaskError
from runtime.tasks.config import DataConfig
from runtime.tasks.data import read_chat_template

_ANSWER, _QUESTION = "evenstep-answer", "evenstep-question"
"""Texts that no template contains."""
_MEND_TEMPLATE = "correct the template, name another in data.chat_template, or raise data.chat_template_timeout_s"
_USER, _ASSISTANT = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}


class NotRendered(DataFailure):
    """The chat template does not render messages; `happened` says what went wrong, and where in the template.

    at: the number of the prompt among those given. refused: an expression of the template raised, as it may for some
    messages; otherwise the template is at fault.
    """

    def __init__(self, told: str, *, at: int, happened: str, refused: bool) -> None:
        super().__init__(told)
        self.at, self.happened, self.refused = at, happened, refused


@dataclass(frozen=True, slots=True)
class TextCodec:
    """Encodes prompts and the environment's turns; decodes completions.

    Chat templates are rendered in another process (`renderer`), for which a call waits: on an event loop, make the
    call in a thread. Any call may raise RenderingLost.
    """

    tokenizer: PreTrainedTokenizerBase
    prompt_template: str = "{prompt}"
    chat: bool = False
    system_prompt: str | None = None
    chat_template: str | None = None
    """Jinja; None for the tokenizer's."""
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    chat_template_file: Path | None = None
    """Where the Jinja comes from, for messages."""
    chat_template_timeout_s: float = 10.0
    renderer: Renderer = SHARED

    def renders(self, prompt: str | Chat) -> bool:
        """Whether a prompt goes through the chat template."""
        return self.chat or isinstance(prompt, Chat)

    def encode_prompt(self, prompt: str | Chat) -> npt.NDArray[np.int32]:
        """Token ids (P,) of `prompt_text`. Raises as that does, and DataFailure if there is none."""
        ids = self._encode(self.prompt_text(prompt))
        if not len(ids):
            raise DataFailure(why_empty(prompt))
        return ids

    def prompt_text(self, prompt: str | Chat) -> str:
        """A task's prompt inside the template and the chat template.

        Messages always go through the chat template. They have the system prompt if they bring none. Raises TaskError
        if there is no chat template, and NotRendered.
        """
        return self.begin_texts([prompt])()[0]

    def begin_texts(self, prompts: Sequence[str | Chat]) -> Callable[[], list[str]]:
        """Begin to render prompts; the result waits for the texts of the first of them, one or more.

        Raises TaskError if there is no chat template. The result raises NotRendered.
        """
        asked = [self._asked(prompt) for prompt in prompts]
        places = [place for place, each in enumerate(asked) if not isinstance(each, str)]
        if not places:
            return lambda: [each for each in asked if isinstance(each, str)]
        rendering = self.renderer.begin(self._rendering([each for each in asked if not isinstance(each, str)]))

        def texts() -> list[str]:
            try:
                rendered = rendering.result()
            except TemplateFault as fault:
                raise self._blamed(fault, asked[places[fault.at]], places[fault.at]) from fault
            known = dict(zip(places, rendered, strict=False))
            end = places[len(rendered)] if len(rendered) < len(places) else len(asked)
            return [each if isinstance(each, str) else known[place] for place, each in enumerate(asked[:end])]

        return texts

    def _asked(self, prompt: str | Chat) -> str | Conversation:
        """A prompt inside the template, or what the chat template gets."""
        if isinstance(prompt, str):
            text = self.prompt_template.replace("{prompt}", prompt)
            if not self.chat:
                return text
            prompt = Chat(({"role": "user", "content": text},))
        brings_one = prompt.messages[0]["role"] == "system"
        messages = [*([] if brings_one else self._system()), *prompt.messages]
        return self._conversation(messages, prompt.tools)

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """How many token ids each text has, in one batch. Raises DataFailure for one that is no valid text."""
        return [len(ids) for ids in self.token_ids(texts)]

    def token_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """The token ids of each text, in one batch. Raises DataFailure for one that is no valid text."""
        for text in texts:
            _check_text(text)
        return list(self.tokenizer(list(texts), add_special_tokens=False)["input_ids"])

    def encode_turn(
        self, turn: str | Sequence[Mapping[str, Any]], ended_with: int | None = None, *, in_chat: bool | None = None
    ) -> npt.NDArray[np.int32]:
        """Token ids of an environment's turn after a completion, up to the start of the policy's next turn.

        turn: a text, which is the user's message in a chat, or messages.
        ended_with: the completion's stop token. If it also opens the next turn (GLM's <|user|>), it is not repeated.
        in_chat: whether a text goes through the chat template, as after messages; None: as `data.chat` says.
        """
        if isinstance(turn, str) and not (self.chat if in_chat is None else in_chat):
            return self._encode(turn)
        messages = [{"role": "user", "content": turn}] if isinstance(turn, str) else turn
        # A completion ends with its stop token; the template determines the text from there to the next turn.
        before, after = self._render(
            self._conversation([_USER, _ASSISTANT], open_turn=False), self._conversation([_USER, _ASSISTANT, *messages])
        )
        before = before.rstrip()
        if not after.startswith(before):
            raise TaskError(
                "the tokenizer's chat template rewrites earlier turns when another follows, so turns cannot be "
                "appended to what was sampled; set data.chat to false, or data.max_turns to 1"
            )
        ids = self._encode(after[len(before) :])
        return ids[1:] if ended_with is not None and ids[:1].tolist() == [ended_with] else ids

    def after_an_answer(self) -> tuple[int, ...]:
        """Token ids of the chat template between an answer and the text of the turn after it.

        Empty if the template rewrites answers. Raises NotRendered if it does not allow such turns.
        """
        turns = [*self._system(), _USER, {"role": "assistant", "content": _ANSWER}]
        _, found, after = self._render(self._conversation(turns, open_turn=False))[0].rpartition(_ANSWER)
        if found and not after.strip():
            question = {"role": "user", "content": _QUESTION}
            (followed,) = self._render(self._conversation([*turns, question], open_turn=False))
            after = followed.rpartition(_QUESTION)[0].rpartition(_ANSWER)[2]
        return tuple(self._encode(after).tolist()) if found else ()

    def decode(self, token_ids: npt.NDArray[np.int32]) -> str:
        """The text of tokens, without special ones."""
        return str(self.tokenizer.decode(token_ids.tolist(), skip_special_tokens=True))

    def decode_whole(self, token_ids: npt.NDArray[np.int32]) -> str:
        """The text of tokens, with special ones."""
        return str(self.tokenizer.decode(token_ids.tolist(), skip_special_tokens=False))

    def _encode(self, text: str) -> npt.NDArray[np.int32]:
        _check_text(text)
        return np.array(self.tokenizer.encode(text, add_special_tokens=False), dtype=np.int32)

    def _system(self) -> list[dict[str, str]]:
        return [] if self.system_prompt is None else [{"role": "system", "content": self.system_prompt}]

    def template_refusal(self) -> str | None:
        """Why a chat template is of no use: it is no Jinja, or takes too much time or memory; None if it may be.

        A template may refuse the chat that it is tried on, which is made up.
        """
        try:
            self._render(self._conversation([_USER]))
        except NotRendered as error:
            if error.refused or error.happened == str(error):  # no Jinja
                return None if error.refused else str(error)
            return f"the chat template does not render evenstep's own trial message: {error.happened}; {_MEND_TEMPLATE}"
        return None

    def _render(self, *asked: Conversation) -> list[str]:
        """The texts of a few conversations. Raises NotRendered."""
        try:
            return self.renderer.render(self._rendering(asked))
        except TemplateFault as fault:
            raise self._blamed(fault, asked[fault.at], fault.at) from fault

    def _rendering(self, asked: Sequence[Conversation]) -> Rendering:
        variables = {**self.tokenizer.special_tokens_map, **self.chat_template_kwargs}
        return Rendering(variables, asked, self.chat_template_timeout_s)

    def _conversation(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        open_turn: bool = True,
    ) -> Conversation:
        """What the other process gets: plain dictionaries. Raises TaskError if there is no chat template."""
        if self.chat_template is None and self.tokenizer.chat_template is None:
            raise TaskError(
                f"the tokenizer of the model {self.tokenizer.name_or_path!r} has no chat template, and a task gives "
                "messages; use an instruction-tuned model, name a Jinja file in data.chat_template (with data.chat: "
                "true), or use a task that gives texts"
            )
        given = [dict(tool) for tool in tools]
        template = self.tokenizer.get_chat_template(self.chat_template, given or None)
        return Conversation(template, [dict(message) for message in messages], given, open_turn)

    def _blamed(self, fault: TemplateFault, asked: str | Conversation, at: int) -> NotRendered:
        """The failure of a prompt, or of turns, by file and line of the template."""
        file, line = self.chat_template_file, fault.line
        if file is None:
            where = "the tokenizer's chat template" if line is None else f"line {line} of the tokenizer's chat template"
        else:
            where = str(file) if line is None else f"{file}:{line}"
        happened = f"{where}: {fault.happened}"
        if fault.kind == SYNTAX:
            told = f"{where}: {said_of_syntax(fault.happened)}"
            return NotRendered(told, at=at, happened=told, refused=False)
        remedy = (
            "correct the messages or data.chat_template_kwargs, or name another data.chat_template"
            if fault.kind == RAISED
            else _MEND_TEMPLATE
        )
        messages = asked if isinstance(asked, str) else list(asked.messages)
        told = f"the chat template does not render the messages {messages!r:.300}: {happened}; {remedy}"
        return NotRendered(told, at=at, happened=happened, refused=fault.kind == RAISED)


def _check_text(text: str) -> None:
    """Raise DataFailure for a text that no tokenizer reads."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataFailure(f"{text!r:.300} is no valid text ({error}); correct it") from error


def why_empty(prompt: str | Chat) -> str:
    """Why a prompt cannot be sampled from that has no token once it is rendered."""
    given = prompt if isinstance(prompt, str) else [dict(message) for message in prompt.messages]
    return (
        f"its prompt has 0 tokens: {given!r:.200} is rendered as an empty text; correct the row, or the chat template, "
        "which may leave out messages whose role or keys it does not know"
    )


def make_codec(tokenizer: PreTrainedTokenizerBase, data: DataConfig) -> TextCodec:
    """The codec of the `data:` block. Raises TaskError if it needs a chat template and there is none."""
    template = read_chat_template(data)
    if data.chat and template is None and tokenizer.chat_template is None:
        raise TaskError(
            f"data.chat is true and the tokenizer of the model {tokenizer.name_or_path!r} has no chat template; use an "
            "instruction-tuned model, name a Jinja file in data.chat_template, or set data.chat to false"
        )
    return TextCodec(
        tokenizer,
        data.prompt_template,
        data.chat,
        data.system_prompt,
        template,
        data.chat_template_kwargs,
        data.chat_template,
        data.chat_template_timeout_s,
    )


def model_stop_tokens(tokenizer: PreTrainedTokenizerBase, directory: Path | None) -> tuple[int, ...]:
    """The end-of-text tokens of the tokenizer, of generation_config.json and of config.json, in ascending order.

    `directory` is None for a model that is not saved yet. Raises ModelDirectoryProblem.
    """
    own = set() if tokenizer.eos_token_id is None else {int(tokenizer.eos_token_id)}
    return tuple(sorted(own | (set() if directory is None else end_tokens(directory))))
