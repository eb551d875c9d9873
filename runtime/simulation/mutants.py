"""Faulty control code (mutants.yaml), and the first seed whose run shows that it is faulty."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import yaml

from runtime.simulation.plan import plan_of
from runtime.simulation.runs import simulate
from specs.evidence.mutants.mutant import Mutant, edited, in_place

SEEDS = 400
"""Runs in which every mutant must be noticed."""


class Caught(NamedTuple):
    """A mutant, and how it was noticed."""

    mutant: Mutant
    seed: int | None
    """The first that notices it; None if none of them did."""
    wrong: str


def hunt_each(seeds: int = SEEDS) -> Iterator[Caught]:
    """Every mutant, one after the other, in the runs of as many seeds.

    Raises ValueError for one whose text is not in the control code any more.
    """
    for given in yaml.safe_load(Path(__file__).with_name("mutants.yaml").read_text(encoding="utf-8")):
        mutant = Mutant(given["name"], given["name"], "control", edits=edited(given["edits"]))
        with in_place(mutant):
            first = given.get("first", 0)
            yield _hunt(mutant, given.get("sampler"), range(first, first + seeds))


def _hunt(mutant: Mutant, sampler: str | None, seeds: range) -> Caught:
    for seed in seeds:
        try:
            story = simulate(plan_of(seed, sampler))
        except Exception as error:
            return Caught(mutant, seed, f"{type(error).__name__}: {error}")
        if story.wrong:
            return Caught(mutant, seed, story.wrong[0])
    return Caught(mutant, None, "")
