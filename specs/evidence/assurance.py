"""`python -m specs.evidence.assurance [PART …]`: gather evidence, and write docs/generated/assurance.md from it.

The figures are kept in docs/generated/evidence.json. Each part is gathered separately, since some take minutes; the
others stay as they were. Without PART, all but the deep suite are gathered.
"""

import argparse
import json
import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import typer

from fsm.machines.table import Fairness
from specs.check.cases import ScopeName
from specs.checker.explore import HOLDS
from specs.engine.search import Bounds
from specs.evidence.contracts.prove import Report, prove_all, refute_all
from specs.evidence.matrix import REFUSED_AT_SETUP, matrix, run_cells
from specs.evidence.mutants.document import cells, faults, table
from specs.evidence.twins.compare import CONFIGURATIONS, TWINS, rows
from specs.model import FAIRNESS, FINITE
from specs.properties.catalog import EDGES, EVENTUALLY, MORE_EDGES, SOMETIMES
from specs.properties.edges_of_groups import staleness
from specs.properties.states import ALWAYS, MORE_ALWAYS

Json = dict[str, Any]

EVIDENCE, DOCUMENT, MUTATION = (
    Path("docs/generated/evidence.json"),
    Path("docs/generated/assurance.md"),
    Path("docs/generated/mutation.md"),
)
STATES_OF_A_CELL = 20_000_000
PROCESSES = os.cpu_count() or 1
NOT_GATHERED = "*Not gathered.*"


# Gathering


def _gather_suite(scope: ScopeName) -> Json:
    """The matrix of configurations at a scope, all cells."""
    began_s = time.monotonic()
    all_cells, lines = matrix(scope), []
    for line in run_cells(all_cells, Bounds(states=STATES_OF_A_CELL), PROCESSES):
        lines.append(line)
        typer.echo(f"{len(lines):>4}/{len(all_cells)}  {line.text}")
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
        "processes": PROCESSES,
        "largest": {"cell": " ".join(largest.name.split()), "states": largest.states},
        "samplers": {sampler: dict(counts) for sampler, counts in by_sampler.items()},
        "other": [" ".join(line.name.split()) for line in lines if line.verdict not in (HOLDS, REFUSED_AT_SETUP)],
    }


def _gather_proofs() -> Json:
    """CrossHair's proof obligations and their wrong twins."""
    report = Report(prove_all(jobs=PROCESSES), refute_all(jobs=PROCESSES))
    return {
        "obligations": len(report.proofs),
        "confirmed": report.confirmed,
        "twins": len(report.refutations),
        "refuted": report.refuted,
        "explained": [f"{t.name} {t.fault}: {t.harmless}" for t in report.refutations if t.harmless],
        "cpu_seconds": round(report.seconds),
        "holds": report.holds,
    }


def _gather_twins() -> Json:
    """The core's counts against those of the tools that are installed. Raises ToolFailed."""
    there = [twin for twin in TWINS if twin.missing() is None]
    counted = []
    for row in rows(CONFIGURATIONS, there):
        counts = row.counts._replace(seconds=round(row.counts.seconds, 2))._asdict()
        counted.append({"configuration": row.configuration, "side": row.side, **counts, "agrees": row.agrees})
    return {"tools": [twin.name for twin in there], "rows": counted}


def _gather_mutation() -> Json:
    """The totals of docs/generated/mutation.md, which `make mutants` writes."""
    text = MUTATION.read_text(encoding="utf-8")
    [totals] = [line for line in text.splitlines() if line.endswith("all caught.")]
    return {"totals": totals, "faults": faults(text), "properties": len(cells(text, "property"))}


PARTS: Mapping[str, Callable[[], Json]] = {
    "matrix": lambda: _gather_suite(ScopeName.DEFAULT),
    "deep": lambda: _gather_suite(ScopeName.DEEP),
    "proofs": _gather_proofs,
    "twins": _gather_twins,
    "mutation": _gather_mutation,
}
"""What can be gathered, in the order of the document."""


# Writing


