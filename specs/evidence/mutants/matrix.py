"""The kill matrix: which property tells which mutant from the core, and in which run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from specs.checker.explore import UNDETERMINED, VIOLATED
from specs.engine.search import Bounds
from specs.evidence.mutants.coverage import covered
from specs.evidence.mutants.mutant import Coverage, Mutant, hunt
from specs.evidence.mutants.scopes import PORTFOLIO, REGENERATES, MutantScope
from specs.evidence.mutants.tables import table_mutants
from specs.evidence.mutants.ways_out import decision_mutants
from specs.properties.all_properties import all_properties_of
from specs.properties.kinds import DEADLOCK, REFUSED, Properties

BOUNDS = Bounds(states=6_000)
"""Three times as many states as the core has in any scope: a mutant that has more is undetermined there."""


class Killed(NamedTuple):
    """A mutant told from the core."""

    by: str
    """The property that its shortest counterexample breaks."""
    scope: str
    events: int
    """The length of that counterexample."""
    also: tuple[str, ...]
    """What is broken in the same run where those before are left aside, one after the other."""


class MatrixRow(NamedTuple):
    """What became of one mutant."""

    mutant: Mutant
    killed: Killed | None
    undetermined: tuple[str, ...] = ()
    """Scopes in which a bound was hit: not a kill."""


def all_mutants() -> tuple[Mutant, ...]:
    """Of the tables, and of the decisions beside them."""
    return (*table_mutants(), *decision_mutants())


def properties_in(scope: MutantScope) -> Properties:
    """All that must hold in a scope. Who resumes under another sampler keeps less than `resumed` asks for (C3)."""
    known = all_properties_of(scope.laws())
    return known.without("resumed") if scope.model is REGENERATES else known


def core_coverage() -> dict[str, Coverage]:
    """Per scope what the core fires there. Raises AssertionError where the core itself does not hold."""
    return {scope.name: covered(scope, properties_in(scope), BOUNDS)[0] for scope in PORTFOLIO}


def proven_the_same(mutants: Sequence[Mutant], coverage: dict[str, Coverage]) -> frozenset[str]:
    """The names of the mutants that do everywhere in the portfolio what the core does, by the core's coverage alone."""
    return frozenset(
        mutant.name for mutant in mutants if not any(mutant.differs(of_scope) for of_scope in coverage.values())
    )


def row_of(mutant: Mutant, coverage: dict[str, Coverage], portfolio: Sequence[MutantScope] = PORTFOLIO) -> MatrixRow:
    """Look for a mutant in one scope after the other, until it is killed."""
    undetermined: tuple[str, ...] = ()
    for scope in portfolio:
        if not mutant.differs(coverage[scope.name]):
            continue
        properties = properties_in(scope)
        result = hunt(mutant, scope, properties, BOUNDS)
        if result.verdict == UNDETERMINED:
            undetermined += (scope.name,)
        elif result.verdict == VIOLATED and result.broken is not None:
            also = tuple(_also(mutant, scope, properties, result.broken))
            return MatrixRow(mutant, Killed(result.broken, scope.name, len(result.counterexample), also), undetermined)
    return MatrixRow(mutant, None, undetermined)


def _also(mutant: Mutant, scope: MutantScope, properties: Properties, broken: str) -> Iterator[str]:
    """What else is broken there. A deadlock or a refusal ends the story for every other property."""
    while broken not in (DEADLOCK, REFUSED):
        properties = properties.without(broken)
        result = hunt(mutant, scope, properties, BOUNDS)
        if result.verdict != VIOLATED or result.broken is None:
            return
        broken = result.broken
        yield broken
