"""What many simulated runs met, as a document."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from runtime.simulation.mutants import Caught
from runtime.simulation.plan import SAMPLERS, Fault
from runtime.simulation.runs import Story

HEAD = """# Simulated runs

This page says what `make simulate` met when it was last run; [the simulation](../simulation.md) explains it. Do not
edit it.
"""
HOUR_S = 3600.0


@dataclass(slots=True)
class Tally:
    """Of one sampler, or of all."""

    runs: int = 0
    lives: int = 0
    events: int = 0
    steps: int = 0
    virtual_s: float = 0.0
    wrong: int = 0
    """Runs in which something was found wrong; a hang is."""
    outcomes: Counter[str] = field(default_factory=Counter)
    faults: Counter[Fault] = field(default_factory=Counter)

    def add(self, story: Story) -> None:
        """Count a run."""
        self.runs += 1
        self.lives += story.lives
        self.events += story.events
        self.steps += story.steps
        self.virtual_s += story.virtual_s
        self.wrong += bool(story.wrong)
        self.outcomes[story.outcome] += 1
        self.faults.update(story.faults)


@dataclass(slots=True)
class Totals:
    """Of many runs."""

    by_sampler: dict[str, Tally] = field(default_factory=lambda: {sampler: Tally() for sampler in SAMPLERS})

    def add(self, story: Story) -> None:
        """Count a run."""
        self.by_sampler[story.plan.sampler].add(story)

    @property
    def runs(self) -> int:
        return sum(tally.runs for tally in self.by_sampler.values())

    @property
    def wrong(self) -> int:
        return sum(tally.wrong for tally in self.by_sampler.values())

    def document(self, seeds: range, wall_s: float, jobs: int, caught: Sequence[Caught]) -> str:
        """The page."""
        return "\n".join(
            [
                HEAD,
                f"{len(seeds)} runs, of the seeds {seeds.start} to {seeds.stop - 1}, took {wall_s:.0f} s in {jobs} "
                f"process{'es' * (jobs > 1)}. Something was wrong in {self.wrong} of them.\n",
                *self._runs(),
                "",
                "How the last controller of each run ended:\n",
                *self._outcomes(),
                "",
                "Faults that struck, in all runs of a sampler:\n",
                *self._faults(),
                "",
                *_mutants(caught),
            ]
        )

    def _runs(self) -> list[str]:
        lines = _row(["sampler", "runs", "wrong", "controllers", "events", "steps", "virtual hours"])
        for sampler, tally in self.by_sampler.items():
            counts = (tally.runs, tally.wrong, tally.lives, tally.events, tally.steps, round(tally.virtual_s / HOUR_S))
            lines += _row([sampler, *(f"{count:,}" for count in counts)], rule=False)
        return lines

    def _outcomes(self) -> list[str]:
        known = sorted({outcome for tally in self.by_sampler.values() for outcome in tally.outcomes})
        return self._by_sampler(
            "outcome", ((each, [t.outcomes[each] for t in self.by_sampler.values()]) for each in known)
        )

    def _faults(self) -> list[str]:
        return self._by_sampler("fault", ((each, [t.faults[each] for t in self.by_sampler.values()]) for each in Fault))

    def _by_sampler(self, what: str, rows: Iterable[tuple[str, list[int]]]) -> list[str]:
        lines = _row([what, *self.by_sampler, "all"])
        for name, counts in rows:
            lines += _row([name, *(f"{count:,}" for count in (*counts, sum(counts)))], rule=False)
        return lines


def _mutants(caught: Sequence[Caught]) -> list[str]:
    if not caught:
        return []
    noticed = sum(each.seed is not None for each in caught)
    lines = [
        f"{noticed} of {len(caught)} faulty pumps are noticed. By the first seed that does:\n",
        *_row(["the fault", "seed", "what is found"]),
    ]
    for each in caught:
        found = " ".join(each.wrong.split()).replace("|", "/")
        lines += _row([each.mutant.name, "none" if each.seed is None else str(each.seed), f"{found:.110}"], rule=False)
    return [*lines, ""]


def _row(cells: Sequence[str], *, rule: bool = True) -> list[str]:
    """A row of a table; the first has a rule below."""
    lines = [f"| {' | '.join(cells)} |"]
    return [*lines, f"|{' --- |' * len(cells)}"] if rule else lines
