"""From a task's texts to a model's tokens, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedTokenizerBase

from runtime.models.directory import end_tokens
from runtime.tasks.base import Chat, TaskError
from runtime.tasks.config import DataConfig

_ANSWER, _QUESTION = "evenstep-answer", "evenstep-question"
"""Texts that no template contains."""
_USER, _ASSISTANT = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}


@dataclass(frozen=True, slots=True)
class TextCodec:
    """Encodes prompts and the environment's turns; decodes completions."""

    tokenizer: PreTrainedTokenizerBase
    prompt_template: str = "{prompt}"
    chat: bool = False
    system_prompt: str | None = None

    def encode_prompt(self, prompt: str | Chat) -> npt.NDArray[np.int32]:
        """Token ids (P,) of a task's prompt inside the template and the chat template.

        Messages always go through the chat template. They have the system prompt if they bring none.
        """
        if isinstance(prompt, Chat):
            brings_one = prompt.messages[0]["role"] == "system"
            messages = [*([] if brings_one else self._system()), *prompt.messages]
            return self._encode(self._render(messages, open_turn=True, tools=prompt.tools))
        text = self.prompt_template.replace("{prompt}", prompt)
        if self.chat:
            text = self._render([*self._system(), {"role": "user", "content": text}], open_turn=True)
        return self._encode(text)

    def encode_turn(self, text: str, ended_with: int | None = None) -> npt.NDArray[np.int32]:
        """Token ids of an environment's turn after a completion, up to the start of the policy's next turn.

        ended_with: the completion's stop token. If it also opens the next turn (GLM's <|user|>), it is not repeated.
        """
        if not self.chat:
            return self._encode(text)
        # A completion ends with its stop token; the template determines the text from there to the next turn.
        before = self._render([_USER, _ASSISTANT], open_turn=False).rstrip()
        after = self._render([_USER, _ASSISTANT, {"role": "user", "content": text}], open_turn=True)
        if not after.startswith(before):
            raise TaskError(
                "the tokenizer's chat template rewrites earlier turns when another follows, so turns cannot be "
                "appended to what was sampled; set data.chat to false, or data.max_turns to 1"
            )
        turn = self._encode(after[len(before) :])
        return turn[1:] if ended_with is not None and turn[:1].tolist() == [ended_with] else turn

    def after_an_answer(self) -> tuple[int, ...]:
        """Token ids of the chat template between an answer and the text of the turn after it.

        Empty if the template rewrites answers. Raises jinja2's TemplateError if it does not allow such turns.
        """
        turns = [*self._system(), _USER, {"role": "assistant", "content": _ANSWER}]
        _, found, after = self._render(turns, open_turn=False).rpartition(_ANSWER)
        if found and not after.strip():
            followed = self._render([*turns, {"role": "user", "content": _QUESTION}], open_turn=False)
            after = followed.rpartition(_QUESTION)[0].rpartition(_ANSWER)[2]
        return tuple(self._encode(after).tolist()) if found else ()

    def decode(self, token_ids: npt.NDArray[np.int32]) -> str:
        """The text of tokens, without special ones."""
        return str(self.tokenizer.decode(token_ids.tolist(), skip_special_tokens=True))

    def _encode(self, text: str) -> npt.NDArray[np.int32]:
        return np.array(self.tokenizer.encode(text, add_special_tokens=False), dtype=np.int32)

    def _system(self) -> list[dict[str, str]]:
        return [] if self.system_prompt is None else [{"role": "system", "content": self.system_prompt}]

    def _render(
        self, messages: Sequence[Mapping[str, Any]], *, open_turn: bool, tools: Sequence[Mapping[str, Any]] = ()
    ) -> str:
        return str(
            self.tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                tools=[dict(tool) for tool in tools] or None,
                tokenize=False,
                add_generation_prompt=open_turn,
            )
        )


def make_codec(tokenizer: PreTrainedTokenizerBase, data: DataConfig) -> TextCodec:
    """The codec of the `data:` block. Raises TaskError if it needs a chat template and the tokenizer has none."""
    if data.chat and tokenizer.chat_template is None:
        raise TaskError(
            f"data.chat is true and the tokenizer {tokenizer.name_or_path!r} has no chat template; use an "
            "instruction-tuned model, or set data.chat to false"
        )
    return TextCodec(tokenizer, data.prompt_template, data.chat, data.system_prompt)


def model_stop_tokens(tokenizer: PreTrainedTokenizerBase, directory: Path | None) -> tuple[int, ...]:
    """The end-of-text tokens of the tokenizer, of generation_config.json and of config.json, in ascending order.

    `directory` is None for a model that is not saved yet. Raises ModelDirectoryProblem.
    """
    own = set() if tokenizer.eos_token_id is None else {int(tokenizer.eos_token_id)}
    return tuple(sorted(own | (set() if directory is None else end_tokens(directory))))
