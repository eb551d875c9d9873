"""Mutants of the rule tables, made from `fsm.machines.catalog.ALL_TABLES`: whoever adds a rule adds its mutants.

Each guard is dropped and negated, each update frozen, each rule taken out; and the world's answers lose their fairness
one by one. A PromptGroup's rules are fired as movers of the balance sheet's columns
(`fsm.machines.prompt_group.TRANSFER`), so its mutants are movers that are built otherwise; a rule of that table which
has no mover is fired by nobody, and has no mutants here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from fsm.errors import InvariantBroken
from fsm.machines.catalog import TABLES
from fsm.machines.prompt_group import PROMPT_GROUP, TRANSFER, GroupState, Tally
from fsm.machines.table import Fairness, Rule, Table, unchanged
from fsm.rules import on_event
from specs.evidence.mutants.mutant import Coverage, Mutant, Swap
from specs.model import FAIRNESS, with_tables

AnyRule = Rule[Any, Any]
Guard = Callable[[Any, Any], bool]
Mover = Callable[[Tally, int], Tally]
Differs = Callable[[Coverage], bool]


def guard_name(guard: Guard) -> str:
    """A guard as mutants and coverage name it."""
    return guard.__name__.lstrip("_")


def _never(_: Any, __: Any) -> bool:
    return False


def _negated(guard: Guard) -> Guard:
    def negation(value: Any, context: Any) -> bool:
        return not guard(value, context)

    return negation


def _with_rule(table: Table[Any, Any], number: int, other: AnyRule) -> Table[Any, Any]:
    return replace(table, rules=(*table.rules[:number], other, *table.rules[number + 1 :]))


def _mutant(table: Table[Any, Any], number: int, what: str, sentence: str, other: AnyRule, differs: Differs) -> Mutant:
    rule = table.rules[number]
    changed = _with_rule(table, number, other)
    return Mutant(
        f"{table.name} {rule.name}: {what}", sentence, table.name,
        laws=lambda laws: with_tables(laws, changed), differs=differs,
    )  # fmt: skip


def decides(table: str, rule: str, position: int) -> Differs:
    """Where a guard decides."""
    return lambda coverage: coverage.decides[table, rule, position] > 0


def is_taken(table: str, rule: str) -> Differs:
    """Where a rule fires."""
    return lambda coverage: coverage.taken[table, rule] > 0


def is_fired(table: str, event: str) -> Differs:
    """Where an event is asked for."""
    return lambda coverage: coverage.fired[table, event] > 0


def _of_rule(table: Table[Any, Any], number: int) -> Iterator[Mutant]:
    rule = table.rules[number]
    for position, guard in enumerate(rule.guards):
        name = guard_name(guard)
        before, after = rule.guards[:position], rule.guards[position + 1 :]
        dropped = replace(rule, guards=(*before, *after))
        yield _mutant(
            table, number, f"{name} dropped", f"does not look at {name}", dropped,
            decides(table.name, rule.name, position),
        )  # fmt: skip
        negated = replace(rule, guards=(*before, _negated(guard), *after))
        yield _mutant(
            table, number, f"{name} negated", f"fires where {name} is false, and only there", negated,
            is_fired(table.name, rule.event),
        )  # fmt: skip
    taken = is_taken(table.name, rule.name)
    if rule.update is not unchanged:
        frozen = replace(rule, update=unchanged)
        yield _mutant(table, number, "update frozen", "moves the status alone", frozen, taken)
    yield _mutant(table, number, "taken out", "never fires", replace(rule, guards=(_never,)), taken)


def _columns(rule: AnyRule) -> tuple[str, str]:
    return Tally._fields[GroupState(rule.sources[0])], Tally._fields[GroupState(rule.dest)]


def _unguarded(rule: AnyRule) -> Mover:
    takes, gives = _columns(rule)
    sign = 1 if rule.sources[0] is GroupState.DATA else -1

    def move(tally: Tally, groups: int) -> Tally:
        if takes == gives:
            return tally
        return tally._replace(**{takes: tally._asdict()[takes] + sign * groups, gives: tally._asdict()[gives] + groups})

    return move


def _contrary(rule: AnyRule, mover: Mover) -> Mover:
    """Moves where the real one refuses, and refuses where it moves."""
    unguarded = _unguarded(rule)

    def move(tally: Tally, groups: int) -> Tally:
        try:
            mover(tally, groups)
        except InvariantBroken:
            return unguarded(tally, groups)
        raise InvariantBroken(f"PromptGroup refuses {rule.event} of {groups} groups: {tally}")

    return move


def _frozen(mover: Mover) -> Mover:
    def move(tally: Tally, groups: int) -> Tally:
        mover(tally, groups)
        return tally

    return move


def _refusing(rule: AnyRule) -> Mover:
    def move(tally: Tally, groups: int) -> Tally:
        raise InvariantBroken(f"PromptGroup refuses {rule.event} of {groups} groups: {tally}")

    return move


def _of_group(rule: AnyRule) -> Iterator[Mutant]:
    mover, table = TRANSFER[rule.event], PROMPT_GROUP.name
    guard = guard_name(rule.guards[0])
    taken = is_taken(table, rule.name)
    for what, sentence, other, differs in (
        (f"{guard} dropped", "moves groups that are not there", _unguarded(rule), decides(table, rule.name, 0)),
        (f"{guard} negated", "moves only groups that are not there", _contrary(rule, mover), taken),
        ("update frozen", "leaves the balance sheet as it was", _frozen(mover), taken),
        ("taken out", "never fires", _refusing(rule), taken),
    ):
        swaps: tuple[Swap, ...] = (Swap(TRANSFER, rule.event, other),)
        if rule.event == "commit":
            swaps += (Swap(on_event, "_committed", other),)
        yield Mutant(f"{table} {rule.name}: {what}", sentence, table, swaps, differs=differs)


def _unfair(name: str) -> Mutant:
    fairness = {**FAIRNESS, name: Fairness.NONE}
    return Mutant(
        f"world {name}: fairness removed", f"{name} may stay away for ever", "fairness",
        model=lambda model: model._replace(fairness=fairness),
    )  # fmt: skip


def table_mutants() -> tuple[Mutant, ...]:
    """All mutants of all rules, and of the world's fairness."""
    rules = (mutant for table in TABLES for number in range(len(table.rules)) for mutant in _of_rule(table, number))
    groups = (mutant for rule in PROMPT_GROUP.rules if rule.event in TRANSFER for mutant in _of_group(rule))
    fairness = (_unfair(name) for name, fair in FAIRNESS.items() if fair is not Fairness.NONE)
    return (*groups, *rules, *fairness)
