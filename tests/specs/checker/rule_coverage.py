"""What an exploration went through: which rules fired, which guards were somewhere the only false one.

    seen = Coverage()
    explore(seen.watch(laws), world, seen.add_to(properties))

Transitions are remembered by what they read, so a rule is fired at least once for each way in which it can fire;
`watch` costs nothing after that. A guard is asked in every state that the exploration reaches, for every event of its
table and every number of groups from 0 to N, whether or not the core would ask for the event there: `add_to` adds one
state property a table for it, which always holds.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

from fsm.machines.admission_gate import ADMISSION_GATE, GateContext
from fsm.machines.catalog import TABLES
from fsm.machines.run import RUN, RunContext
from fsm.machines.shortfall_ledger import SHORTFALL_LEDGER, ShortfallLedger
from fsm.machines.source import SOURCE
from fsm.machines.spare_pool import SPARE_POOL
from fsm.machines.step_assembly import STEP_ASSEMBLY
from fsm.machines.table import Rule, Table, Value, enabled
from fsm.machines.trainer import TRAINER, TrainerContext
from fsm.rules.laws import Laws, ledger_context, pool_context, source_context, step_context
from fsm.state import NONE, State
from fsm.values import pages
from specs.properties.kinds import Always, Properties

V = TypeVar("V", bound=Value)
C = TypeVar("C")


class RuleSeen(NamedTuple):
    """A rule by the names of its table and its own."""

    table: str
    rule: str


class GuardSeen(NamedTuple):
    """A guard of a rule."""

    table: str
    rule: str
    guard: str


ALL_RULES: tuple[RuleSeen, ...] = tuple(RuleSeen(table.name, rule.name) for table in TABLES for rule in table.rules)
"""The rules of the machines that production drives."""
ALL_GUARDS: tuple[GuardSeen, ...] = tuple(
    GuardSeen(table.name, rule.name, guard.__name__)
    for table in TABLES
    for rule in table.rules
    for guard in rule.guards
)

Asked = Callable[[State, Laws, int], Iterable[tuple[Any, Any]]]
"""The values of a table's machine in a state, with the contexts that its events may be asked in."""


class RuleCoverage:
    """Adds up over as many explorations as it watches."""

    def __init__(self) -> None:
        self.fired: set[RuleSeen] = set()
        self.alone_false: set[GuardSeen] = set()
        """Guards that were the only false one of their rule, in a state that the rule leaves from."""

    @property
    def never_fired(self) -> list[RuleSeen]:
        """Rules that no exploration fired."""
        return [rule for rule in ALL_RULES if rule not in self.fired]

    @property
    def never_alone_false(self) -> list[GuardSeen]:
        """Guards that no reached state needed: redundant, or out of reach."""
        return [guard for guard in ALL_GUARDS if guard not in self.alone_false]

    def watch(self, laws: Laws) -> Laws:
        """Laws whose rules are noted when they fire."""
        fire = laws.fire

        def noting(table: Table[V, C], event: str, value: V, context: C) -> V:
            rule = enabled(table, event, value, context)
            if rule is not None:
                self.fired.add(RuleSeen(table.name, rule.name))
            return fire(table, event, value, context)

        return laws._replace(fire=noting)

    def add_to(self, properties: Properties) -> Properties:
        """Properties that ask every guard in every state too."""
        probes = tuple(
            Always(f"guards of {table.name}", "its guards are asked", (), self._probe(table, _ASKED[table.name]))
            for table in TABLES
        )
        return properties._replace(always=(*properties.always, *probes))

    def _probe(self, table: Table[Any, Any], asked: Asked) -> Callable[[State, Laws], bool]:
        def ask(state: State, laws: Laws) -> bool:
            for groups in range(laws.limits.size + 1):
                for value, context in asked(state, laws, groups):
                    for rule in table.rules:
                        if value.status in rule.sources:
                            self._ask(table, rule, value, context)
            return True

        return ask

    def _ask(self, table: Table[Any, Any], rule: Rule[Any, Any], value: object, context: object) -> None:
        false = [guard for guard in rule.guards if not guard(value, context)]
        if len(false) == 1:
            self.alone_false.add(GuardSeen(table.name, rule.name, false[0].__name__))


def _gate(state: State, laws: Laws, groups: int) -> Iterable[tuple[Any, Any]]:
    bound = NONE if laws.limits.closes_short else laws.limits.max_steps
    yield state.gate, GateContext(min(groups, 1), bound, state.trainer.version)


def _ledgers(state: State, laws: Laws, groups: int) -> Iterable[tuple[Any, Any]]:
    del groups
    version = state.trainer.version
    yield pages.get(state.ledgers, version, ShortfallLedger()), ledger_context(state, laws.limits, version)
    for step, ledger in pages.items(state.ledgers):
        yield ledger, ledger_context(state, laws.limits, step)


_ASKED: dict[str, Asked] = {
    STEP_ASSEMBLY.name: lambda state, laws, groups: [(state.step, step_context(state, laws, groups))],
    SHORTFALL_LEDGER.name: _ledgers,
    SPARE_POOL.name: lambda state, laws, groups: [(state.pool, pool_context(state, laws, groups))],
    ADMISSION_GATE.name: _gate,
    TRAINER.name: lambda state, laws, groups: [(state.trainer, TrainerContext(groups))],
    SOURCE.name: lambda state, laws, groups: [(state.source, source_context(state, laws, groups))],
    RUN.name: lambda state, laws, groups: [(state.run, RunContext())],
}
