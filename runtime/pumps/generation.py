"""The generation pump.

Consumes: StartRollout and AbortRollout; the answers that generation workers stream back; deadlines (W1).
Waits for: a worker's next answers, one stream a submission.
Unblocked by: a worker that finishes groups, or dies.
Produces: GroupFinished and GroupFailed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import partial

from fsm.effects import AbortRollout, StartRollout
from fsm.errors import InvariantBroken
from fsm.events import Attempt, FailureKind, GroupFailed, GroupFinished, GroupRecord
from runtime.answers import Aborted, Answer, Failed, Finished, Order, WorkerDied
from runtime.control import Control
from runtime.ports import FleetPort
from runtime.pumps.rows import Rows
from runtime.recorder import Recorder


class GenerationPump:
    """Spreads rollouts over the workers, and hears what becomes of them."""

    def __init__(
        self, control: Control, fleet: FleetPort, rows: Rows, recorder: Recorder, rollout_timeout_s: float | None
    ) -> None:
        self._control = control
        self._fleet = fleet
        self._rows = rows
        self._recorder = recorder
        self._timeout_s = rollout_timeout_s
        self._starting: dict[Attempt, StartRollout] = {}
        """To be submitted in this turn of the loop."""
        self._worker_of: dict[Attempt, str] = {}
        """Attempts that a worker has not answered yet."""
        self._load: Counter[str] = Counter()
        """How many of them each worker has."""

    def start_rollouts(self, starts: Sequence[StartRollout]) -> None:
        """Begin them with this turn of the loop: what several answers of one stream lead to is one submission."""
        if not self._starting:
            self._control.later(0.0, self._submit)
        self._starting.update((start.attempt, start) for start in starts)

    def _submit(self) -> None:
        """Give each to the worker that has fewest; what one worker gets, it gets as one submission."""
        starts, self._starting = self._starting, {}
        submissions: dict[str, list[Order]] = defaultdict(list)
        for start in starts.values():
            worker = min(self._fleet.workers, key=lambda name: self._load[name])
            self._load[worker] += 1
            self._worker_of[start.attempt] = worker
            submissions[worker].append(Order(start.attempt, start.start_weight))
        for worker, orders in submissions.items():
            self._control.spawn(self._hear(worker, orders), f"rollouts on {worker}")
        if self._timeout_s is not None and starts:
            self._control.later(self._timeout_s, partial(self._expire, list(starts)))

    def abort_rollouts(self, aborts: Sequence[AbortRollout]) -> None:
        """Tell the workers; the core expects no answer."""
        for abort in aborts:
            self._starting.pop(abort.attempt, None)
        self._abort([abort.attempt for abort in aborts])

    async def stop(self) -> None:
        """The run is over: stop what still runs, so that the workers are free."""
        for worker, attempts in self._by_worker(self._worker_of).items():
            await self._fleet.abort(worker, attempts)

    def _abort(self, attempts: Sequence[Attempt]) -> None:
        for worker, doomed in self._by_worker(attempts).items():
            self._control.spawn(self._fleet.abort(worker, doomed), f"abort on {worker}")

    def _by_worker(self, attempts: Iterable[Attempt]) -> dict[str, list[Attempt]]:
        """Those that are not answered yet, by the worker that has them."""
        found: dict[str, list[Attempt]] = defaultdict(list)
        for attempt in attempts:
            if attempt in self._worker_of:
                found[self._worker_of[attempt]].append(attempt)
        return found

    async def _hear(self, worker: str, orders: Sequence[Order]) -> None:
        """Take the answers to one submission, to the last."""
        left = {order.attempt: None for order in orders}
        try:
            async for answers in self._fleet.generate(worker, orders):
                for answer in answers:
                    del left[answer.attempt]
                    self._forget(answer.attempt)
                    self._take(answer)
        except WorkerDied as death:
            for attempt in left:
                self._forget(attempt)
                self._control.apply(GroupFailed(attempt, FailureKind.INFRA, str(death)))
            return
        if left:
            raise InvariantBroken(f"{worker} ended a submission without an answer to {list(left)}")

    def _take(self, answer: Answer) -> None:
        match answer:
            case Finished():
                self._finish(answer)
            case Failed(attempt, kind, error):
                self._control.apply(GroupFailed(attempt, kind, error))
            case Aborted():
                pass  # the core has already counted it aborted, or failed at its deadline

    def _finish(self, answer: Finished) -> None:
        """The row is kept before the event is applied: selecting or evicting the group may follow in the same go."""
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
        self._load[self._worker_of.pop(attempt)] -= 1

    def _expire(self, attempts: Sequence[Attempt]) -> None:
        """W1: those of one submission that still run have reached their deadline, in order of dispatch."""
        due = [attempt for attempt in attempts if attempt in self._worker_of]
        for attempt in due:
            error = f"the attempt ran for rollout_timeout_s = {self._timeout_s:g} s"
            self._control.apply(GroupFailed(attempt, FailureKind.INFRA, error))
        self._abort(due)
