"""Proves all obligations and refutes all of their twins, on several processes."""

from collections.abc import Callable, Iterable
from functools import cache
from itertools import chain
from typing import NamedTuple, TypeVar

from specs.evidence.contracts import functions, rules
from specs.evidence.contracts.obligation import Proof, ProofCase, ProofVerdict
from specs.evidence.contracts.solver import challenge, prove
from specs.processes.pool import on_processes

T = TypeVar("T")

TIMEOUT_S = 60.0
"""Processor time for one question; those that take longest need a quarter of it."""

HARMLESS = {
    ("StepAssembly.finish→finishing", "without is_full"): "a step in state full is full by its invariant",
}
"""Twins that break nothing, with the reason: the guard is redundant, and there for the reader of the table."""


class Report(NamedTuple):
    """The results for all obligations and their twins."""

    proofs: list[Proof]
    refutations: list[Proof]

    @property
    def holds(self) -> bool:
        """Every obligation is CONFIRMED, every twin REFUTED, and those that are said to be harmless are."""
        return all(proof.is_as_expected for proof in (*self.proofs, *self.refutations))

    @property
    def confirmed(self) -> int:
        """How many obligations are CONFIRMED."""
        return sum(proof.verdict is ProofVerdict.CONFIRMED for proof in self.proofs)

    @property
    def refuted(self) -> int:
        """How many twins are REFUTED."""
        return sum(twin.verdict is ProofVerdict.REFUTED for twin in self.refutations)

    @property
    def seconds(self) -> float:
        """Spent on all of them."""
        return sum(proof.seconds for proof in (*self.proofs, *self.refutations))


@cache
def cases() -> dict[str, ProofCase]:
    """All obligations by name, with their twins. Raises ValueError if two share a name."""
    found: dict[str, ProofCase] = {}
    for case in chain(rules.cases(), functions.cases()):
        if case.obligation.name in found:
            raise ValueError(f"two obligations are called {case.obligation.name!r}: the name is how one is asked for")
        found[case.obligation.name] = case
    return found


def prove_all(names: Iterable[str] | None = None, *, jobs: int = 1) -> list[Proof]:
    """Every obligation, or those named, in order."""
    return _each(prove_one, names, jobs)


def refute_all(names: Iterable[str] | None = None, *, jobs: int = 1) -> list[Proof]:
    """Every twin of every obligation, or of those named, in order."""
    return [refutation for refutations in _each(_refute_twins_of, names, jobs) for refutation in refutations]


def prove_one(name: str) -> Proof:
    """Prove the obligation of that name. Raises KeyError if there is none."""
    return prove(cases()[name].obligation, per_condition_timeout=TIMEOUT_S)


def _refute_twins_of(name: str) -> list[Proof]:
    return [refute(name, number) for number in range(len(cases()[name].twins))]


def refute(name: str, number: int) -> Proof:
    """Refute one twin of the obligation of that name."""
    fault, obligation = cases()[name].twins[number]
    proof = challenge(obligation, per_condition_timeout=TIMEOUT_S)
    return proof._replace(name=name, fault=fault, harmless=HARMLESS.get((name, fault), ""))


def _each(work: Callable[[str], T], names: Iterable[str] | None, jobs: int) -> list[T]:
    """The results of the cases, in their order."""
    asked = list(cases() if names is None else names)
    found = dict(on_processes(work, asked, jobs))
    return [found[number] for number in range(len(asked))]
