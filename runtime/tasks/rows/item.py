"""A prompt and its answer, from the columns of a row."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from typing import Any

from runtime.tasks.base import Chat, TaskError
from runtime.tasks.rows.table import Row

PROMPT, MESSAGES, TOOLS = "prompt", "messages", "tools"
"""The columns that are read where the configuration names none."""


@dataclass(frozen=True, slots=True)
class RowColumns:
    """Which columns have the prompt and its answer. A dot leads into a column that holds objects."""

    prompt: str | None = None
    """None: `prompt`, or `messages` in a row without it: Arrow makes an absent one null."""
    answer: str | None = "answer"
    """None: there are no answers."""
    tools: str | None = None
    """None: `tools`, in a row that has it."""
    cut_answers: bool = False
    """Cut the assistant's message from the end of a prompt; it is the answer, if `answer` is None."""
    texts_only: bool = False
    """Refuse chat messages, since `data.prompt_template` is set, which surrounds texts."""
    chat_of_texts: str | None = None
    """`data.prompt_template`, if texts go through the chat template, which gets the tools that `tools` names."""

    @property
    def read(self) -> frozenset[str]:
        """The names of all columns that `item_of` looks at."""
        names = {self.prompt, self.answer, self.tools or TOOLS, *(() if self.prompt else (PROMPT, MESSAGES))} - {None}
        return frozenset({str(name) for name in names} | {str(name).partition(".")[0] for name in names})


@dataclass(frozen=True, slots=True)
class Item:
    """A row as a prompt. `text` is what messages show and what decides the prompt's side of the split."""

    text: str
    opening: str | Chat
    answer: str | None
    is_text: bool = False
    """Whether the row has a text; `opening` has it as a message if there are tools for the chat template."""


def item_of(row: Row, columns: RowColumns, where: str) -> Item:
    """The row's prompt and answer. Raises TaskError with `where`, the column, its value and the remedy."""
    name = columns.prompt or (MESSAGES if row.get(PROMPT) is None and row.get(MESSAGES) is not None else PROMPT)
    prompt = _value(row, name, "prompt", where)
    answer = None if columns.answer is None else _answer(row, columns.answer, where)
    if isinstance(prompt, str):
        if not prompt:
            raise TaskError(f"{where}: {name!r} is empty; give it a text, or leave the row out")
        tools = () if columns.chat_of_texts is None else _tools(row, columns, where)
        if not tools:
            return Item(prompt, prompt, answer, is_text=True)
        text = str(columns.chat_of_texts).replace("{prompt}", prompt)
        return Item(prompt, Chat(({"role": "user", "content": text},), tools), answer, is_text=True)
    if columns.texts_only:
        raise TaskError(
            f"{where}: {name!r} has chat messages, and data.prompt_template surrounds texts; leave it out, and put its "
            "text into the messages. In an evaluation set, which has it from the run, set its data.prompt_template to "
            "'{prompt}'"
        )
    messages = _messages(prompt, name, where)
    if messages[-1]["role"] == "assistant":
        if not columns.cut_answers:
            raise TaskError(
                f"{where}: the last of {name!r} is the assistant's message, which the policy is to write; leave it "
                "out, or set data.task.cut_answers to true to cut it everywhere"
            )
        *messages, last = messages
        if columns.answer is None:
            answer = _said(last.get("content"), name, where)
        if not messages:
            raise TaskError(f"{where}: {name!r} has only the assistant's message; put the user's before it")
    return Item(text_of(messages), Chat(tuple(messages), _tools(row, columns, where)), answer)


def text_of(messages: Sequence[Mapping[str, Any]]) -> str:
    """Messages as one text: the content of a single user message, so that it equals the same prompt given as text."""
    if len(messages) == 1 and messages[0].get("role") == "user":
        return _text(messages[0].get("content"))
    return "\n\n".join(f"{message.get('role')}: {_text(message.get('content'))}" for message in messages)


