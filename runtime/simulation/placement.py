"""Which worker has which attempts, as the pump gives them out."""

from collections import Counter
from collections.abc import Callable, Sequence

from fsm.events import Attempt, FailureKind, GroupFailed


class Placement:
    """Attempts per worker. `found` is called with what is wrong."""

    def __init__(self, found: Callable[[str], None]) -> None:
        self._found = found
        self._serving: Sequence[str] = ()
        """Workers among which the pump last chose."""
        self._load: Counter[str] = Counter()
        self._worker_of: dict[Attempt, str] = {}
        self._failed_on: dict[int, str] = {}
        """The worker of each prompt's last attempt, if that was an infra failure and no other has started."""
        self._placed: list[str] = []
        """Workers that got attempts since the last `look`."""
        self._moved = False
        """A retry was among them, which may go to a worker that has more."""

    def gives(self, worker: str, attempts: Sequence[Attempt], serving: Sequence[str]) -> None:
        """The pump has chosen a worker for attempts, among those that serve."""
        self._serving = serving
        self._load[worker] += len(attempts)
        self._placed.append(worker)
        for attempt in attempts:
            self._worker_of[attempt] = worker
            failed_on = self._failed_on.pop(attempt.prompt, None)
            self._moved |= failed_on is not None
            if failed_on == worker and len(serving) > 1:
                self._found(f"{attempt} is given to {worker} again, where the one before it failed")

    def fails(self, failed: GroupFailed) -> None:
        """The core is told that an attempt failed."""
        worker = self._worker_of.pop(failed.attempt, None)
        if worker is not None and failed.kind is FailureKind.INFRA:
            self._failed_on[failed.attempt.prompt] = worker

    def answers(self, worker: str) -> None:
        """A worker is done with an attempt."""
        self._load[worker] -= 1

    def has_any(self, worker: str) -> bool:
        return self._load[worker] > 0

    def look(self) -> None:
        """Attempts go to the worker with the fewest."""
        if self._placed and not self._moved:
            least = min(self._load[worker] for worker in self._serving)
            if any(self._load[worker] - 1 > least for worker in self._placed):
                self._found(f"attempts were not given to the worker with the fewest: {dict(self._load)}")
        self._placed.clear()
        self._moved = False
