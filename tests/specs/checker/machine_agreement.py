"""The compiled successor function against production's machines: every rule, fired both ways, wherever it is reached.

`Agreement` takes the place of `fire` in the laws of an exploration. Whenever a machine's value and a context come up
for the first time, every event of its table is asked of both: the plain function that the checker uses, and the
`transitions` machine that drives a run.
"""

from typing import Any, TypeVar

from transitions import MachineError

from fsm.machines.catalog import TABLES
from fsm.machines.drive import build_machine
from fsm.machines.table import Table, Value, enabled, fire, with_status

V = TypeVar("V", bound=Value)
C = TypeVar("C")

Reached = tuple[str, Any, Any]


class Disagreement(Exception):
    """A machine does otherwise than the rules of its table."""


class Agreement:
    """Fires rules as the checker does, and compares what `transitions` machines do with the same."""

    def __init__(self, tables: tuple[Table[Any, Any], ...] = TABLES) -> None:
        self._machines = {table.name: build_machine(table) for table in tables}
        self.compared: set[Reached] = set()
        """Per table the values and contexts that were reached."""
        self.fired: set[tuple[str, str]] = set()
        """Tables and their rules that both have fired."""

    def __call__(self, table: Table[V, C], event: str, value: V, context: C) -> V:
        """The value after the event. Raises Disagreement, and InvariantBroken where the table has no move."""
        reached = (table.name, value, context)
        if reached not in self.compared:
            self.compared.add(reached)
            for other in table.refusals:
                self._compare(table, other, value, context)
        moved: V = fire(table, event, value, context)
        return moved

    def _compare(self, table: Table[V, C], event: str, value: V, context: C) -> None:
        rule = enabled(table, event, value, context)
        expected = None if rule is None else with_status(rule.update(value, context), rule.dest)
        moved = self._trigger(table.name, event, value, context)
        if moved != expected:
            raise Disagreement(
                f"{table.name}, {event} of {value} with {context}: the machine makes {moved}, the rules {expected}"
            )
        if rule is not None:
            self.fired.add((table.name, rule.name))

    def _trigger(self, name: str, event: str, value: Any, context: Any) -> Any:
        """The machine's value after the event; None where it refuses."""
        machine, model = self._machines[name]
        model.value = value
        try:
            return model.value if machine.events[event].trigger(model, context) else None
        except MachineError:
            return None
        finally:
            model.pending = None
