"""`python -m specs.evidence.contracts [JOBS]`: proves and refutes all, and exits with 1 if that fails."""

import sys
from collections import defaultdict

from rich.console import Console
from rich.table import Table

from specs.evidence.contracts.obligation import Proof, ProofVerdict
from specs.evidence.contracts.prove import Report, prove_all, refute_all


def table_of(report: Report) -> Table:
    """One line an obligation: verdict, seconds, twins refuted, and remarks on what is wrong or explained."""
    table = Table("obligation", "rules", "verdict", "seconds", "twins refuted", "remarks")
    twins: dict[str, list[Proof]] = defaultdict(list)
    for refutation in report.refutations:
        twins[refutation.name].append(refutation)
    for proof in report.proofs:
        refuted = [twin for twin in twins[proof.name] if twin.verdict is ProofVerdict.REFUTED]
        remarks = [proof.counterexample] if proof.counterexample else []
        remarks += [
            f"{twin.fault}: {twin.verdict.value}" + (f", {twin.harmless}" if twin.harmless else "")
            for twin in twins[proof.name]
            if twin.verdict is not ProofVerdict.REFUTED or twin.harmless
        ]
        table.add_row(
            proof.name,
            " ".join(proof.implements),
            proof.verdict.value,
            f"{proof.seconds:.1f}",
            f"{len(refuted)} of {len(twins[proof.name])}",
            "; ".join(remarks),
        )
    return table


def main(jobs: int) -> int:
    """0 if every obligation is confirmed and every twin is refuted or explained, else 1."""
    report = Report(prove_all(jobs=jobs), refute_all(jobs=jobs))
    explained = sum(1 for twin in report.refutations if twin.harmless and twin.is_as_expected)
    console = Console()
    console.print(table_of(report))
    console.print(
        f"{report.confirmed} of {len(report.proofs)} obligations confirmed; {report.refuted} of "
        f"{len(report.refutations)} wrong twins refuted, {explained} explained; {report.seconds:.0f} s in all, by "
        f"{jobs} at a time"
    )
    return 0 if report.holds else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1))
