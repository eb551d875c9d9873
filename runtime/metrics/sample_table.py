"""Samples as a table for TensorBoard and W&B. Texts stay texts: control characters are escaped, markup is entities."""

from collections.abc import Mapping, Sequence
from typing import Any

_MOST_ROWS, _WIDEST = 32, 1_000
"""Of a table: rows, and characters of a cell."""
_MARKUP = {ord(character): f"&#{ord(character)};" for character in "\\`*_{}[]()<>#+-.!|&~:=\"'"}
"""Characters that Markdown or HTML may read as markup, as entities."""


def rows_of_table(step: int, lines: Sequence[Mapping[str, Any]], every_steps: int | None) -> list[dict[str, Any]]:
    """The cells of a table by column; none for a step without one. `lines` are of samples.jsonl."""
    if every_steps is None or step % every_steps:
        return []
    samples = [line for line in lines if line["kind"] == "sample"][:_MOST_ROWS]
    return [
        {
            "step": sample["step"],
            "fate": sample["fate"],
            "where": _cell(sample["where"]),
            "prompt": _cell(sample["prompt_text"]),
            "completion": _cell("\n".join(turn["text"] for turn in sample["turns"])),
            "reward": sample["reward"],
            "correct": sample["correct"],
            "advantage": sample["advantage"],
            "tokens": sample["tokens"],
            "finish_reason": sample["finish_reason"],
        }
        for sample in samples
    ]


def markdown_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows of `rows_of_table` in Markdown."""
    columns = list(rows[0])
    lines = [columns, ["---"] * len(columns)]
    lines += [[_escaped(value) for value in row.values()] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(text: str) -> str:
    """Printable text; its newlines stay."""
    cut = text if len(text) <= _WIDEST else f"{text[:_WIDEST]}… ({len(text) - _WIDEST:,} more)"
    return "".join(
        character if character.isprintable() or character == "\n" else character.encode("unicode_escape").decode()
        for character in cut
    )


def _escaped(value: object) -> str:
    shown = f"{value:.4g}" if isinstance(value, float) else str(value)
    return shown.translate(_MARKUP).replace("\n", "<br>")
