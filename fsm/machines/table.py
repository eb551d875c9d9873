"""Rule tables: each machine is declared once, as plain data.

A machine's value is a NamedTuple of integers whose first field, `status`, is a member of its table's states.
A rule also looks at a context, another NamedTuple of integers. Production drives a `transitions.Machine`
(`fsm.machines.drive`); the checker calls `fire`, the same rules as a plain function; diagrams and proof obligations are
made from the tables as well.

A table is total: in every state an event has a rule, or the event's refusal says what is missing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Generic, Protocol, TypeVar, cast

from fsm.errors import InvariantBroken


class Fairness(IntEnum):
    """How often the world and the core must fire a rule that they can fire, for a run to end."""

    NONE = 0
    """It may never fire: a failure, a filtered group."""
    WEAK = 1
    """It fires in the end, if it stays possible."""
    STRONG = 2
    """It fires in the end, if it becomes possible again and again."""


class Value(Protocol):
    """A machine's value: a NamedTuple whose first field is this."""

    @property
    def status(self) -> Any:
        """A member of the table's states."""


V = TypeVar("V", bound=Value)
C = TypeVar("C")


def with_status(value: V, status: IntEnum) -> V:
    """`value` in another state."""
    if value.status is status:
        return value
    fields = cast(Any, value)
    moved: V = tuple.__new__(type(fields), (status, *fields[1:]))  # `status` is the first field
    return moved


def unchanged(value: V, _: Any) -> V:
    """The update of a rule that only changes the status."""
    return value


@dataclass(frozen=True, slots=True)
class Rule(Generic[V, C]):
    """One line of a table: `event` moves a value from one of `sources` to `dest` where all guards hold."""

    event: str
    sources: tuple[IntEnum, ...]
    dest: IntEnum
    implements: tuple[str, ...]
    """The rules that it carries out (A1 … X4)."""
    guards: tuple[Callable[[V, C], bool], ...] = ()
    update: Callable[[V, C], V] = unchanged
    """Makes the new value, apart from its status. It may assume that the guards hold."""
    fairness: Fairness = Fairness.WEAK

    @property
    def name(self) -> str:
        """The event and the state that it leads to; unique within a table."""
        return f"{self.event}→{self.dest.name.lower()}"


@dataclass(frozen=True, slots=True)
class Table(Generic[V, C]):
    """A machine: its states, its rules and why an event is refused in every other state."""

    name: str
    states: type[IntEnum]
    initial: IntEnum
    rules: tuple[Rule[V, C], ...]
    refusals: Mapping[str, str]
    """Per event: when it is not refused, in one clause."""
    invariant: Callable[[V, C], bool]
    """Every rule keeps this true of the value; one proof obligation a rule."""
    by_event: Mapping[tuple[str, IntEnum], tuple[Rule[V, C], ...]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Index the rules by event and source, and refuse a table with a gap or an ambiguous name."""
        names = [rule.name for rule in self.rules]
        if len(set(names)) != len(names):
            raise InvariantBroken(f"{self.name}: two rules share a name in {names}")
        events = {rule.event for rule in self.rules}
        if events != set(self.refusals):
            raise InvariantBroken(f"{self.name}: refusals for {sorted(self.refusals)}, events {sorted(events)}")
        index: dict[tuple[str, IntEnum], tuple[Rule[V, C], ...]] = {
            (event, state): () for event in events for state in self.states
        }
        for rule in self.rules:
            for source in rule.sources:
                index[rule.event, source] += (rule,)
        object.__setattr__(self, "by_event", index)


class Fire(Protocol):
    """A way to carry out an event on a machine's value: `fire`, or `fsm.machines.drive.Drive`."""

    def __call__(self, table: Table[V, C], event: str, value: V, context: C) -> V:
        """The value after the event. Raises InvariantBroken where the table refuses it."""


def enabled(table: Table[V, C], event: str, value: V, context: C) -> Rule[V, C] | None:
    """The rule that `event` fires, or None where the event is refused."""
    for rule in table.by_event[event, value.status]:
        for guard in rule.guards:
            if not guard(value, context):
                break
        else:
            return rule
    return None


def refusal(table: Table[V, C], event: str, value: V, context: C) -> str:
    """Why `event` is refused, for an error message."""
    return (
        f"{table.name} refuses {event} in state {value.status.name.lower()}: {table.refusals[event]} "
        f"(value {value}, context {context})"
    )


def fire(table: Table[V, C], event: str, value: V, context: C) -> V:
    """The value after the event, by a plain call of the rule: the checker's way."""
    rule = enabled(table, event, value, context)
    if rule is None:
        raise InvariantBroken(refusal(table, event, value, context))
    return with_status(rule.update(value, context), rule.dest)
