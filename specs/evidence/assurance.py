"""`python -m specs.evidence.assurance [PART …]`: gather evidence, and write docs/generated/assurance.md from it.

The figures are kept in docs/generated/evidence.json. Each part is gathered separately, since some take minutes; the
others stay as they were. Without PART, all but the deep suite are gathered.
"""

from __future__ import annotations

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
from specs.evidence.contracts.obligation import ProofVerdict
from specs.evidence.contracts.prove import Report, prove_all, refute_all
from specs.evidence.matrix import REFUSED_AT_SETUP, matrix, run_cells
from specs.evidence.mutants.document import cells, faults, table
from specs.evidence.twins.compare import TWINS, rows
from specs.evidence.twins.configurations import CONFIGURATIONS
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
        "confirmed": sum(proof.verdict is ProofVerdict.CONFIRMED for proof in report.proofs),
        "twins": len(report.refutations),
        "refuted": sum(twin.verdict is ProofVerdict.REFUTED for twin in report.refutations),
        "explained": [f"{t.name} {t.fault}: {t.harmless}" for t in report.refutations if t.harmless],
        "cpu_seconds": round(sum(p.seconds for p in report.proofs) + sum(t.seconds for t in report.refutations)),
        "holds": report.holds,
    }


def _gather_twins() -> Json:
    """The core's counts against those of the tools that are installed. Raises ToolFailed."""
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

_HEAD = """# What is proven, and what is not

*Generated by `make assurance` from [the evidence](evidence.json); a test keeps it fresh.*

The code that controls a run is the code that is explored, proven and mutated here: the rule tables and the functions of
`fsm`. There is no second model of it but the twins below, which are there to be compared.
"""

_NOT_PROVEN = """## What is not

- **Larger numbers.** The checker explores small scopes completely: N up to 4, windows up to 2, data for a few
  steps. That faults of counting show in small scopes is experience, not proof. Rules are proven for every N
  one by one (below), not in their interplay; runs of thousands of groups at N up to 64 are tried at random, with
  losses and crashes (`tests/fsm/core/test_at_real_sizes.py`), and are not exhaustive.
- **Which group is which.** Classes are explored, not prompts. That the roster obeys the counts is asserted after
  every event in the simulation and tested, on every scenario and in random runs.
- **Late answers where another attempt of the same class runs.** On counts they cannot be told apart; the roster refuses
  them, which is tested (D2).
- **C3.** A resume under another sampler or N is tested and mutated, and not part of the matrix.
- **A resume with a smaller max_num_steps or max_num_epochs** than was already admitted or read: no rule re-establishes
  the invariants of the gate and the source; the run finishes what was begun.
- **Custom samplers** are checked by `evenstep check --sampler`, one at a time; the matrix has the built-in ones.
- **The runtime.** That pumps turn what happens into the right events is tested with real actors, not proven.
  `evenstep replay` compares any run's trace with the core.
"""

_MACHINES = """## Machines

The checker fires rules as plain functions, production through `transitions` machines. In the smoke part of the matrix,
and in a portfolio that reaches every rule, every event of every table is asked of both for every value and context that
is reached (`tests/specs/checker/test_machines_agree.py`): no difference.
"""


def _properties() -> Iterator[str]:
    yield "## The properties\n"
    yield (
        "Every exploration also looks for `deadlock` (nothing can ever happen again, and the run is not over) and for "
        "`refused` (a rule refuses what another asks of it).\n"
    )
    kinds = (
        ("always", ALWAYS), ("edge", (*EDGES, staleness(1))), ("sometimes", SOMETIMES), ("eventually", EVENTUALLY),
    )  # fmt: skip
    listed = [(p.name, kind, p.sentence, " ".join(p.rules)) for kind, found in kinds for p in found]
    yield table(("property", "kind", "", "rules"), listed)
    yield (
        f"{len(MORE_ALWAYS)} more `always` and {len(MORE_EDGES)} more `edge` properties (`MORE_ALWAYS` and "
        "`MORE_EDGES` of `specs/properties`) say the core's own moves once more from the rules. They hold throughout "
        "the portfolio of [the mutation matrix](mutation.md), and are kept out of the matrix below for their cost.\n"
    )


def _assumptions() -> Iterator[str]:
    fair = sorted(name for name, fairness in FAIRNESS.items() if fairness is Fairness.WEAK)
    yield "## Under which assumptions\n"
    yield (
        f"- **Weak fairness**, class by class, of {', '.join(f'`{name}`' for name in fair)}: what stays possible comes "
        "in the end. Nothing needs strong fairness.\n"
        f"- **Finitely many** {', '.join(f'`{name}`' for name in sorted(FINITE))}: each prompt has a budget of "
        "attempts (L7), and a run that crashes for ever is not asked to end. They are explored without a limit, but no "
        "cycle that refutes `eventually` has one.\n"
        "- **A crash** resumes from a snapshot of its moment, in any state. An earlier checkpoint is a state that was "
        "reached, so it leads nowhere else; `CrashFrom.LAST_CHECKPOINT` tries that in smaller scopes.\n"
        "- **Transitions are remembered** by the parts of the state that they read. That is exact for deterministic "
        "functions, and compared with the plain functions in a test; every counterexample is replayed through those.\n"
    )


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


_SECTIONS: Sequence[tuple[str, str, str, Callable[[Json], Iterator[str]]]] = (
    ("matrix", "The matrix of configurations", "", _suite),
    ("deep", "The same, deep", "", _suite),
    ("proofs", "Rules, for every number",
     "CrossHair is asked, for each rule of each table, whether invariant ∧ guards ⇒ invariant(update) with N, window, "
     "budgets and counts as unbounded symbols, and for the free functions whether they keep their contracts. Only "
     "CONFIRMED counts. Each obligation has wrong twins, which must be refuted.\n", _proofs),
    ("twins", "Twins",
     "The rules once more, written by hand in Promela and TLA+ (`specs/evidence/twins`), explored by SPIN and TLC: the "
     "numbers of states and transitions must be equal (`make twins`). Crashes, failures and unreadable data are on.\n",
     _twins),
    ("mutation", "What the properties notice", "", _mutation),
)  # fmt: skip
"""Per part of the evidence its title, what it is, and its figures."""


def _section(evidence: Json, part: str, title: str, what: str, figures: Callable[[Json], Iterator[str]]) -> list[str]:
    found = evidence.get(part)
    told = [f"{NOT_GATHERED}\n"] if found is None else [*figures(found)]
    return [f"## {title}\n", *([what] if what else []), *told]


def document(evidence: Json) -> str:
    """The whole document."""
    sections = [text for section in _SECTIONS for text in _section(evidence, *section)]
    return "\n".join([_HEAD, *_properties(), *_assumptions(), *sections, _MACHINES, _NOT_PROVEN]).rstrip() + "\n"


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
