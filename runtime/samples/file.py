"""samples.jsonl of a run, read line by line. Lines that are torn, or that no run writes, are skipped and counted."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from runtime.files import Json, reason_of, why_not_plain
from runtime.metrics.writers import SAMPLES_FILE
from runtime.samples.book import RESUMED, SAMPLE
from runtime.tasks.judges import LARGEST

_NUMBERS = (
    "step", "prompt", "item", "sibling", "tokens", "reward", "advantage", "start_weight", "end_weight",
)  # fmt: skip
_TEXTS = ("fate", "where", "prompt_text", "finish_reason")
"""Keys of a sample that readers use."""
_LARGEST = 2 * LARGEST
"""No run writes a larger number, and an advantage, a difference of rewards, may be as large; NaN is no smaller one."""


class SamplesUnreadable(Exception):
    """There are no samples where they were looked for. The message says why that may be, and what to set."""


@dataclass(slots=True)
class SamplesFile:
    """The samples of a run, from the beginning of its file to where it ends now."""

    path: Path
    skipped: int = 0
    """Lines that the last reading could not use."""

    def read(self) -> Iterator[Json]:
        """The samples in order. Key `again` is true if a resumed run took the sample's step again.

        Raises SamplesUnreadable.
        """
        resumed = [(number, line["step"]) for number, line in self._lines() if line["kind"] == RESUMED]
        for number, line in self._lines():
            if line["kind"] == SAMPLE:
                yield {**line, "again": any(number < later and line["step"] >= step for later, step in resumed)}

    def _lines(self) -> Iterator[tuple[int, Json]]:
        self.skipped = 0
        try:
            with self.path.open("rb") as file:
                for number, text in enumerate(file):
                    line = _parsed(text)
                    if line is None:
                        self.skipped += 1
                    else:
                        yield number, line
        except OSError as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: OSError) -> SamplesUnreadable:
        return SamplesUnreadable(f"{self.path} cannot be read: {reason_of(error)}")


def samples_of(given: Path) -> SamplesFile:
    """The samples of a run's directory, or in a file of them. Raises SamplesUnreadable if there is no such file."""
    path = given / SAMPLES_FILE if given.is_dir() else given
    if not path.exists():
        raise SamplesUnreadable(
            f"{path} does not exist: the run wrote no samples (samples.per_step is 0, no step has closed yet, or an "
            f"older evenstep made it), or {given} is not the directory of a run; give the directory that --output named"
        )
    if problem := why_not_plain(path):
        raise SamplesUnreadable(f"{path}: {problem}; give a run's directory, or its {SAMPLES_FILE}")
    return SamplesFile(path)


def _parsed(text: bytes) -> Json | None:
    """A line that readers can use; None for any other."""
    try:
        line = json.loads(text)
        if line["kind"] == SAMPLE:
            line.setdefault("weights", {})  # earlier runs did not write them
            numbers = [*(line[key] for key in _NUMBERS), *line["parts"].values(), *line["weights"].values()]
            texts = [*(line[key] for key in _TEXTS), *(turn[key] for turn in line["turns"] for key in ("role", "text"))]
            usable = all(isinstance(text, str) for text in texts) and {line["correct"], line["masked"]} <= {True, False}
        else:
            usable, numbers = line["kind"] == RESUMED, [line["step"]]
        usable = usable and all(type(number) in (int, float) and abs(number) <= _LARGEST for number in numbers)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return None
    return line if usable else None
