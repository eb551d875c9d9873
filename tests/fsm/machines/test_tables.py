"""The rule tables: total, named, sound, and the same in both ways of firing them."""

import inspect
import re
from collections.abc import Callable
from enum import IntEnum
from types import FunctionType
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsm.errors import InvariantBroken
from fsm.machines.admission_gate import AdmissionGate
from fsm.machines.catalog import ALL_TABLES, TABLES
from fsm.machines.drive import Drive, build_machine
from fsm.machines.prompt_group import PROMPT_GROUP, TRANSFER, BalanceSheet, GroupState
from fsm.machines.run import Run
from fsm.machines.shortfall_ledger import ShortfallLedger
from fsm.machines.source import Source
from fsm.machines.spare_pool import SparePool
from fsm.machines.step_assembly import StepAssembly
from fsm.machines.table import Rule, Table, enabled, fire, unchanged
from fsm.machines.trainer import Trainer
from fsm.rules.changes import RULES
from tests.fsm.helpers import examples
from tests.fsm.machines.table_values import VALUE_TYPES, contexts_of, stood_before, values_of

KNOWN_RULES = {
    "A1", "A2", "A3", "A4", "A5", "A6", "D1", "D2", "D3", "S1", "S2", "S3", "S4", "S5", "E1", "E2",
    "L1", "L2", "L3", "L4", "L5", "L6", "L7", "L8", "P1", "P2", "X1", "X2", "X3", "X4", "W1", "W2",
    "C1", "C2", "C3", "C4",
}  # fmt: skip
"""Those of docs/rules.md."""

MACHINES = {
    "PromptGroup", "StepAssembly", "ShortfallLedger", "SparePool", "AdmissionGate", "Trainer", "Source", "Run",
}  # fmt: skip

VALUE_TYPE: dict[str, type[Any]] = VALUE_TYPES | {
    each.__name__: each for each in (StepAssembly, ShortfallLedger, SparePool, AdmissionGate, Trainer, Source, Run)
}

each_table = pytest.mark.parametrize("table", ALL_TABLES, ids=lambda table: table.name)
driven_table = pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)


def test_every_machine_of_the_design_has_one_table() -> None:
    assert sorted(table.name for table in ALL_TABLES) == sorted(MACHINES)


@each_table
def test_every_state_and_event_is_a_move_or_a_refusal_in_words(table: Table[Any, Any]) -> None:
    events = {rule.event for rule in table.rules}
    assert set(table.by_event) == {(event, state) for event in events for state in table.states}
    assert set(table.refusals) == events
    for event, why in table.refusals.items():
        assert len(why.split()) >= 2, f"{event} is refused without a word"
        assert why[0].islower(), f"{event}: the clause stands within a sentence: {why}"
        assert not why.endswith("."), f"{event}: the clause stands within a sentence: {why}"


@each_table
def test_every_state_can_be_reached_by_the_rules(table: Table[Any, Any]) -> None:
    reached = {table.initial}
    while True:
        more = {rule.dest for rule in table.rules if reached & set(rule.sources)} - reached
        if not more:
            break
        reached |= more
    assert reached == set(table.states)


@each_table
def test_rules_and_events_have_names_that_are_words_and_unique(table: Table[Any, Any]) -> None:
    names = [rule.name for rule in table.rules]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", rule.event) for rule in table.rules)


@each_table
def test_every_rule_implements_rules_that_the_design_has(table: Table[Any, Any]) -> None:
    for rule in table.rules:
        assert rule.implements, f"{rule.name} implements no rule"
        assert set(rule.implements) <= KNOWN_RULES, f"{rule.name}: {rule.implements}"


def test_every_move_of_the_core_names_rules_that_the_design_has() -> None:
    assert all(rules and set(rules) <= KNOWN_RULES for rules in RULES.values())


@each_table
def test_guards_updates_and_invariants_are_free_functions_with_a_name(table: Table[Any, Any]) -> None:
    functions: list[Callable[..., Any]] = [table.invariant]
    for rule in table.rules:
        functions += [*rule.guards, rule.update]
    for function in functions:
        assert isinstance(function, FunctionType), f"{function!r} is no free function"
        assert "lambda" not in function.__name__
        assert len(inspect.signature(function).parameters) == 2, f"{function.__name__} takes a value and a context"


