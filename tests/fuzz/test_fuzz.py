"""A few inputs of each kind that `make fuzz` has hundreds of, and whether it would notice what it looks for."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fuzz import kinds
from tests.fuzz.kinds import KINDS, Kind
from tests.fuzz.places import PLACES
from tests.fuzz.run import ACCEPTED, DEFECT, HANG, REFUSED, fuzzed

SEEDS = {"configuration": 16, "scenario": 12, "migrate": 6, "snapshot": 25, "trace": 5, "run directory": 2,
         "JSON lines": 20, "table": 5}  # fmt: skip
"""How many; by what one costs."""
QUICK_PLACES = ("FIFO", "socket", "folder", "/dev/zero", "billion laughs", "NUL bytes", "100,000 brackets")


@pytest.mark.parametrize("kind", list(KINDS))
def test_damaged_input_is_refused_with_a_message_or_accepted(kind: str) -> None:
    places = () if kind == "run directory" else QUICK_PLACES
    found = list(fuzzed(kind, [*places, *map(str, range(SEEDS[kind]))]))
    assert [each for each in found if each.outcome in (DEFECT, HANG)] == []
    refused = [each for each in found if each.outcome == REFUSED]
    assert {each.case for each in refused} >= set(places)
    assert all(each.said.strip() for each in refused)


@pytest.mark.parametrize("place", list(PLACES))
def test_a_configuration_in_an_odd_place_is_refused_within_seconds(place: str) -> None:
    [found] = fuzzed("configuration", [place])
    assert found.outcome == (ACCEPTED if place == "empty" else REFUSED), found.said


def test_a_table_whose_first_line_is_the_whole_file_is_refused_within_seconds() -> None:
    [found] = fuzzed("table", ["a line of 100 MB"])
    assert found.outcome == REFUSED, found.said
    assert "has a name of 100000000 characters" in found.said


def raises(path: Path) -> None:
    raise KeyError(path.name)


def dies(_: Path) -> None:
    os._exit(3)


def hangs(_: Path) -> None:
    time.sleep(3600)


def fills_the_memory(_: Path) -> None:
    b"x" * (100 << 30)


@pytest.mark.parametrize(
    ("take", "outcome", "says"),
    [
        (raises, DEFECT, "KeyError"),
        (dies, DEFECT, "exit code 3"),
        (hangs, HANG, "no answer for 2 s"),
        (fills_the_memory, DEFECT, "MemoryError"),
    ],
)
def test_what_is_looked_for_is_found(
    monkeypatch: pytest.MonkeyPatch, take: Callable[[Path], None], outcome: str, says: str
) -> None:
    monkeypatch.setitem(kinds.KINDS, "broken", Kind(lambda chance, folder: folder, take, "x"))
    one, other = fuzzed("broken", ["0", "1"], deadline_s=2.0 if take is hangs else 60.0)
    assert (one.outcome, other.outcome) == (outcome, outcome)
    assert says in one.said
