"""The kill matrix as a document, and its tables read back."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import yaml

from specs.evidence.mutants.faults import FAULTS, KnownFault
from specs.evidence.mutants.matrix import MatrixRow
from specs.evidence.mutants.portfolio import PORTFOLIO

EXPLAINED: Mapping[str, str] = {
    name: entry["why"]
    for entry in yaml.safe_load(Path(__file__).with_name("survivors.yaml").read_text(encoding="utf-8"))
    for name in entry["of"]
}
"""Why each survivor is the same as the core."""


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table in Markdown, with an empty line after it."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(str(cell) for cell in line)} |\n" for line in lines)


def _totals(rows: Sequence[MatrixRow]) -> str:
    killed = [row.killed for row in rows if row.killed is not None]
    first, at_all = Counter(k.by for k in killed), Counter(name for k in killed for name in {k.by, *k.also})
    counted = [(name, first[name], at_all[name]) for name in sorted(at_all, key=lambda name: (-at_all[name], name))]
    return (
        f"{len(rows)} mutants: {len(killed)} killed, {len(rows) - len(killed)} survive and are explained one by one. "
        f"{len(FAULTS)} known faults, all caught.\n\n" + table(("property", "kills first", "kills at all"), counted)
    )


def _fault(fault: KnownFault) -> tuple[object, ...]:
    instead = f"refused by setup ({fault.refused_for})" if fault.refused_for else "holds"
    mutant = fault.mutant
    return mutant.name, mutant.sentence, fault.breaks, fault.events, fault.scope.name, instead


def document(rows: Sequence[MatrixRow], proven: frozenset[str]) -> str:
    """mutation.md.in with its tables. `proven` are the survivors that coverage shows to be the same as the core."""
    killed, head = [], ("mutant", "killed by", "also broken", "in the run", "events")
    for where in dict.fromkeys(row.mutant.where for row in rows):
        listed = [
            (row.mutant.name, row.killed.by, ", ".join(row.killed.also), row.killed.scope, row.killed.events)
            for row in rows
            if row.mutant.where == where and row.killed is not None
        ]
        if listed:
            killed.append(f"## {where}\n\n{table(head, listed)}")
    survivors = [
        (m.name, m.sentence, "proven" if m.name in proven else "", EXPLAINED.get(m.name, "**unexplained**"))
        for m in (row.mutant for row in rows if row.killed is None)
    ]
    parts = {
        "totals": _totals(rows),
        "faults": table(("fault", "what it does", "caught by", "events", "run", "the core there"), map(_fault, FAULTS)),
        "portfolio": table(("run", "sampler", "N", "window", "prompts"), (scope[:5] for scope in PORTFOLIO)),
        "killed": "\n".join(killed),
        "survivors": table(("survivor", "what it does", "proven", "why nothing tells it from the core"), survivors),
    }
    template = Path(__file__).with_name("mutation.md.in").read_text(encoding="utf-8")
    return template.format(**{name: text.rstrip() for name, text in parts.items()})


def cells(text: str, heading: str) -> list[list[str]]:
    """The rows of every table whose first heading is this one."""
    found: list[list[str]] = []
    inside = False
    for line in text.splitlines():
        if not line.startswith("|"):
            inside = False
            continue
        row = [cell.strip() for cell in line[1:-1].split("|")]
        if row[0] == heading:
            inside = True
        elif inside and not row[0].startswith("---"):
            found.append(row)
    return found


def faults(text: str) -> list[str]:
    """The known faults that a document lists."""
    return [row[0] for row in cells(text, "fault")]
