"""The samples of the run whose trace is shown: as many as a page bears, of steps that are spread over the run."""

from collections.abc import Iterator
from math import ceil
from pathlib import Path

from runtime.files import Json
from runtime.metrics.writers import SAMPLES_FILE
from runtime.samples.config import cut_middle
from runtime.samples.file import SamplesFile, SamplesUnreadable
from runtime.samples.printed import weighted
from runtime.trace.show import printable

MOST, LONGEST, LONGEST_WHERE = 2_000, 4_000, 200
"""Samples on a page, and characters of a text and of a place."""
_PLAIN = (
    "step", "fate", "prompt", "item", "sibling", "tokens", "finish_reason", "reward", "correct", "advantage", "masked",
    "start_weight", "end_weight", "again",
)  # fmt: skip


def samples_beside(trace: Path) -> Json:
    """For the page: `rows`, and `steps_apart`, the distance between the steps whose samples are shown.

    `missing` says why there are none.
    """
    file = SamplesFile(trace.parent / SAMPLES_FILE)
    if not file.path.is_file():
        return {"rows": [], "steps_apart": 1, "missing": f"There is no {SAMPLES_FILE} beside the trace."}
    try:
        apart = ceil(sum(1 for _ in file.read()) / MOST) or 1
        rows = list(_rows(file, apart))
    except SamplesUnreadable as error:
        return {"rows": [], "steps_apart": 1, "missing": printable(str(error))}
    return {"rows": rows, "steps_apart": apart, "missing": None if rows else f"{SAMPLES_FILE} has no sample."}


def _rows(file: SamplesFile, apart: int) -> Iterator[Json]:
    """At most MOST, even if a single step has more."""
    left = MOST
    for sample in file.read():
        if sample["step"] % apart == 0 and left:
            left -= 1
            yield {
                **{key: sample[key] for key in _PLAIN if key not in ("fate", "finish_reason")},
                "fate": printable(sample["fate"]),
                "finish_reason": printable(sample["finish_reason"]),
                "where": printable(sample["where"], widest=LONGEST_WHERE),
                "parts": [
                    [printable(str(name)), printable(weighted(str(value), name, sample["weights"]))]
                    for name, value in sample["parts"].items()
                ],
                "said": [
                    ["prompt", _text(sample["prompt_text"])],
                    *([printable(turn["role"]), _text(turn["text"])] for turn in sample["turns"]),
                ],
            }


def _text(text: str) -> str:
    """Printable, line by line, with its middle left out if it is long."""
    return "\n".join(printable(line, widest=len(line)) for line in cut_middle(text, LONGEST).split("\n"))
