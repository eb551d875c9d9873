"""All properties, in the order in which they are looked for: the first one that is violated is reported.

`properties_of` are those of every exploration. `all_properties_of` has about one more for each rule, which mutants of
the core showed to be missing; they are kept apart for their cost.
"""

from fsm.rules.laws import Laws
from specs.properties import edges_of_groups as groups
from specs.properties import edges_of_steps as steps
from specs.properties.kinds import DEADLOCK, REFUSED, Always, Edge, Eventually, Properties, Sometimes
from specs.properties.states import ALWAYS, MORE_ALWAYS, fresh, gate, selected

EDGES: tuple[Edge, ...] = (
    steps.sheet, steps.even, groups.target, steps.once, groups.late, steps.sampler, steps.resumed,
)  # fmt: skip
MORE_EDGES: tuple[Edge, ...] = (
    groups.admission, groups.spares_last, groups.held_back, groups.data, groups.starts, steps.idle, groups.stamps,
    groups.room, groups.chunk, groups.eligible, groups.order, groups.stale, steps.losses, steps.ledgers, steps.drops,
    steps.filtered, steps.stops, steps.finishes, steps.ends_when_due,
)  # fmt: skip
OF_PROMISES: tuple[Always | Edge, ...] = (
    gate, selected, fresh, groups.admission, groups.eligible, groups.order, groups.stale, steps.losses,
)  # fmt: skip
"""What a sampler may promise. The built-in ones are held to it with `all_properties_of`, a custom one always."""
SOMETIMES: tuple[Sometimes, ...] = (steps.completes, steps.closes_a_step)
EVENTUALLY: tuple[Eventually, ...] = (steps.steps_close, steps.ends)
NAMES: frozenset[str] = frozenset(
    {DEADLOCK, REFUSED, "staleness"}
    | {prop.name for props in (ALWAYS, MORE_ALWAYS, EDGES, MORE_EDGES, SOMETIMES, EVENTUALLY) for prop in props}
)
"""The names that are taken."""


def properties_of(laws: Laws) -> Properties:
    """What every run under these laws must keep."""
    limits, bound = laws.limits, laws.promises.staleness_bound
    edges = EDGES if bound is None else (*EDGES, groups.staleness(bound))
    trains = limits.prompts_per_epoch >= limits.size + limits.reserve and limits.max_steps != 0
    known = Properties(ALWAYS, edges, SOMETIMES if trains else (steps.completes,), EVENTUALLY)
    return known.and_also(OF_PROMISES) if laws.is_custom else known


def all_properties_of(laws: Laws) -> Properties:
    """The same and everything that says a rule once more."""
    known = properties_of(laws).without(*(prop.name for prop in OF_PROMISES))
    return known.and_also((*MORE_ALWAYS, *MORE_EDGES))
