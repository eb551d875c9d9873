"""The generation pump: what happens when a rollout starts, finishes, fails, is too slow, or dies with its worker.

Consumes: StartRollout and AbortRollout; the answers of generation workers; deadlines (W1).
Waits for: every worker's next answers, in an exchange that also carries the queued starts.
Unblocked by: a worker that finishes groups, or dies.
Produces: GroupFinished and GroupFailed. A retry after an infra failure goes to another worker, where one serves.

A worker that dies makes its exchange raise WorkerLost with its attempts, or they come as failed answers of the next
exchange. Each becomes a GroupFailed (infra), which the core retries or gives up on (`fsm`, L7), while `Fleet` restarts
the worker. After too many deaths `Fleet` raises FleetLost, and the run fails.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from fsm.effects import AbortRollout, StartRollout
from fsm.errors import InvariantBroken
from fsm.events import Attempt, FailureKind, GroupFailed, GroupFinished, GroupRecord
from runtime.actors.fleet import Fleet
from runtime.control.event_loop import Control
from runtime.control.pumps.rows import Rows
from runtime.control.run_recorder import RunRecorder
from runtime.trace.notes import AttemptsPlaced
from runtime.transport.answers import Aborted, Answer, AttemptFinished, Order, WorkerLost

FAILED_KEPT = 4096
"""Prompts whose last infra failure is remembered: those that the core gives up on never come back for it."""


class GenerationPump:
    """Spreads rollouts over the workers, and takes their answers."""

    def __init__(
        self, control: Control, fleet: Fleet, rows: Rows, recorder: RunRecorder, rollout_timeout_s: float | None
    ) -> None:
        self._control = control
        self._fleet = fleet
        self._rows = rows
        self._recorder = recorder
        self._timeout_s = rollout_timeout_s
        self._starting: dict[Attempt, StartRollout] = {}
        """Rollouts to submit in this turn of the loop."""
        self._worker_of: dict[Attempt, str] = {}
        """Attempts that a worker has not answered yet."""
        self._load: Counter[str] = Counter()
        """The number of those attempts per worker."""
        self._begun: Counter[str] = Counter()
        self._returned: Counter[str] = Counter()
        """Exchanges begun with and returned by each worker. Of several under way the last waits; the others return."""
        self._turn_ends = False
        """`_end_turn` is due."""
        self._failed_on: dict[int, str] = {}
        """By prompt, the worker on which its last attempt failed by an infra failure."""
        self.on_expired: Callable[[str, Sequence[Attempt]], None] = lambda worker, attempts: None
        """Called with a worker, and its attempts that have reached their deadline."""

    def start_rollouts(self, starts: Sequence[StartRollout]) -> None:
        """Start rollouts at the end of this turn of the loop, so that several answers lead to one submission."""
        self._starting.update((start.attempt, start) for start in starts)
        self._soon()

    def _soon(self) -> None:
        if not self._turn_ends:
            self._turn_ends = True
            self._control.later(0.0, self._end_turn)

    def _end_turn(self) -> None:
        """Submit the queued rollouts, and wait again for every worker that still has attempts to answer."""
        self._turn_ends = False
        starts, self._starting = self._starting, {}
        submissions = self._spread(starts.values())
        unasked = (name for name, load in self._load.items() if load and self._begun[name] == self._returned[name])
        for worker in dict.fromkeys([*submissions, *unasked]):
            self._begun[worker] += 1
            if worker in submissions:
                placed = tuple(order.attempt for order in submissions[worker])
                self._recorder.note(AttemptsPlaced(worker, placed))
            exchange = self._exchange(worker, self._begun[worker], submissions.get(worker, []))
            self._control.spawn(exchange, f"rollouts on {worker}")
        if self._timeout_s is not None and starts:
            self._control.later(self._timeout_s, partial(self._expire, list(starts)))

    def _spread(self, starts: Iterable[StartRollout]) -> dict[str, list[Order]]:
        """Give each rollout to the worker that has fewest, a retry preferably to another worker than before.

        Those of one worker are one submission.
        """
        submissions: dict[str, list[Order]] = defaultdict(list)
        workers = self._fleet.workers
        for start in starts:
            before = self._failed_on.pop(start.attempt.prompt, None)
            worker = min(workers, key=lambda name: (name == before, self._load[name]))
            self._load[worker] += 1
            self._worker_of[start.attempt] = worker
            submissions[worker].append(Order(start.attempt, start.start_weight))
        return submissions

    def abort_rollouts(self, aborts: Sequence[AbortRollout]) -> None:
        """Tell the workers; the core expects no answer."""
        for abort in aborts:
            self._starting.pop(abort.attempt, None)
        self._abort([abort.attempt for abort in aborts])

    async def stop(self) -> None:
        """The run is over: stop the attempts that still run, so that the workers are free."""
        for worker, attempts in self._by_worker(self._worker_of).items():
            await self._fleet.abort(worker, attempts)

    def _abort(self, attempts: Sequence[Attempt]) -> None:
        for worker, doomed in self._by_worker(attempts).items():
            self._control.spawn(self._fleet.abort(worker, doomed), f"abort on {worker}")

    def _by_worker(self, attempts: Iterable[Attempt]) -> dict[str, list[Attempt]]:
        """The attempts without an answer, by the worker that has them."""
        found: dict[str, list[Attempt]] = defaultdict(list)
        for attempt in attempts:
            if attempt in self._worker_of:
                found[self._worker_of[attempt]].append(attempt)
        return found

    async def _exchange(self, worker: str, number: int, orders: Sequence[Order]) -> None:
        """Take the next answers of a worker; if it died, its attempts have failed."""
        try:
            answers = await self._fleet.exchange(worker, orders)
        except WorkerLost as death:
            for attempt in death.lost:
                self._forget(attempt)
                self._fail(worker, GroupFailed(attempt, FailureKind.INFRA, str(death)))
        else:
            if not answers and number == self._begun[worker]:
                raise InvariantBroken(f"{worker} has {self._load[worker]} attempts to answer, and returned no answer")
            for answer in answers:
                self._forget(answer.attempt)
                self._take(worker, answer)
        self._returned[worker] += 1
        self._soon()

    def _take(self, worker: str, answer: Answer) -> None:
        if isinstance(answer, Aborted):
            return  # the core has already counted it aborted, or failed at its deadline
        if answer.notice is not None:
            self._recorder.said(answer.notice)
        if isinstance(answer, AttemptFinished):
            self._finish(answer)
        else:
            self._fail(worker, GroupFailed(answer.attempt, answer.kind, answer.error))

    def _fail(self, worker: str, failed: GroupFailed) -> None:
        """Remember the worker for the next attempt, which starts at the end of this turn at the earliest."""
        if not self._control.apply(failed) or failed.kind is not FailureKind.INFRA:
            return
        self._failed_on[failed.attempt.prompt] = worker
        if len(self._failed_on) > FAILED_KEPT:
            del self._failed_on[next(iter(self._failed_on))]

    def _finish(self, answer: AttemptFinished) -> None:
        """Keep the row before applying the event, which may select or evict the group at once."""
        attempt, receipt, row = answer.attempt, answer.receipt, answer.row
        self._recorder.worker_busy(receipt.worker, answer.busy_s)
        record = GroupRecord(attempt.prompt, sum(receipt.completion_tokens), receipt.reward_mean, receipt.reward_std)
        before = None if row is None else self._rows.keep(attempt.prompt, row)
        if self._control.apply(GroupFinished(attempt, receipt.zero_variance, record)):
            self._recorder.received(receipt)
            return
        self._recorder.late_answer()
        if row is not None:
            self._rows.take_back(attempt.prompt, before)

    def _forget(self, attempt: Attempt) -> None:
        """Its worker is done with it. An attempt that was reported lost may still be answered, too late."""
        if attempt in self._worker_of:
            self._load[self._worker_of.pop(attempt)] -= 1

    def _expire(self, attempts: Sequence[Attempt]) -> None:
        """W1: the attempts of one submission that still run have reached their deadline, in order of dispatch."""
        due = [attempt for attempt in attempts if attempt in self._worker_of]
        late = self._by_worker(due)
        for attempt in due:
            error = f"the attempt ran for rollout_timeout_s = {self._timeout_s:g} s"
            self._fail(self._worker_of[attempt], GroupFailed(attempt, FailureKind.INFRA, error))
        self._abort(due)
        for worker, attempts_there in late.items():
            self.on_expired(worker, attempts_there)
