"""Samples on a terminal. What the policy said is shown as printable text: no markup, no cursor moves."""

from collections.abc import Iterable, Iterator, Mapping

from rich.text import Text

from runtime.files import Json
from runtime.samples.config import cut_middle
from runtime.trace.show import printable
from runtime.wording import counted

LONGEST = 8_000
"""Characters shown of one text; `--json` shows all that is kept."""
_STYLES = {"policy": "bold", "environment": "italic"}


def printed(samples: Iterable[Json]) -> Iterator[Text]:
    """Lines for a terminal: of each sample its figures, the prompt and the turns."""
    for sample in samples:
        yield Text(heading(sample), "reverse")
        yield from spoken("prompt", sample["prompt_text"], "dim")
        for turn in sample["turns"]:
            yield from spoken(turn["role"], turn["text"], _STYLES.get(turn["role"], ""))
        yield Text()


def heading(sample: Json) -> str:
    """The figures of a sample on one line."""
    cut_off = ", cut off" if sample["finish_reason"] == "length" else ""
    return " · ".join(
        _line(part)
        for part in (
            f"step {sample['step']}",
            f"prompt {sample['prompt']} ({sample['where']})",
            f"{sample['fate']}{', left out of the loss' if sample['masked'] else ''}",
            worth(sample["reward"], sample["parts"], sample["weights"], correct=sample["correct"]),
            f"advantage {sample['advantage']:+.3g}",
            f"{counted(sample['tokens'], 'token')}{cut_off}",
            f"weights {sample['start_weight']} to {sample['end_weight']}",
            "a resumed run took this step again" if sample["again"] else "",
        )
        if part
    )


def weighted(value: str, name: str, weights: Mapping[str, float]) -> str:
    """The value of a part, with its weight in the reward."""
    return f"{value} × {weights[name]:.4g}" if name in weights else value


def worth(reward: float, parts: Mapping[str, float], weights: Mapping[str, float], *, correct: bool) -> str:
    """A verdict in words, with the parts of its reward. Adding zero leaves no negative zero."""
    of_parts = ", ".join(f"{name} {weighted(f'{value + 0.0:.4g}', name, weights)}" for name, value in parts.items())
    return f"reward {reward + 0.0:.4g}{f' ({of_parts})' if of_parts else ''}, {'right' if correct else 'wrong'}"


def spoken(who: str, text: str, style: str = "") -> Iterator[Text]:
    """A speaker's lines, with the name in front of the first."""
    name = _line(who)
    for number, line in enumerate(cut_middle(text, LONGEST).split("\n")):
        yield Text.assemble((f"{name if number == 0 else '':>11} │ ", "cyan"), (_line(line), style))


def _line(text: str) -> str:
    return printable(text, widest=len(text))
