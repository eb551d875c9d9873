"""Production's way to fire a rule: one `transitions.Machine` a table.

The machine's model carries the value. Guards are the machine's conditions. The update is computed in `before` and
committed once, with the status, in the setter of `state`, so an update that raises leaves the value as it was.
`transitions` returns False for a false guard and says nothing, so `Drive` looks the rule up first and refuses with an
error.
"""

from collections.abc import Callable
from enum import IntEnum
from typing import Any

from transitions import Machine

from fsm.errors import InvariantBroken
from fsm.machines.table import C, Rule, Table, V, enabled, refusal, with_status


class _Model:
    """The model of one machine: `value` is committed when the machine sets `state`."""

    def __init__(self, initial: IntEnum) -> None:
        self._status = initial
        self.value: Any = None
        self.pending: Any = None

    @property
    def state(self) -> IntEnum:
        status: IntEnum = self._status if self.value is None else self.value.status
        return status

    @state.setter
    def state(self, status: IntEnum) -> None:
        self._status = status
        if self.pending is not None:
            self.value = with_status(self.pending, status)
            self.pending = None


def _condition(model: _Model, guard: Callable[[Any, Any], bool]) -> Callable[[Any], bool]:
    return lambda context: guard(model.value, context)


def _before(model: _Model, update: Callable[[Any, Any], Any]) -> Callable[[Any], None]:
    def compute(context: Any) -> None:
        model.pending = update(model.value, context)

    return compute


def build_machine(table: Table[Any, Any]) -> tuple[Machine, _Model]:
    """The `transitions` machine of a table, and its model."""
    model = _Model(table.initial)
    machine = Machine(model, states=table.states, initial=table.initial, auto_transitions=False)
    for rule in table.rules:
        machine.add_transition(
            rule.event,
            list(rule.sources),
            rule.dest,
            conditions=[_condition(model, guard) for guard in rule.guards],
            before=_before(model, rule.update),
        )
    return machine, model


class Drive:
    """Fires rules through `transitions` machines. One owner, no threads."""

    def __init__(self, tables: tuple[Table[Any, Any], ...]) -> None:
        self._machines = {table.name: build_machine(table) for table in tables}

    def __call__(self, table: Table[V, C], event: str, value: V, context: C) -> V:
        """The value after the event. Raises InvariantBroken where the table refuses it."""
        rule: Rule[V, C] | None = enabled(table, event, value, context)
        if rule is None:
            raise InvariantBroken(refusal(table, event, value, context))
        machine, model = self._machines[table.name]
        model.value = value
        if not machine.events[event].trigger(model, context):
            raise InvariantBroken(f"{table.name}: transitions refused {rule.name}, which the table allows")
        moved: V = model.value
        return moved