@each_table
def test_no_two_guards_of_a_table_share_a_name(table: Table[Any, Any]) -> None:
    guards = {guard for rule in table.rules for guard in rule.guards}
    by_name: dict[str, set[Any]] = {}
    for guard in guards:
        by_name.setdefault(guard.__name__, set()).add(guard)
    if table.name == "SparePool":  # one guard a state that it leads to, for spares that come and for spares that go
        assert all(len(same) <= 3 for same in by_name.values())
    else:
        assert all(len(same) == 1 for same in by_name.values()), by_name


@each_table
def test_no_two_rules_apply_at_once_so_that_their_order_decides_nothing(table: Table[Any, Any]) -> None:
    make = VALUE_TYPE[table.name]
    contexts = list(contexts_of(table))[::7] or list(contexts_of(table))
    for value in values_of(table, make):
        for event in table.refusals:
            rules = table.by_event[event, value.status]
            if len(rules) < 2:
                continue
            for context in contexts:
                applying = [rule.name for rule in rules if all(guard(value, context) for guard in rule.guards)]
                assert len(applying) <= 1, f"{applying} of {value}, {context}"


def test_a_table_with_two_rules_of_one_name_is_refused() -> None:
    rule = Rule("go", (GroupState.DATA,), GroupState.SPARE, ("P1",))
    with pytest.raises(InvariantBroken, match="share a name"):
        _table((rule, rule), {"go": "never refused"})


def test_a_table_with_an_event_that_has_no_refusal_is_refused() -> None:
    rule = Rule("go", (GroupState.DATA,), GroupState.SPARE, ("P1",))
    with pytest.raises(InvariantBroken, match="refusals for"):
        _table((rule,), {})


def _table(rules: tuple[Rule[Any, Any], ...], refusals: dict[str, str]) -> Table[Any, Any]:
    return Table("Trial", GroupState, GroupState.DATA, rules, refusals, lambda value, context: True)


ALL_RULES = [(table, rule) for table in ALL_TABLES for rule in table.rules]


@pytest.mark.parametrize(("table", "rule"), ALL_RULES, ids=[f"{t.name}.{r.name}" for t, r in ALL_RULES])
def test_every_rule_keeps_its_machine_s_invariant_and_changes_nothing_but_by_a_new_value(
    table: Table[Any, Any], rule: Rule[Any, Any]
) -> None:
    """Section 3: invariant ∧ guards ⇒ invariant(update), over the whole grid, and an update is pure."""
    contexts = list(contexts_of(table))
    applied = 0
    for value in values_of(table, VALUE_TYPE[table.name]):
        if value.status not in rule.sources:
            continue
        for context in contexts:
            if not all(guard(value, context) for guard in rule.guards):
                continue
            if not stood_before(table, rule.event, value, context):
                continue
            applied += 1
            before = (tuple(value), tuple(context))
            after = rule.update(value, context)
            assert (tuple(value), tuple(context)) == before
            assert after == rule.update(value, context)
            assert type(after) is type(value)
            moved = after._replace(status=rule.dest)
            assert table.invariant(moved, context), f"{value} with {context} became {moved}"
    assert applied, "the grid never lets the rule apply: the obligation was tried on nothing"


