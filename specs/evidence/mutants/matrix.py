"""The kill matrix: which property tells which mutant from the core, and in which run."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import NamedTuple
from unittest.mock import patch

from fsm.errors import InvariantBroken
from fsm.machines.prompt_group import PROMPT_GROUP, TRANSFER, BalanceSheet
from fsm.machines.table import C, Table, V, fire
from fsm.rules import on_event
from specs.checker.explore import HOLDS, UNDETERMINED, VIOLATED, explore
from specs.engine.search import Bounds
from specs.evidence.mutants.decisions import decision_mutants
from specs.evidence.mutants.mutant import Coverage, Mutant, hunt, settle_or_refuse
from specs.evidence.mutants.portfolio import PORTFOLIO, REGENERATES
from specs.evidence.mutants.tables import table_mutants
from specs.evidence.small_run import SmallRun
from specs.properties.catalog import all_properties_of
from specs.properties.kinds import DEADLOCK, REFUSED, Properties

BOUNDS = Bounds(states=6_000)
"""Three times as many states as the core has in any scope: a mutant that has more is undetermined there."""

Mover = Callable[[BalanceSheet, int], BalanceSheet]


class Killed(NamedTuple):
    """A mutant told from the core."""

    by: str
    """The property that its shortest counterexample breaks."""
    scope: str
    events: int
    """The length of that counterexample."""
    also: tuple[str, ...]
    """What else is broken in the same run, each time without the properties before."""


class MatrixRow(NamedTuple):
    """The result for one mutant."""

    mutant: Mutant
    killed: Killed | None
    undetermined: tuple[str, ...] = ()
    """Scopes in which a bound was hit: not a kill."""


def all_mutants() -> tuple[Mutant, ...]:
    """Of the tables, and of the decisions that are in no table."""
    return (*table_mutants(), *decision_mutants())


def properties_in(scope: SmallRun) -> Properties:
    """All that must hold in a scope. A resume under another sampler keeps less than `resumed` asks for (C3)."""
    known = all_properties_of(scope.laws())
    return known.without("resumed") if scope.model is REGENERATES else known


def core_coverage() -> dict[str, Coverage]:
    """Per scope the core's coverage. Raises AssertionError if the core does not hold: then mutants say nothing."""
    return {scope.name: _covered(scope) for scope in PORTFOLIO}


def _covered(scope: SmallRun) -> Coverage:
    coverage = Coverage(Counter(), Counter(), Counter())

    def noting_fire(table: Table[V, C], event: str, value: V, context: C) -> V:
        coverage.fired[table.name, event] += 1
        for rule in table.by_event[event, value.status]:
            falses = [number for number, guard in enumerate(rule.guards) if not guard(value, context)]
            if not falses:
                coverage.taken[table.name, rule.name] += 1
                break
            if len(falses) == 1:
                coverage.decides[table.name, rule.name, falses[0]] += 1
        return fire(table, event, value, context)

    movers = {
        rule.event: _noting_mover(coverage, rule.event, rule.name, TRANSFER[rule.event])
        for rule in PROMPT_GROUP.rules
        if rule.event in TRANSFER
    }
    laws, model = scope.laws()._replace(fire=noting_fire), scope.model._replace(settle=settle_or_refuse)
    with ExitStack() as stack:
        stack.enter_context(patch.dict(TRANSFER, movers))
        stack.enter_context(patch.object(on_event, "_committed", movers["commit"]))
        result = explore(laws, scope.world, properties_in(scope), model=model, bounds=BOUNDS)
    if result.verdict != HOLDS:
        raise AssertionError(f"{scope.name}: the core itself is {result.verdict}: {result.broken} {result.why}")
    return coverage


def _noting_mover(coverage: Coverage, event: str, rule_name: str, mover: Mover) -> Mover:
    def move(sheet: BalanceSheet, groups: int) -> BalanceSheet:
        coverage.fired[PROMPT_GROUP.name, event] += 1
        try:
            moved = mover(sheet, groups)
        except InvariantBroken:
            coverage.decides[PROMPT_GROUP.name, rule_name, 0] += 1
            raise
        coverage.taken[PROMPT_GROUP.name, rule_name] += 1
        return moved

    return move


def proven_the_same(mutants: Sequence[Mutant], coverage: dict[str, Coverage]) -> frozenset[str]:
    """The names of the mutants that do everywhere in the portfolio what the core does, by the core's coverage alone."""
    return frozenset(
        mutant.name for mutant in mutants if not any(mutant.differs(of_scope) for of_scope in coverage.values())
    )


def row_of(mutant: Mutant, coverage: dict[str, Coverage]) -> MatrixRow:
    """Look for a mutant in one scope after the other, until it is killed."""
    undetermined: tuple[str, ...] = ()
    for scope in PORTFOLIO:
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


def _also(mutant: Mutant, scope: SmallRun, properties: Properties, broken: str) -> Iterator[str]:
    """What else is broken there. A deadlock or a refusal ends the story for every other property."""
    while broken not in (DEADLOCK, REFUSED):
        properties = properties.without(broken)
        result = hunt(mutant, scope, properties, BOUNDS)
        if result.verdict != VIOLATED or result.broken is None:
            return
        broken = result.broken
        yield broken
