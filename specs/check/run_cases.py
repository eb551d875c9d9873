"""Goes through the cases of a configuration, on several processes, and puts the verdicts together."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import NamedTuple

from fsm.config.blocks import CustomConfig
from specs.check.cases import Case, laws_in
from specs.checker.explore import HOLDS, UNDETERMINED, VIOLATED, Result, explore
from specs.engine.search import Bounds
from specs.processes.blame import blaming
from specs.processes.hanging import Hangs, watched
from specs.processes.pool import on_processes
from specs.properties.kinds import CLOSES_A_STEP, COMPLETES, DEADLOCK, REFUSED, properties_of

_MOST_TOLD = 6
"""How many violated properties of a case are told."""


class CaseResult(NamedTuple):
    """What became of one case."""

    case: Case
    results: tuple[Result, ...]
    """One that holds or is undetermined; or one for each property that is violated, with its own shortest story."""

    @property
    def verdict(self) -> str:
        """Violated where anything is; holds only where all holds."""
        verdicts = [result.verdict for result in self.results]
        return next((worst for worst in (VIOLATED, UNDETERMINED) if worst in verdicts), HOLDS)

    @property
    def states(self) -> int:
        """Distinct states of the largest exploration of the case."""
        return max(result.states for result in self.results)

    @property
    def transitions(self) -> int:
        """Transitions of the largest exploration of the case."""
        return max(result.transitions for result in self.results)

    @property
    def why(self) -> str:
        """The bound that was hit, or what the core refused; empty where there is neither."""
        return next((result.why for result in self.results if result.why), "")


class Checked(NamedTuple):
    """What became of all cases."""

    findings: tuple[CaseResult, ...]
    """In the order of the cases."""
    seconds: float

    @property
    def verdict(self) -> str:
        """Violated where anything is; undetermined where anything is that; holds only where all cases do."""
        verdicts = {finding.verdict for finding in self.findings}
        return next((worst for worst in (VIOLATED, UNDETERMINED) if worst in verdicts), HOLDS)

    @property
    def states(self) -> int:
        """Distinct states, summed over the cases."""
        return sum(finding.states for finding in self.findings)

    @property
    def transitions(self) -> int:
        """Transitions, summed over the cases."""
        return sum(finding.transitions for finding in self.findings)

    def violations(self) -> list[tuple[Case, Result]]:
        """Per violated property the shortest story of any case; a hang first, as what hides behind the others."""
        shortest: dict[str, tuple[Case, Result]] = {}
        for finding in self.findings:
            for result in finding.results:
                if result.verdict == VIOLATED and result.broken is not None:
                    known = shortest.get(result.broken)
                    if known is None or _length(result) < _length(known[1]):
                        shortest[result.broken] = finding.case, result
        return sorted(shortest.values(), key=lambda entry: (_rank(entry[1]), _length(entry[1])))


def _length(result: Result) -> int:
    return len(result.counterexample)


def _rank(result: Result) -> int:
    """Hangs, refusals and a sampler that stops the run, endless runs, then all others; last what never happens."""
    if result.broken in (DEADLOCK, REFUSED, "sampler"):
        return 0
    if result.broken in (COMPLETES.name, CLOSES_A_STEP.name):
        return 3
    return 1 if result.cycle_start is not None else 2


def check_case(case: Case, bounds: Bounds = Bounds()) -> CaseResult:  # noqa: B008  (a NamedTuple)
    """Go through one case: again without each property that is violated, since the first hides what comes later.

    Raises ConfigError for a custom sampler that cannot be loaded, and `specs.counterexample.Unconfirmed`.
    """
    laws = laws_in(case)
    properties = properties_of(laws)
    results: list[Result] = []
    while len(results) < _MOST_TOLD:
        result = explore(laws, case.world, properties, bounds=bounds)
        if result.verdict == VIOLATED or not results:
            results.append(result)
        if result.verdict != VIOLATED or result.broken in (None, DEADLOCK, REFUSED):
            break
        properties = properties.without(str(result.broken))
    return CaseResult(case, tuple(results))


def check_cases(
    cases: Sequence[Case],
    bounds: Bounds = Bounds(),  # noqa: B008  (a NamedTuple)
    *,
    jobs: int = 1,
    tell: Callable[[CaseResult], None] | None = None,
    hangs: Hangs | None = None,
) -> Checked:
    """Go through cases on `jobs` processes. `tell` is given each finding as it comes. With `hangs` a process that a
    sampler hangs ends, and leaves word there.

    Raises as `check_case` and `on_processes` do, and SamplerError for a custom sampler that would end the process.
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
    sampler = case.scaled.config.async_rl.sampler
    with blaming(sampler.target if isinstance(sampler, CustomConfig) else None), watched(hangs):
        return check_case(case, bounds)
