"""What a run of the core fires, and which guards decide: what the survivors' explanations stand on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

from fsm.errors import InvariantBroken
from fsm.machines.prompt_group import PROMPT_GROUP, TRANSFER, Tally
from fsm.machines.table import C, Table, V, fire
from fsm.rules import on_event
from specs.checker.explore import HOLDS, Result, explore
from specs.engine.search import Bounds
from specs.evidence.mutants.mutant import Coverage, settle_or_refuse
from specs.evidence.mutants.scopes import MutantScope
from specs.properties.kinds import Properties

Mover = Callable[[Tally, int], Tally]


def _noting(coverage: Coverage) -> Any:
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

    return noting_fire


def _noting_mover(coverage: Coverage, event: str, rule_name: str, mover: Mover) -> Mover:
    def move(tally: Tally, groups: int) -> Tally:
        coverage.fired[PROMPT_GROUP.name, event] += 1
        try:
            moved = mover(tally, groups)
        except InvariantBroken:
            coverage.decides[PROMPT_GROUP.name, rule_name, 0] += 1
            raise
        coverage.taken[PROMPT_GROUP.name, rule_name] += 1
        return moved

    return move


def covered(scope: MutantScope, properties: Properties, bounds: Bounds) -> tuple[Coverage, Result]:
    """Explore the core in a scope. Raises AssertionError where it does not hold: then mutants say nothing."""
    coverage = Coverage.none()
    laws = scope.laws()._replace(fire=_noting(coverage))
    movers = {
        rule.event: _noting_mover(coverage, rule.event, rule.name, TRANSFER[rule.event])
        for rule in PROMPT_GROUP.rules
        if rule.event in TRANSFER
    }
    with ExitStack() as stack:
        stack.enter_context(patch.dict(TRANSFER, movers))
        stack.enter_context(patch.object(on_event, "_committed", movers["commit"]))
        result = explore(
            laws, scope.world, properties, model=scope.model._replace(settle=settle_or_refuse), bounds=bounds
        )
    if result.verdict != HOLDS:
        raise AssertionError(f"{scope.name}: the core itself is {result.verdict}: {result.broken} {result.why}")
    return coverage, result
