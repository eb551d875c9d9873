"""Explores the cases of a configuration, on several processes, and puts the verdicts together."""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from functools import partial
from typing import NamedTuple

from specs.check.cases import Case, laws_in, outside_code, properties_in
from specs.check.user_properties import PropertyFault
from specs.checker.explore import HOLDS, UNDETERMINED, VIOLATED, Result, explore
from specs.counterexample import Unconfirmed
from specs.engine.search import Bounds
from specs.processes.hanging import Hangs, blaming, watched
from specs.processes.pool import on_processes
from specs.properties.kinds import DEADLOCK, REFUSED, Properties

_MOST_REPORTED = 6
"""Violated properties that are reported of one case."""


def _worst(verdicts: Iterable[str]) -> str:
    """Violated if any is; undetermined if any is that; holds only if all hold."""
    found = set(verdicts)
    return next((worst for worst in (VIOLATED, UNDETERMINED) if worst in found), HOLDS)


class CaseResult(NamedTuple):
    """The result of one case."""

    case: Case
    results: tuple[Result, ...]
    """One that holds or is undetermined; or one for each violated property, with its own shortest counterexample."""

    @property
    def verdict(self) -> str:
        """The worst of its results."""
        return _worst(result.verdict for result in self.results)

    @property
    def states(self) -> int:
        """Distinct states of the largest exploration of the case."""
        return max(result.states for result in self.results)

    @property
    def transitions(self) -> int:
        """Transitions of the largest exploration of the case."""
        return max(result.transitions for result in self.results)

    @property
    def seconds(self) -> float:
        """Of all its explorations."""
        return sum(result.seconds for result in self.results)

    @property
    def why(self) -> str:
        """The bound that was hit, or what the core refused; empty if there is neither."""
        return next((result.why for result in self.results if result.why), "")


class Checked(NamedTuple):
    """The results of all cases."""

    findings: tuple[CaseResult, ...]
    """In the order of the cases."""
    seconds: float

    @property
    def verdict(self) -> str:
        """The worst of all cases."""
        return _worst(finding.verdict for finding in self.findings)

    @property
    def states(self) -> int:
        """Distinct states, summed over the cases."""
        return sum(finding.states for finding in self.findings)

    @property
    def transitions(self) -> int:
        """Transitions, summed over the cases."""
        return sum(finding.transitions for finding in self.findings)

    def violations(self) -> list[tuple[Case, Result]]:
        """Per violated property its shortest counterexample in any case; first the hangs, which others hide behind."""
        shortest: dict[str, tuple[Case, Result]] = {}
        for finding in self.findings:
            for result in finding.results:
                if result.verdict == VIOLATED and result.broken is not None:
                    known = shortest.get(result.broken)
                    if known is None or _length(result) < _length(known[1]):
                        shortest[result.broken] = finding.case, result
        return sorted(shortest.values(), key=lambda entry: (_rank(*entry), _length(entry[1])))


def _length(result: Result) -> int:
    return len(result.counterexample)


def never_happens(case: Case, result: Result) -> bool:
    """The violated property is a `Sometimes`: it has no counterexample, since all states were visited in vain."""
    return any(prop.name == result.broken for prop in properties_in(case).sometimes)


def _rank(case: Case, result: Result) -> int:
    """Hangs, refusals and a sampler that stops the run; then endless runs; then all others; last what never happens."""
    if result.broken in (DEADLOCK, REFUSED, "sampler"):
        return 0
    if result.cycle_start is not None:
        return 1
    return 3 if never_happens(case, result) else 2


def check_case(case: Case, bounds: Bounds = Bounds()) -> CaseResult:  # noqa: B008  (a NamedTuple)
    """Explore one case: again without each property that is violated, since the first hides those that come later.

    Raises ConfigError for a sampler or property that cannot be loaded, PropertyFault, and Unconfirmed.
    """
    properties = properties_in(case)
    results: list[Result] = []
    while len(results) < _MOST_REPORTED:
        result = _explored(case, properties, bounds)
        if result.verdict == VIOLATED or not results:
            results.append(result)
        if result.verdict != VIOLATED or result.broken in (None, DEADLOCK, REFUSED):
            break
        properties = properties.without(str(result.broken))
    return CaseResult(case, tuple(results))


def _explored(case: Case, properties: Properties, bounds: Bounds) -> Result:
    try:
        return explore(laws_in(case), case.world, properties, bounds=bounds)
    except Unconfirmed as twofold:
        if not case.properties:
            raise
        who = " or ".join(outside_code(case.scaled.config, case.properties).values())
        raise PropertyFault(
            f"{who} gave different answers for the same arguments, so there is no verdict: {twofold.__cause__}. "
            f"Correct it: a sampler and a property are functions of their arguments alone"
        ) from twofold


def check_cases(
    cases: Sequence[Case],
    bounds: Bounds = Bounds(),  # noqa: B008  (a NamedTuple)
    *,
    jobs: int = 1,
    tell: Callable[[CaseResult], None] | None = None,
    hangs: Hangs | None = None,
) -> Checked:
    """Explore cases on `jobs` processes. `tell` is called with each result as it comes.

    With `hangs`, a process that the user's code hangs ends itself and leaves word there. Raises as `check_case` and
    `on_processes` do, and SamplerError for code that would end the process.
    """
    started_s = time.monotonic()
    found: dict[int, CaseResult] = {}
    with closing(
        on_processes(partial(_check_blaming, bounds=bounds, hangs=hangs), cases, min(jobs, len(cases)))
    ) as findings:
        for number, finding in findings:
            found[number] = finding
            if tell is not None:
                tell(finding)
    return Checked(tuple(found[number] for number in sorted(found)), time.monotonic() - started_s)


def _check_blaming(case: Case, bounds: Bounds, hangs: Hangs | None) -> CaseResult:
    who = " or ".join(outside_code(case.scaled.config, case.properties).values())
    with blaming(who or None), watched(hangs):
        return check_case(case, bounds)
