"""Our side of the comparison: what the checker counts of the core."""

from __future__ import annotations

import time

from specs.checker.explore import HOLDS, explore
from specs.evidence.twins.configurations import Configuration
from specs.evidence.twins.counts import Counts, ToolFailed
from specs.model import CrashFrom, WorldOptions
from specs.properties.kinds import Properties, properties_of


def count(run: Configuration) -> Counts:
    """All states and transitions of a run, with the properties of states and transitions on, as the twins have theirs.

    Late answers change nothing and are no answers of the twins. Raises ConfigError, and ToolFailed where a property is
    broken.
    """
    laws = run.laws()
    crash = CrashFrom.OWN_SNAPSHOT if run.crashes else CrashFrom.NOTHING
    world = WorldOptions(fails=run.fails, backs_off=run.backs_off, claims_fail=run.claims_fail, late=False, crash=crash)
    looked_for = properties_of(laws)
    begun_s = time.process_time()
    found = explore(laws, world, Properties(looked_for.always, looked_for.edges))
    seconds = time.process_time() - begun_s
    if found.verdict != HOLDS:
        told = f"{found.why} {found.broken or ''} after {', '.join(answer.name for answer in found.counterexample)}"
        raise ToolFailed(f"the checker: {run.name}: {found.verdict}: {told}")
    return Counts(found.states, found.transitions, seconds)
