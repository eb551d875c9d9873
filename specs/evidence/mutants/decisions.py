"""Mutants of the decisions that are in no table: those of decisions.yaml, and the core's own moves in another order."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import yaml

from fsm.rules import own_moves
from fsm.rules.own_moves import ALWAYS, OWN_MOVES
from specs.evidence.mutants.mutant import Mutant, Swap, edited


def _neighbours_swapped() -> Iterator[Mutant]:
    """The core's own moves with each pair of neighbours in the other order."""
    for number, (first, second) in enumerate(pairwise(OWN_MOVES)):
        order = (*OWN_MOVES[:number], second, first, *OWN_MOVES[number + 2 :])
        always = tuple(move for move in order if move in ALWAYS)
        yield Mutant(
            f"order: {second.__name__} before {first.__name__}", "the core's own moves come in another order", "order",
            (Swap(own_moves, "OWN_MOVES", order), Swap(own_moves, "ALWAYS", always)),
        )  # fmt: skip


def decision_mutants() -> tuple[Mutant, ...]:
    """All of them. Raises ValueError where a text that decisions.yaml edits is not in the core once."""
    written = yaml.safe_load(Path(__file__).with_name("decisions.yaml").read_text(encoding="utf-8"))
    edits = (Mutant(m["name"], m["does"], m["name"].partition(":")[0], edits=edited(m["edits"])) for m in written)
    return (*edits, *_neighbours_swapped())
