"""Mutants of the rule tables, made from `fsm.machines.catalog.ALL_TABLES`: a new rule has its mutants at once.

Each guard is dropped and negated, each update frozen, each rule taken out; and the world's answers lose their fairness
one by one. A PromptGroup's rules are fired as movers of the balance sheet's columns
(`fsm.machines.prompt_group.TRANSFER`), so its mutants are other movers; a rule of that table that has no mover is never
fired, and has no mutants here.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from fsm.errors import InvariantBroken
from fsm.machines.catalog import TABLES
from fsm.machines.prompt_group import PROMPT_GROUP, TRANSFER, BalanceSheet, GroupState
from fsm.machines.table import Fairness, Rule, Table, unchanged
from fsm.rules import on_event
from fsm.rules.laws import Laws
from specs.evidence.mutants.mutant import Coverage, Mutant, Swap
from specs.model import FAIRNESS, with_tables

AnyRule = Rule[Any, Any]
Guard = Callable[[Any, Any], bool]
Mover = Callable[[BalanceSheet, int], BalanceSheet]
Differs = Callable[[Coverage], bool]


def _name(guard: Guard) -> str:
    return guard.__name__.lstrip("_")


def _negated(guard: Guard) -> Guard:
    return lambda value, context: not guard(value, context)


def _where(counted: str, *key: str | int) -> Differs:
    """Where the core's coverage has counted that (a field of `Coverage`)."""
    return lambda coverage: coverage._asdict()[counted][key] > 0


def _changes(table: str, rule: AnyRule) -> Iterator[tuple[str, str, AnyRule, Differs]]:
    """Every small change to a rule: its name, what it does, the rule, and where it differs."""
    for position, guard in enumerate(rule.guards):
        name, before, after = _name(guard), rule.guards[:position], rule.guards[position + 1 :]
        dropped, negated = replace(rule, guards=(*before, *after)), (*before, _negated(guard), *after)
        yield f"{name} dropped", f"does not look at {name}", dropped, _where("decides", table, rule.name, position)
        yield (f"{name} negated", f"fires where {name} is false, and only there", replace(rule, guards=negated),
               _where("fired", table, rule.event))  # fmt: skip
    taken = _where("taken", table, rule.name)
    if rule.update is not unchanged:
        yield "update frozen", "moves the status alone", replace(rule, update=unchanged), taken
    yield "taken out", "never fires", replace(rule, guards=(lambda *_: False,)), taken


def _of_table(table: Table[Any, Any]) -> Iterator[Mutant]:
    for number, rule in enumerate(table.rules):
        for what, sentence, other, differs in _changes(table.name, rule):
            changed = replace(table, rules=(*table.rules[:number], other, *table.rules[number + 1 :]))
            yield Mutant(
                f"{table.name} {rule.name}: {what}", sentence, table.name,
                laws=partial(_with_table, changed), differs=differs,
            )  # fmt: skip


def _with_table(table: Table[Any, Any], laws: Laws) -> Laws:
    return with_tables(laws, table)


def _unguarded(rule: AnyRule) -> Mover:
    takes, gives = (BalanceSheet._fields[GroupState(place)] for place in (rule.sources[0], rule.dest))
    sign = 1 if rule.sources[0] is GroupState.DATA else -1

    def move(sheet: BalanceSheet, groups: int) -> BalanceSheet:
        if takes == gives:
            return sheet
        return sheet._replace(**{takes: sheet._asdict()[takes] + sign * groups, gives: sheet._asdict()[gives] + groups})

    return move


def _contrary(rule: AnyRule, mover: Mover) -> Mover:
    """Moves where the real one refuses, and refuses where it moves."""
    unguarded, refusing = _unguarded(rule), _refusing(rule)

    def move(sheet: BalanceSheet, groups: int) -> BalanceSheet:
        try:
            mover(sheet, groups)
        except InvariantBroken:
            return unguarded(sheet, groups)
        return refusing(sheet, groups)

    return move


def _frozen(mover: Mover) -> Mover:
    def move(sheet: BalanceSheet, groups: int) -> BalanceSheet:
        mover(sheet, groups)
        return sheet

    return move


def _refusing(rule: AnyRule) -> Mover:
    def move(sheet: BalanceSheet, groups: int) -> BalanceSheet:
        raise InvariantBroken(f"PromptGroup refuses {rule.event} of {groups} groups: {sheet}")

    return move


def _of_group(rule: AnyRule) -> Iterator[Mutant]:
    mover, table, guard = TRANSFER[rule.event], PROMPT_GROUP.name, _name(rule.guards[0])
    taken, decides = _where("taken", table, rule.name), _where("decides", table, rule.name, 0)
    for what, sentence, other, differs in (
        (f"{guard} dropped", "moves groups that are not there", _unguarded(rule), decides),
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
    groups = (mutant for rule in PROMPT_GROUP.rules if rule.event in TRANSFER for mutant in _of_group(rule))
    rules = (mutant for table in TABLES for mutant in _of_table(table))
    return (*groups, *rules, *(_unfair(name) for name, fair in FAIRNESS.items() if fair is not Fairness.NONE))
