"""Runs what there is to prove and keeps the figures, as plain JSON: `docs/generated/evidence.json`.

Each part is gathered on its own, since some take minutes; what is not gathered again stays as it was.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path
from typing import Any

from specs.check.cases import ScopeName
from specs.checker.explore import HOLDS
from specs.engine.search import Bounds
from specs.evidence.contracts.obligation import ProofVerdict
from specs.evidence.contracts.prove import Report, prove_all, refute_all
from specs.evidence.matrix.cells import REFUSED_AT_SETUP, matrix
from specs.evidence.matrix.run import run_cells
from specs.evidence.mutants.document import cells, faults
from specs.evidence.twins.compare import TWINS, rows
from specs.evidence.twins.configurations import CONFIGURATIONS

Json = dict[str, Any]

STATES_OF_A_CELL = 20_000_000
MUTATION = Path("docs/generated/mutation.md")


def _processes() -> int:
    return os.cpu_count() or 1


def _suite(scope: ScopeName) -> Json:
    """The matrix of configurations at a scope, all cells."""
    began_s = time.monotonic()
    cells, lines = matrix(scope), []
    for line in run_cells(cells, Bounds(states=STATES_OF_A_CELL), _processes()):
        lines.append(line)
        sys.stdout.write(f"{len(lines):>4}/{len(cells)}  {line.text}\n")
        sys.stdout.flush()
    by_sampler: dict[str, Counter[str]] = defaultdict(Counter)
    for line in lines:
        sampler = line.name.split()[0]
        by_sampler[sampler].update({line.verdict: 1, "states": line.states, "transitions": line.transitions})
    largest = max(lines, key=lambda line: line.states)
    return {
        "cells": len(lines),
        "verdicts": dict(Counter(line.verdict for line in lines)),
        "states": sum(line.states for line in lines),
        "transitions": sum(line.transitions for line in lines),
        "cpu_seconds": round(sum(line.cpu_s for line in lines)),
        "seconds": round(time.monotonic() - began_s),
        "processes": _processes(),
        "largest": {"cell": " ".join(largest.name.split()), "states": largest.states},
        "samplers": {sampler: dict(counts) for sampler, counts in by_sampler.items()},
        "other": [" ".join(line.name.split()) for line in lines if line.verdict not in (HOLDS, REFUSED_AT_SETUP)],
    }


def _proofs() -> Json:
    """CrossHair's proof obligations and their wrong twins."""
    jobs = _processes()
    report = Report(prove_all(jobs=jobs), refute_all(jobs=jobs))
    return {
        "obligations": len(report.proofs),
        "confirmed": sum(proof.verdict is ProofVerdict.CONFIRMED for proof in report.proofs),
        "twins": len(report.refutations),
        "refuted": sum(twin.verdict is ProofVerdict.REFUTED for twin in report.refutations),
        "explained": [f"{t.name} {t.fault}: {t.harmless}" for t in report.refutations if t.harmless],
        "cpu_seconds": round(sum(p.seconds for p in report.proofs) + sum(t.seconds for t in report.refutations)),
        "holds": report.holds,
    }


def _twins() -> Json:
    """The core's counts against those of the tools that are here. Raises ToolFailed."""
    there = [twin for twin in TWINS if twin.missing() is None]
    counted = [
        {
            "configuration": row.configuration,
            "side": row.side,
            "states": row.counts.states,
            "transitions": row.counts.transitions,
            "seconds": round(row.counts.seconds, 2),
            "agrees": row.agrees,
        }
        for row in rows(CONFIGURATIONS, there)
    ]
    return {"tools": [twin.name for twin in there], "rows": counted}


def _mutation() -> Json:
    """The totals of docs/generated/mutation.md, which `make mutants` writes."""
    text = MUTATION.read_text(encoding="utf-8")
    [totals] = [line for line in text.splitlines() if line.endswith("all caught.")]
    return {"totals": totals, "faults": faults(text), "properties": len(cells(text, "property"))}


PARTS: Mapping[str, Callable[[], Json]] = {
    "matrix": lambda: _suite(ScopeName.DEFAULT),
    "deep": lambda: _suite(ScopeName.DEEP),
    "proofs": _proofs,
    "twins": _twins,
    "mutation": _mutation,
}
"""What can be gathered, in the order of the document."""


def gather(part: str) -> Json:
    """Gather one part, with the day. Raises KeyError for a part that there is not."""
    return {"on": date.today().isoformat(), **PARTS[part]()}