@driven_table
def test_transitions_and_the_plain_function_agree_on_every_state_and_event(table: Table[Any, Any]) -> None:
    """Section 3, agreement: the same value, or both refuse. What is refused leaves the model as it was."""
    drive = Drive((table,))
    values = list(values_of(table, VALUE_TYPE[table.name]))
    contexts = list(contexts_of(table))
    stride = max(1, len(values) * len(contexts) * len(table.refusals) // 20_000)
    pairs = [(value, context) for value in values for context in contexts]
    fired = set()
    for event in table.refusals:
        for value, context in pairs[:: stride | 1]:
            rule = enabled(table, event, value, context)
            if rule is None:
                with pytest.raises(InvariantBroken) as plain:
                    fire(table, event, value, context)
                with pytest.raises(InvariantBroken) as driven:
                    drive(table, event, value, context)
                assert str(plain.value) == str(driven.value)
                assert table.refusals[event] in str(plain.value)
                continue
            wanted = fire(table, event, value, context)
            found = drive(table, event, value, context)
            assert (found, found.status) == (wanted, rule.dest)
            assert type(found) is type(value)
            fired.add(rule.name)
    assert fired == {rule.name for rule in table.rules}, "the grid leaves rules untried"


@driven_table
def test_the_transitions_machine_has_the_table_s_events_and_no_automatic_ones(table: Table[Any, Any]) -> None:
    machine, model = build_machine(table)
    assert set(machine.events) == set(table.refusals)
    assert set(machine.states) == {state.name for state in table.states}
    assert not [name for name in dir(model) if name.startswith("to_")]
    for event in table.refusals:
        transitions = [each for group in machine.events[event].transitions.values() for each in group]
        assert len(transitions) == sum(len(rule.sources) for rule in table.rules if rule.event == event)


class Switch(IntEnum):
    OFF = 0
    ON = 1


class Lamp(NamedTuple):
    status: Switch = Switch.OFF
    turns: int = 0


class Power(NamedTuple):
    there: int = 1


def _there(_: Lamp, power: Power) -> bool:
    return power.there == 1


def _burst(_: Lamp, power: Power) -> Lamp:
    raise ZeroDivisionError("the update failed")


def _turn(lamp: Lamp, _: Power) -> Lamp:
    return lamp._replace(turns=lamp.turns + 1)


LAMP: Table[Lamp, Power] = Table(
    "Lamp",
    Switch,
    Switch.OFF,
    (
        Rule("turn_on", (Switch.OFF,), Switch.ON, ("S1",), (_there,), _turn),
        Rule("turn_off", (Switch.ON,), Switch.OFF, ("S1",), (), unchanged),
        Rule("overload", (Switch.OFF, Switch.ON), Switch.ON, ("S1",), (), _burst),
    ),
    {"turn_on": "it is off", "turn_off": "it is on", "overload": "always possible"},
    lambda lamp, power: lamp.turns >= 0,
)


def test_an_update_that_raises_leaves_the_model_as_it_was_and_the_next_event_right() -> None:
    machine, model = build_machine(LAMP)
    for lamp in (Lamp(), Lamp(Switch.ON, 3)):
        model.value = lamp
        with pytest.raises(ZeroDivisionError):
            machine.events["overload"].trigger(model, Power())
        assert (model.value, model.state) == (lamp, lamp.status)
    drive = Drive((LAMP,))
    with pytest.raises(ZeroDivisionError):
        drive(LAMP, "overload", Lamp(), Power())
    assert drive(LAMP, "turn_on", Lamp(turns=1), Power()) == Lamp(Switch.ON, 2)
    assert drive(LAMP, "turn_off", Lamp(Switch.ON, 2), Power()) == Lamp(Switch.OFF, 2)


def test_a_false_guard_is_refused_loudly_with_the_state_the_clause_and_the_values() -> None:
    with pytest.raises(InvariantBroken, match=r"Lamp refuses turn_on in state off: it is off .*there=0"):
        Drive((LAMP,))(LAMP, "turn_on", Lamp(), Power(0))
    with pytest.raises(InvariantBroken, match="Lamp refuses turn_off in state off"):
        fire(LAMP, "turn_off", Lamp(), Power())


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.integers(0, 5), min_size=12, max_size=12), st.sampled_from(PROMPT_GROUP.rules), st.integers(-1, 7))
def test_a_group_s_life_moves_counts_and_keeps_the_balance_sheet(
    counts: list[int], rule: Rule[Any, Any], groups: int
) -> None:
    """X4: every prompt pulled stays in exactly one place, and no more move than are there."""
    sheet = BalanceSheet(*counts)._replace(pulled=sum(counts[1:11]))
    if rule.event == "regenerate":
        assert rule.event not in TRANSFER
        return
    [source] = rule.sources
    there = sheet[source] if source else 10**9
    if not 0 <= groups <= there:
        with pytest.raises(InvariantBroken, match=rule.event):
            TRANSFER[rule.event](sheet, groups)
        return
    moved = TRANSFER[rule.event](sheet, groups)
    assert moved.balanced
    assert sum(moved[1:11]) == sum(sheet[1:11]) + (0 if source else groups)
    if source != rule.dest:
        assert moved[rule.dest] == sheet[rule.dest] + groups