def _value(row: Row, name: str, key: str, where: str) -> Any:
    value: Any = row
    for part in (name,) if name in row else name.split("."):
        if value is None:
            raise TaskError(
                f"{where}: {name!r} is missing, since {name.rpartition('.')[0]!r} or what it is in is null; correct "
                f"the row, or name another column in data.task.columns.{key}"
            )
        if not isinstance(value, Mapping) or part not in value:
            raise TaskError(
                f"{where}: {name!r} is missing; the row has {sorted(row)}; name the right column in "
                f"data.task.columns.{key}, or correct the row"
            )
        value = value[part]
    return value


def _answer(row: Row, name: str, where: str) -> str:
    value = _value(row, name, "answer", where)
    if value is None:
        raise TaskError(
            f"{where}: {name!r} is null; give it a text, or set data.task.columns.answer to null if no verifier needs "
            "answers"
        )
    try:
        return _text(value)
    except UnicodeDecodeError as error:
        raise TaskError(f"{where}: {name!r} has bytes that are no UTF-8 text ({error}); save it as a text") from error


def _said(content: Any, name: str, where: str) -> str:
    """The text of an assistant's message, which may be a list of parts."""
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    texts = [part["text"] for part in parts if part["type"] == "text" and isinstance(part.get("text"), str)]
    if len(texts) < len(parts):
        raise TaskError(
            f"{where}: the last of {name!r}, which is to be the answer, has the content {_shown(content)}; give it a "
            "text or parts of texts, name a column in data.task.columns.answer, or leave the row out"
        )
    return "".join(texts)


def _text(value: Any) -> str:
    """Texts, numbers with a fixed point and times as they are written; other numbers, lists and objects as JSON.

    Raises UnicodeDecodeError for bytes that are no UTF-8.
    """
    if isinstance(value, str | Decimal | date | time | timedelta | bytes):  # a datetime is a date
        return _plain(value)
    return json.dumps(value, ensure_ascii=False, default=_plain)


def _plain(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _messages(value: Any, name: str, where: str) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not value:
        raise TaskError(f"{where}: {name!r} is {_shown(value)}; give it as a text, or as a list of chat messages")
    messages = []
    for number, message in enumerate(value):
        whole = _whole(message)
        if problem := _why_no_message(whole):
            raise TaskError(
                f"{where}: message {number} of {name!r} is {_shown(whole)}: {problem}; write an object with role and "
                "content, a text that is not empty or a list of content parts; it may be null beside tool_calls"
            )
        messages.append({**whole, **({"content": message["content"]} if "content" in message else {})})
    return messages


def _why_no_message(message: Any) -> str | None:
    """What is wrong with the shape of a chat message, which has no null keys; None if templates take it."""
    if not isinstance(message, dict):
        return "it is no object"
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or not role:
        return "its role is no text" if role else "it has no role"
    if message.get("tool_calls") and not content:
        return None
    if content is None:
        return "it has no content"
    if not isinstance(content, str | list):
        return "its content is neither a text nor a list"
    if not content:
        return "its content is empty"
    if isinstance(content, list) and not all(isinstance(part, dict) and part.get("type") for part in content):
        return "a part of its content is no object with a type"
    return None


def _tools(row: Row, columns: RowColumns, where: str) -> tuple[Mapping[str, Any], ...]:
    """The tools, given as a list or as its JSON."""
    name = columns.tools or TOOLS
    value = _value(row, name, "tools", where) if columns.tools or name in row else None
    if isinstance(value, str):
        try:
            value = json.loads(value or "[]")
        except json.JSONDecodeError as error:
            raise TaskError(f"{where}: {name!r} is not JSON ({error}); give a list of tools") from error
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(tool, dict) for tool in value):
        raise TaskError(f"{where}: {name!r} is {_shown(value)}; give a list of tools, each with its JSON schema")
    return tuple(_whole(tool) for tool in value)


def _whole(value: Any) -> Any:
    """Without the keys that Arrow adds as null since other rows have them: templates ask whether a key is there."""
    if isinstance(value, dict):
        return {key: _whole(inner) for key, inner in value.items() if inner is not None}
    return [_whole(inner) for inner in value] if isinstance(value, list) else value


def _shown(value: Any) -> str:
    return f"{value!r:.200}"
