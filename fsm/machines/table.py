"""Rule tables: one declaration of each machine as plain data, from which everything else is made.

A machine's value is a NamedTuple of integers whose first field, `status`, is a member of its table's states.
What a rule may look at beside the value is its context, a NamedTuple of integers too. Production drives a
`transitions.Machine` (`fsm.machines.drive`); the checker calls `fire`, the same rules as a plain function; the
diagrams and the proof obligations are read off the same tables.

A table is total: for every state and event there is a move, or the event's refusal says why there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Generic, Protocol, TypeVar, cast

from fsm.errors import InvariantBroken


class Fairness(IntEnum):
    """How often the world and the core must take a move that they can take, for a run to end."""

    NONE = 0
    """It may never be taken: a failure, a filtered group."""
    WEAK = 1
    """Taken in the end, if it stays possible."""
    STRONG = 2
    """Taken in the end, if it is possible again and again."""


class Value(Protocol):
    """What a machine's value has in common with the others': it is a NamedTuple, and its first field this."""

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
    """The update of a rule that only moves the status."""
    return value


@dataclass(frozen=True, slots=True)
class Rule(Generic[V, C]):
    """One line of a table: `event` moves a value from one of `sources` to `dest` where all guards hold."""

    event: str
    sources: tuple[IntEnum, ...]
    dest: IntEnum
    implements: tuple[str, ...]
    """The rules of the design that it carries out (A1 … X4)."""
    guards: tuple[Callable[[V, C], bool], ...] = ()
    update: Callable[[V, C], V] = unchanged
    """The new value but for its status. It may assume that the guards hold."""
    fairness: Fairness = Fairness.WEAK

    @property
    def name(self) -> str:
        """Unique within a table: the event and where it leads, and the guards where those do not tell."""
        return f"{self.event}→{self.dest.name.lower()}"


@dataclass(frozen=True, slots=True)
class Table(Generic[V, C]):
    """A machine: its states, its rules and why an event is refused in every other state."""

    name: str
    states: type[IntEnum]
    initial: IntEnum
    rules: tuple[Rule[V, C], ...]
    refusals: Mapping[str, str]
    """Per event: what must be the case for it, in one clause."""
    invariant: Callable[[V, C], bool]
    """What every rule keeps true of a value; one proof obligation a rule."""
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
    """Carries out an event on a machine's value, by whatever means; see `fire` and `fsm.machines.drive.Drive`."""

    def __call__(self, table: Table[V, C], event: str, value: V, context: C) -> V:
        """The value after the event. Raises InvariantBroken where the table has no move for it."""


def enabled(table: Table[V, C], event: str, value: V, context: C) -> Rule[V, C] | None:
    """The rule that `event` would take, or None where the event is refused."""
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
    """The rules as a plain function, as the checker uses them."""
    rule = enabled(table, event, value, context)
    if rule is None:
        raise InvariantBroken(refusal(table, event, value, context))
    return with_status(rule.update(value, context), rule.dest)
