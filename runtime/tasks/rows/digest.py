"""A digest of each row's prompt: what decides its side of the split, and what identifies large data."""

import json
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from runtime.tasks.base import TaskError
from runtime.tasks.rows.item import PROMPT, Item, RowColumns, item_of
from runtime.tasks.rows.table import Row, RowTable

Digests = npt.NDArray[np.int64]
"""Of each row's prompt, in [0, 2**63): `split.side_of`. BLANK for a blank line."""
BLANK = -1
_BLANK_BYTES = b"\xff" * 8


@dataclass(frozen=True, slots=True)
class DigestedRows:
    """The digests of some rows, and a hash of their answers."""

    digests: Digests
    answers: bytes


def digest_rows(table: RowTable, columns: RowColumns, start: int, stop: int) -> DigestedRows:
    """Read and check the rows from `start` to before `stop`. Raises TaskError for the first that is wrong."""
    found: list[bytes] = []
    answers: list[str | None] = []
    prompt_column, answer_column = columns.prompt or PROMPT, columns.answer or ""
    for offset, row in enumerate(table.rows(start, stop, columns.read)):
        if row is None:
            found.append(_BLANK_BYTES)
            continue
        text, answer = row.get(prompt_column), row.get(answer_column)
        has_tools = columns.chat_of_texts is not None
        if has_tools or type(text) is not str or not text or type(answer) is not str:  # most rows have two texts
            item = _item(table, row, columns, start + offset)
            text, answer = item.text, item.answer
            _check_chat(item, table, start + offset)
        try:
            found.append(blake2b(f"str:8:held out;str:{len(text)}:{text};".encode(), digest_size=8).digest())
            if answer is not None:
                answer.encode()
        except UnicodeEncodeError as error:
            what = "answer" if error.object == answer else "prompt"
            raise TaskError(
                f"{table.where(start + offset)}: the {what} is no valid text ({error}); correct it"
            ) from error
        answers.append(answer)
    words = np.frombuffer(b"".join(found), ">u8")
    digests = np.where(words == np.uint64(2**64 - 1), np.int64(BLANK), (words >> np.uint64(1)).astype(np.int64))
    return DigestedRows(digests, blake2b(json.dumps(answers).encode("ascii"), digest_size=16).digest())


def _item(table: RowTable, row: Row, columns: RowColumns, number: int) -> Item:
    try:
        return item_of(row, columns, table.where(number))
    except TaskError:
        return item_of(table.row(number), columns, table.where(number))  # raises it with the names of all columns
    except RecursionError as error:
        raise TaskError(f"{table.where(number)}: is nested too deeply ({error}); write its values flatter") from error


def _check_chat(item: Item, table: RowTable, number: int) -> None:
    """Raise TaskError if a tokenizer could not read a text of the messages or the tools."""
    if isinstance(item.opening, str):
        return
    for part, values in (("message", item.opening.messages), ("tool", item.opening.tools)):
        for place, value in enumerate(values):
            try:
                json.dumps(value, ensure_ascii=False, default=str).encode()
            except UnicodeEncodeError as error:
                raise TaskError(
                    f"{table.where(number)}: {part} {place} has a text that is not valid ({error}); correct it"
                ) from error
