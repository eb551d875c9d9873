"""All properties together: those of `specs.properties.kinds`, and what mutants of the core showed to be missing there.

They are kept apart from `properties_of` for their cost: about a second property for each rule.
"""

from __future__ import annotations

from fsm.rules.laws import Laws
from specs.properties.kinds import Properties, properties_of
from specs.properties.more_edges import MORE_EDGES
from specs.properties.more_states import MORE_ALWAYS


def all_properties_of(laws: Laws) -> Properties:
    """Everything that a run under these laws must keep, said twice where the core says it once."""
    known = properties_of(laws)
    return known._replace(always=(*known.always, *MORE_ALWAYS), edges=(*known.edges, *MORE_EDGES))


def only(properties: Properties, *names: str) -> Properties:
    """Those of that name; deadlocks and refusals are looked for in any case."""
    others = (prop.name for kind in properties for prop in kind if prop.name not in names)
    return properties.without(*others)
