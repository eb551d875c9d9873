"""What outlives a controller: checkpoints, the clock, the dice, and what was found wrong; and the data plane."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

from fsm.events import Attempt
from runtime.simulation.plan import SLOWEST, Fault, SimulationPlan
from runtime.transport.answers import Row


@dataclass(slots=True)
class Ledger:
    """What became of every prompt so far, as the witness has seen it; a checkpoint holds a copy."""

    accepted: dict[int, Attempt] = field(default_factory=dict)
    """Per prompt the attempt whose group the core took."""
    fates: dict[int, str] = field(default_factory=dict)
    """Per prompt that is done with: trained, filtered, dropped, evicted or aborted."""
    history: list[tuple[int, ...]] = field(default_factory=list)
    """Per optimizer step the prompts that it trained on."""

    def copy(self) -> "Ledger":
        return Ledger(dict(self.accepted), dict(self.fates), list(self.history))


class SavedRun(NamedTuple):
    """A checkpoint."""

    control: str
    """The core's snapshot, as JSON text."""
    rows: tuple[tuple[int, Attempt], ...]
    """Prompts with data, and the attempt that each group is of."""
    ledger: Ledger


class StruckFault(NamedTuple):
    """A fault that struck."""

    time_s: float
    fault: Fault
    what: str

    def __str__(self) -> str:
        return f"{self.time_s:10.1f} s  {self.fault}{': ' * bool(self.what)}{self.what}"


class SimulatedWorld:
    """One simulated run's surroundings."""

    def __init__(self, plan: SimulationPlan) -> None:
        self.plan = plan
        self.random = Random(plan.seed)
        self.now_s: Callable[[], float] = lambda: 0.0
        self.halt: Callable[[], None] = lambda: None
        """Called when something is found wrong: what follows from it is of no interest."""
        self.happened: list[StruckFault] = []
        self.faults: Counter[Fault] = Counter()
        self.wrong: list[str] = []
        """What should not be, in the order in which it was seen."""
        self.checkpoints: list[SavedRun] = []
        self.events = 0
        """Applied in all lives."""

    def strikes(self, fault: Fault, what: str = "") -> bool:
        """Whether a fault strikes here and now."""
        rate = self.plan.rates.get(fault, 0.0)
        if rate == 0.0 or self.now_s() > self.plan.faults_until_s or self.random.random() >= rate:
            return False
        self.struck(fault, what)
        return True

    def struck(self, fault: Fault, what: str = "") -> None:
        """Count a fault."""
        self.faults[fault] += 1
        self.happened.append(StruckFault(self.now_s(), fault, what))

    def found(self, what: str) -> None:
        """Something is wrong: the run ends here."""
        self.halt()
        self.wrong.append(f"{self.now_s():.1f} s: {what}")

    def takes_s(self, usual_s: float) -> float:
        """How long something takes that usually takes so long, as the run's pace has it."""
        if self.plan.pace == "alike":
            return usual_s
        if self.plan.pace == "coarse":
            return self.random.choice((0.0, 10.0))
        if self.plan.pace == "grid":
            return float(round(usual_s * self.random.choice((0.0, 0.5, 1.0, 1.0, 2.0))))
        return usual_s * min(SLOWEST, self.random.expovariate(1.0))


class SimulatedPlane:
    """Rows by number, each with the attempt whose group it holds; and those that a fault has taken."""

    def __init__(self) -> None:
        self.rows: dict[int, Attempt] = {}
        self.taken: set[int] = set()
        """Rows that a fault has made unreadable."""
        self.deaf = False
        """The controller has crashed: what it still asks for does not happen."""
        self._next = 0

    def add(self, attempt: Attempt) -> int:
        """Store the group of an attempt; its row."""
        row, self._next = self._next, self._next + 1
        self.rows[row] = attempt
        return row

    def take(self, rows: Iterable[int]) -> None:
        """A fault: these rows cannot be read any more."""
        for row in rows:
            if self.rows.pop(row, None) is not None:
                self.taken.add(row)

    async def put(self, groups: Sequence[Any]) -> list[Row]:
        raise NotImplementedError("simulated workers use `add`")

    def get(self, rows: Sequence[Row], unneeded: Sequence[Row] = ()) -> list[Any]:
        raise NotImplementedError("the simulated trainer looks at `rows`")

    def delete(self, rows: Sequence[Row]) -> None:
        if not self.deaf:
            for row in rows:
                self.rows.pop(row, None)
