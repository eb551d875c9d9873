"""Whether a worker is to blame for its failures, and whether enough workers are healthy."""

import asyncio
from collections.abc import Callable

from runtime.actors.probing import ProbeTimes, Stopwatch
from runtime.actors.seat import SeatedWorker
from runtime.usual import UsualTime
from runtime.wording import are, counted


class Streaks:
    """Infra failures in a row, by worker. Where the attempts of all workers fail, none of them is to blame."""

    def __init__(self, most: int | None) -> None:
        """most: failures in a row that make a worker suspicious; None: no number does."""
        self._most = most
        self._finished = 0
        """Groups that all workers have finished."""

    def finished(self, worker: SeatedWorker) -> None:
        """The worker has finished a group."""
        self._finished += 1
        worker.failures = 0

    def failed(self, worker: SeatedWorker, why: str) -> str | None:
        """An attempt of the worker has failed, perhaps by its fault. Returns why it is to be quarantined, if it is."""
        if worker.failures == 0:
            worker.finished_before = self._finished
        worker.failures += 1
        if self._most is None or worker.failures < self._most or self._finished == worker.finished_before:
            return None
        return (
            f"{worker.failures} of its attempts in a row failed (cluster.quarantine_after_failures), while those of "
            f"other workers finished: {why}"
        )


async def watch_number(
    serving: Callable[[], int], least: int, starts: UsualTime, times: ProbeTimes, fail: Callable[[str], None]
) -> None:
    """Call `fail` with the reason once fewer than `least` workers have served for longer than two starts may take."""
    below = Stopwatch(2.0 * times.interval_s)
    while True:
        await asyncio.sleep(times.interval_s)
        number = serving()
        if number >= least:
            below.reset()
        elif below.look() > 2.0 * starts.deadline_s:
            healthy = f"{counted(number, 'generation worker')} {are(number)} healthy"
            fail(
                f"{healthy}, and cluster.min_healthy_workers is {least}, for {below.elapsed_s:.0f} s: twice the "
                "deadline of a start (cluster.start_timeout_s)"
            )
            return