def _suite(found: Json) -> Iterator[str]:
    verdicts = ", ".join(f"{number} {verdict}" for verdict, number in sorted(found["verdicts"].items()))
    yield (
        f"{found['cells']} cells: {verdicts}. {found['states']:,} states, {found['transitions']:,} transitions, "
        f"{found['seconds']:,} s on {found['processes']} processes ({found['cpu_seconds']:,} s of processor time), on "
        f"{found['on']}. The largest is {found['largest']['cell']}, {found['largest']['states']:,} states.\n"
    )
    listed = [
        (name, counts.get("holds", 0), counts.get("refused", 0), f"{counts['states']:,}", f"{counts['transitions']:,}")
        for name, counts in found["samplers"].items()
    ]
    yield table(("sampler", "holds", "refused at setup", "states", "transitions"), listed)
    yield from (f"- {name}\n" for name in found["other"])


def _proofs(found: Json) -> Iterator[str]:
    yield (
        f"{found['confirmed']} of {found['obligations']} obligations confirmed, {found['refuted']} of {found['twins']} "
        f"twins refuted, {found['cpu_seconds']} s of processor time (`make prove`), on {found['on']}.\n"
    )
    yield "".join(f"- not refuted, since it breaks nothing: {line}\n" for line in found["explained"])


def _twins(found: Json) -> Iterator[str]:
    listed = [
        (
            row["configuration"], row["side"], f"{row['states']:,}", f"{row['transitions']:,}",
            f"{row['states'] / max(row['seconds'], 0.01):,.0f}", "yes" if row["agrees"] else "**no**",
        )
        for row in found["rows"]
    ]  # fmt: skip
    yield table(("configuration", "", "states", "transitions", "states/s", "agrees"), listed)


def _mutation(found: Json) -> Iterator[str]:
    yield f"{found['totals']} [One by one](mutation.md).\n"
    yield "".join(f"- {fault}\n" for fault in found["faults"])


_FIGURES: Mapping[str, Callable[[Json], Iterator[str]]] = {
    "matrix": _suite, "deep": _suite, "proofs": _proofs, "twins": _twins, "mutation": _mutation,
}  # fmt: skip


def document(evidence: Json) -> str:
    """The whole document: assurance.md.in with the figures in it."""
    figures = {
        part: "\n".join(told(evidence[part])).rstrip() if part in evidence else NOT_GATHERED
        for part, told in _FIGURES.items()
    }
    kinds = (
        ("always", ALWAYS), ("edge", (*EDGES, staleness(1))), ("sometimes", SOMETIMES), ("eventually", EVENTUALLY),
    )  # fmt: skip
    listed = [(p.name, kind, p.sentence, " ".join(p.rules)) for kind, found in kinds for p in found]
    fair = sorted(name for name, fairness in FAIRNESS.items() if fairness is Fairness.WEAK)
    template = Path(__file__).with_name("assurance.md.in").read_text(encoding="utf-8")
    return template.format(
        properties=table(("property", "kind", "", "rules"), listed).rstrip(),
        more_always=len(MORE_ALWAYS),
        more_edges=len(MORE_EDGES),
        fair=", ".join(f"`{name}`" for name in fair),
        finite=", ".join(f"`{name}`" for name in sorted(FINITE)),
        **figures,
    )


def read_evidence(path: Path = EVIDENCE) -> Json:
    """The figures that were gathered so far."""
    evidence: Json = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return evidence


def main(arguments: Sequence[str]) -> int:
    """Gather and write; 0 when it is done."""
    parser = argparse.ArgumentParser(prog="python -m specs.evidence.assurance", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; none with --write-only")
    parser.add_argument("--write-only", action="store_true", help="write the document from the evidence as it is")
    given = parser.parse_args(arguments)
    wrong = [part for part in given.parts if part not in PARTS]
    if wrong:
        parser.error(f"there is no part {', '.join(wrong)}; there are {', '.join(PARTS)}")
    chosen = [] if given.write_only else given.parts or [part for part in PARTS if part != "deep"]
    evidence = read_evidence()
    for part in chosen:
        typer.echo(f"gathering {part}")
        evidence[part] = {"on": date.today().isoformat(), **PARTS[part]()}
        EVIDENCE.write_text(json.dumps(evidence, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    DOCUMENT.write_text(document(evidence), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
