"""Obligations of the rules, and their twins, derived from the tables."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple, get_type_hints

from fsm.machines.catalog import ALL_TABLES
from fsm.machines.table import Rule, Table, with_status
from specs.evidence.contracts.assumptions import DUE, EDGES, before_of
from specs.evidence.contracts.obligation import Obligation, ProofCase, WrongTwin

AnyTable = Table[Any, Any]
AnyRule = Rule[Any, Any]
Guard = Callable[[Any, Any], bool]
Rules = tuple[AnyRule, ...]


class Subject(NamedTuple):
    """What an obligation about an event quantifies over."""

    arguments: dict[str, type]
    read: Callable[..., tuple[Any, Any]]
    """The value and the context after the event, from the arguments."""
    stood: Callable[..., bool]
    """The value stood before the event as is assumed (`assumptions.BEFORE`)."""


def subject_of(table: AnyTable, event: str) -> Subject:
    """A value in any state and a context, all fields symbolic, read off the types of the table's invariant."""
    value_type, context_type, _ = get_type_hints(table.invariant).values()
    before = before_of(table.name, event)
    fields = len(value_type._fields)
    end = fields + len(context_type._fields)
    arguments: dict[str, type] = {"status": table.states}
    arguments.update(dict.fromkeys(value_type._fields[1:], int))
    for name in context_type._fields:
        arguments[f"context_{name}" if name in arguments else name] = int
    arguments.update({f"{name}_before": int for name in before.moved})

    def read(*given: Any) -> tuple[Any, Any]:
        return value_type(*given[:fields]), context_type(*given[fields:end])

    def stood(*given: Any) -> bool:
        value, context = read(*given)
        earlier = context._replace(**dict(zip(before.moved, given[end:], strict=True))) if before.moved else context
        return before.stood(value, earlier, context)

    return Subject(arguments, read, stood)


def applies(rule: AnyRule, value: Any, context: Any) -> bool:
    """The rule leaves from the value's state and its guards hold."""
    return value.status in rule.sources and all(guard(value, context) for guard in rule.guards)


def keeps(table: AnyTable, rule: AnyRule) -> Obligation:
    """Invariant ∧ guards ⇒ invariant(update), and the update does what a move of this table may do."""
    subject = subject_of(table, rule.event)

    def assumed(*given: Any) -> bool:
        return applies(rule, *subject.read(*given)) and subject.stood(*given)

    def holds(*given: Any) -> bool:
        value, context = subject.read(*given)
        return _is_kept(table, value, rule.update(value, context), context, rule)

    says = f"{rule.event} keeps what holds of a {table.name}"
    return Obligation(f"{table.name}.{rule.name}", says, rule.implements, subject.arguments, assumed, holds)


def _is_kept(table: AnyTable, value: Any, updated: Any, context: Any, rule: AnyRule) -> bool:
    after = with_status(updated, rule.dest)
    return table.invariant(after, context) and EDGES[table.name](value, after, context)


def _miscounted(table: AnyTable, rule: AnyRule, position: int) -> Obligation:
    """The rule with one field of its update one too many or too few."""
    right, subject = keeps(table, rule), subject_of(table, rule.event)

    def assumed(*given: Any) -> bool:
        return given[-1] in (1, -1) and right.applies(*given[:-1])

    def holds(*given: Any) -> bool:
        value, context = subject.read(*given[:-1])
        columns = list(rule.update(value, context))
        columns[position] += given[-1]
        return _is_kept(table, value, value._make(columns), context, rule)

    return right._replace(arguments={**right.arguments, "off_by": int}, applies=assumed, holds=holds)


def _without(guard: Guard) -> str:
    return f"without {guard.__name__.lstrip('_')}"


def _unguarded(rule: AnyRule, guard: Guard) -> AnyRule:
    return replace(rule, guards=tuple(each for each in rule.guards if each is not guard))


def twins_of(table: AnyTable, rule: AnyRule) -> Iterator[WrongTwin]:
    """Each guard dropped, each field of the update off by one; a rule with neither leaves from every state."""
    for guard in rule.guards:
        yield WrongTwin(_without(guard), keeps(table, _unguarded(rule, guard)))
    value_type = next(iter(get_type_hints(table.invariant).values()))
    for position, name in enumerate(value_type._fields[1:], start=1):
        yield WrongTwin(f"{name} off by one", _miscounted(table, rule, position))
    if not rule.guards and value_type._fields == ("status",):
        yield WrongTwin("from every state", keeps(table, replace(rule, sources=tuple(table.states))))


def _cited(rules: Rules) -> tuple[str, ...]:
    return tuple(dict.fromkeys(each for rule in rules for each in rule.implements))


def at_most_one(table: AnyTable, event: str, rules: Rules) -> Obligation:
    """Guards of the rules that leave one state for one event are disjoint, whatever the value and context."""
    subject = subject_of(table, event)

    def several_leave(*given: Any) -> bool:
        value, _ = subject.read(*given)
        return sum(1 for rule in rules if value.status in rule.sources) > 1

    def disjoint(*given: Any) -> bool:
        value, context = subject.read(*given)
        return sum(1 for rule in rules if applies(rule, value, context)) <= 1

    name, says = f"{table.name}.{event} is unambiguous", "no two rules apply at once, so their order decides nothing"
    return Obligation(name, says, _cited(rules), subject.arguments, several_leave, disjoint)


def at_least_one(table: AnyTable, event: str, rules: Rules) -> Obligation:
    """Where the event is due (`assumptions.DUE`), some rule takes it: the guards leave no gap between them."""
    subject = subject_of(table, event)
    due = DUE[table.name, event]
    sources = {source for rule in table.rules if rule.event == event for source in rule.sources}

    def is_due(*given: Any) -> bool:
        value, context = subject.read(*given)
        return value.status in sources and due(value, context) and subject.stood(*given)

    def taken(*given: Any) -> bool:
        value, context = subject.read(*given)
        return any(applies(rule, value, context) for rule in rules)

    name, says = f"{table.name}.{event} is complete", "some rule applies whenever the event is due"
    return Obligation(name, says, _cited(rules), subject.arguments, is_due, taken)


def _of_event(table: AnyTable, event: str) -> Iterator[ProofCase]:
    rules = tuple(rule for rule in table.rules if rule.event == event)
    shared = set(rules[0].guards).intersection(*(rule.guards for rule in rules))

    def unguarded(rule: AnyRule, guard: Guard) -> WrongTwin:
        others = tuple(_unguarded(rule, guard) if each is rule else each for each in rules)
        return WrongTwin(f"{rule.name} {_without(guard)}", at_most_one(table, event, others))

    def missing(rule: AnyRule) -> WrongTwin:
        others = tuple(each for each in rules if each is not rule)
        return WrongTwin(f"no {rule.name}", at_least_one(table, event, others))

    # A guard that all of them have tells none of them apart.
    telling = ((rule, guard) for rule in rules for guard in rule.guards if guard not in shared)
    yield ProofCase(at_most_one(table, event, rules), tuple(unguarded(rule, guard) for rule, guard in telling))
    yield ProofCase(at_least_one(table, event, rules), tuple(missing(rule) for rule in rules))


def cases() -> Iterator[ProofCase]:
    """One case a rule of every table, and two an event that several rules of one state share."""
    for table in ALL_TABLES:
        for rule in table.rules:
            yield ProofCase(keeps(table, rule), tuple(twins_of(table, rule)))
        for event in sorted({event for (event, _), rules in table.by_event.items() if len(rules) > 1}):
            yield from _of_event(table, event)
