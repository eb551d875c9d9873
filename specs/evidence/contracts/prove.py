"""Proves all obligations and refutes all of their twins, on several processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache, partial
from itertools import chain
from typing import NamedTuple, TypeVar

from specs.evidence.contracts import functions, rules
from specs.evidence.contracts.obligation import Proof, ProofCase, ProofVerdict, Refutation
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
    refutations: list[Refutation]

    @property
    def holds(self) -> bool:
        """Every obligation is CONFIRMED, every twin REFUTED, and those that are said to be harmless are."""
        return all(proof.verdict is ProofVerdict.CONFIRMED for proof in self.proofs) and all(
            refutation.is_as_expected for refutation in self.refutations
        )


@cache
def cases() -> dict[str, ProofCase]:
    """All obligations by name, with their twins. Raises ValueError if two share a name."""
    found: dict[str, ProofCase] = {}
    for case in chain(rules.cases(), functions.cases()):
        if case.obligation.name in found:
            raise ValueError(f"two obligations are called {case.obligation.name!r}: the name is how one is asked for")
        found[case.obligation.name] = case
    return found


def prove_all(
    names: Iterable[str] | None = None, *, per_condition_timeout: float = TIMEOUT_S, jobs: int = 1
) -> list[Proof]:
    """Every obligation, or those named, in order. `per_condition_timeout` is in seconds of processor time."""
    return _each(partial(prove_one, per_condition_timeout=per_condition_timeout), names, jobs)


def refute_all(
    names: Iterable[str] | None = None, *, per_condition_timeout: float = TIMEOUT_S, jobs: int = 1
) -> list[Refutation]:
    """Every twin of every obligation, or of those named, in order."""
    found = _each(partial(refute_twins_of, per_condition_timeout=per_condition_timeout), names, jobs)
    return [refutation for refutations in found for refutation in refutations]


def prove_one(name: str, *, per_condition_timeout: float = TIMEOUT_S) -> Proof:
    """Prove the obligation of that name. Raises KeyError if there is none."""
    return prove(cases()[name].obligation, per_condition_timeout=per_condition_timeout)


def refute_twins_of(name: str, *, per_condition_timeout: float = TIMEOUT_S) -> list[Refutation]:
    """Refute the twins of the obligation of that name. Raises KeyError if there is none."""
    twins = range(len(cases()[name].twins))
    return [refute(name, number, per_condition_timeout=per_condition_timeout) for number in twins]


def refute(name: str, number: int, *, per_condition_timeout: float = TIMEOUT_S) -> Refutation:
    """Refute one twin of the obligation of that name."""
    fault, obligation = cases()[name].twins[number]
    proof = challenge(obligation, per_condition_timeout=per_condition_timeout)
    return Refutation(name, fault, HARMLESS.get((name, fault), ""), proof.verdict, proof.seconds, proof.counterexample)


def _each(work: Callable[[str], T], names: Iterable[str] | None, jobs: int) -> list[T]:
    """The results of the cases, in their order."""
    asked = list(cases() if names is None else names)
    found = dict(on_processes(work, asked, jobs))
    return [found[number] for number in range(len(asked))]
