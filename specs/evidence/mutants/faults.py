"""Faults that control loops of this kind are known to have (faults.yaml), each with a run that shows it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from specs.evidence.mutants.mutant import Mutant, edited
from specs.evidence.small_run import SmallRun, run_of


class KnownFault(NamedTuple):
    """One known fault."""

    mutant: Mutant
    breaks: str
    """The property that finds it, looked for alone (deadlocks and refusals are looked for in any case)."""
    events: int
    """The length of the shortest counterexample."""
    scope: SmallRun
    """The smallest run that shows it."""
    refused_for: str | None
    """If setup refuses the run, a word of its message; None if the core holds in the run."""


def _fault(given: Mapping[str, Any]) -> KnownFault:
    limits = given.get("limits", {})
    mutant = Mutant(
        given["name"], given["does"], given["where"], edits=edited(given.get("edits", {})),
        laws=lambda laws: laws._replace(limits=laws.limits._replace(**limits)),
    )  # fmt: skip
    return KnownFault(mutant, given["breaks"], given["events"], run_of(given["run"]), given.get("refused_for"))


FAULTS = tuple(map(_fault, yaml.safe_load(Path(__file__).with_name("faults.yaml").read_text(encoding="utf-8"))))
