"""One row per attempt: prompt, slot, worker, times, result, and the fate of its group. And their lanes in a chart."""

import heapq
from collections.abc import Mapping, Sequence
from enum import IntEnum

from fsm.core import AppliedEvent
from fsm.effects import AbortRollout, ClearRows, StartRollout, TrainChunk
from fsm.events import Attempt, ClaimUnreadable, GroupFailed, GroupFinished
from fsm.machines.prompt_group import GroupState
from fsm.rules import changes
from fsm.state import NONE
from runtime.report.columns import NO_WORKER, NOT_YET, Columns, Texts, milliseconds
from runtime.trace.kinds import Json
from runtime.trace.notes import AttemptsPlaced, GroupReceived
from runtime.trace.show import printable

RETRIED = len(GroupState)
"""The state of an attempt that failed and was retried; the other states are those of `GroupState`, and REDONE."""
REDONE = RETRIED + 1
"""The state of an attempt whose result was lost with its process: a resumed run did its work again."""
STATES = [*(state.name.lower().replace("_", " ") for state in GroupState), "retried", "redone"]
"""Names by value of the column `state`."""


class After(IntEnum):
    """What followed in the slot of a filtered or dropped group."""

    NOTHING = 0
    REPLACED = 1
    LOST = 2


COLUMNS: Mapping[str, str] = {
    "prompt": "I",
    "slot": "I",  # NOT_YET if only its selection is in the trace
    "dispatch": "I",
    "worker": "H",  # NO_WORKER if no worker got it
    "weight": "i",  # start weight
    "target": "i",  # step that it is stamped with, or −1
    "begun": "I",  # ms; NOT_YET: before the trace began
    "ended": "I",  # ms; NOT_YET: still running
    "left": "I",  # ms: its group was selected or evicted
    "state": "B",
    "after": "B",
    "step": "i",  # into which it was selected, or −1
    "charged": "i",  # step charged for its loss, or −1
    "chunk": "i",
    "tokens": "I",
    "longest": "I",
    "rollouts": "H",
    "correct": "H",
    "truncated": "H",
    "zero_variance": "B",
    "finished": "B",  # 1 if it was answered with rewards
    "reward": "f",  # NaN if unknown
    "reward_std": "f",
    "generation_s": "f",
    "error": "I",  # number of its text, or NOT_YET
}
_NAN = float("nan")


class Attempts:
    """All attempts, from the records in order."""

    def __init__(self, texts: Texts) -> None:
        self.rows = Columns(COLUMNS)
        self.workers: list[str] = []
        """Printable names by number."""
        self.running: dict[int, int] = {}
        """Rows of running attempts by dispatch number."""
        self._texts = texts
        self._worker_numbers: dict[str, int] = {}
        self._in_hand: dict[int, int] = {}
        """Rows of ready and selected groups by prompt."""
        self._finished: tuple[int, int] | None = None
        """Prompt and row of the group that finished last, until its GroupReceived."""

    def transition(self, now: int, transition: AppliedEvent) -> None:
        event = transition.event
        if type(event) is GroupFinished or type(event) is GroupFailed:
            self._answered(now, event, transition.changes)
        elif type(event) is ClaimUnreadable:
            self._unreadable(event, transition.changes)
        for effect in transition.effects:
            if type(effect) is StartRollout:
                (prompt, dispatch, _), slot, target, weight = effect
                row = self._new(prompt, dispatch, slot, weight, NONE if target is None else target, now)
                self.running[dispatch] = row
            elif type(effect) is TrainChunk:
                self._select(now, effect)
            elif type(effect) is AbortRollout:
                row = self._running_row(effect.attempt)
                self.rows["ended"][row], self.rows["state"][row] = now, GroupState.ABORTED
            elif type(effect) is ClearRows:
                self._clear(now, effect)

    def placed(self, note: AttemptsPlaced) -> None:
        worker = self.worker_number(note.worker)
        for attempt in note.attempts:
            row = self.running.get(attempt.dispatch)
            if row is not None:
                self.rows["worker"][row] = worker

    def received(self, note: GroupReceived) -> None:
        """More about the group that finished last."""
        if self._finished is None or self._finished[0] != note.prompt:
            return  # its GroupFinished is not in this trace
        row, rows = self._finished[1], self.rows.columns
        rows["longest"][row], rows["rollouts"][row], rows["correct"][row] = note.longest, note.rollouts, note.correct
        rows["truncated"][row], rows["generation_s"][row] = note.truncated, note.generation_s
        rows["worker"][row] = self.worker_number(note.worker)
        self._finished = None

    def adopt(self, core: Json, vitals: Json | None) -> None:
        """Add groups in hand that a snapshot lists and whose attempts are not in the trace."""
        for attempt, slot, weight, started_s, worker in () if vitals is None else vitals["rollouts"]:
            prompt, dispatch = attempt[:2]
            if dispatch not in self.running:
                row = self._new(prompt, dispatch, slot, weight, NONE, milliseconds(started_s))
                self.running[dispatch] = row
                if worker is not None:
                    self.rows["worker"][row] = self.worker_number(worker)
        for place, state in _PLACES.items():
            for prompt, slot, dispatch, _, _, group_class in core[place]:
                if prompt not in self._in_hand:
                    target, weight = group_class[0], group_class[2]
                    row = self._new(prompt, dispatch, slot, weight, target, NOT_YET)
                    self.rows["state"][row] = state
                    self._in_hand[prompt] = row

    def go_on(self, saved: Json | None, ended: int) -> None:
        """The process that these attempts are of ended then; the next one began with this snapshot, or anew (None).

        Attempts whose result the snapshot has keep it; groups that it has in hand are ready again. All others are
        redone: they ran, or finished after the snapshot was taken.
        """
        kept: Json = {"next_dispatch": 0, "running": [], **dict.fromkeys(_PLACES, ())} if saved is None else saved
        again = {(group[0], group[2]): state for place, state in _PLACES.items() for group in kept[place]}
        running = {(group[0], group[2]) for group in kept["running"]}
        open_step = 0 if saved is None else saved["state"]["trainer"][1]
        self.running, self._in_hand, self._finished = {}, {}, None
        rows = self.rows.columns
        for row in range(len(self.rows)):
            state, named = rows["state"][row], (rows["prompt"][row], rows["dispatch"][row])
            if state == REDONE or (state == GroupState.TRAINED and rows["step"][row] < open_step):
                continue
            if named in again:
                self._put_back(row, GroupState(again[named]))
                self._in_hand[named[0]] = row
            elif named[1] >= kept["next_dispatch"] or named in running or state in _IN_HAND:
                if rows["ended"][row] == NOT_YET and rows["begun"][row] != NOT_YET:
                    rows["ended"][row] = ended
                self._put_back(row, REDONE)

    def _put_back(self, row: int, state: int) -> None:
        """What happened to the attempt's group since it finished does not count."""
        rows = self.rows.columns
        rows["state"][row], rows["after"][row] = state, After.NOTHING
        rows["left"][row] = rows["error"][row] = NOT_YET
        rows["step"][row] = rows["charged"][row] = rows["chunk"][row] = NONE

    def worker_number(self, name: str) -> int:
        """The number of a worker, new or known."""
        known = self._worker_numbers.get(name)
        if known is None:
            known = self._worker_numbers[name] = len(self.workers)
            self.workers.append(printable(str(name)))
        return known

    def _new(self, prompt: int, dispatch: int, slot: int, weight: int, target: int, begun: int) -> int:
        return self.rows.append(
            prompt, slot, dispatch, NO_WORKER, weight, target, begun, NOT_YET, NOT_YET, GroupState.IN_FLIGHT,
            After.NOTHING, NONE, NONE, NONE, 0, 0, 0, 0, 0, 0, 0, _NAN, _NAN, _NAN, NOT_YET,
        )  # fmt: skip

    def _running_row(self, attempt: Attempt) -> int:
        """The row of a running attempt; a new row if it began before the trace."""
        row = self.running.pop(attempt.dispatch, None)
        return self._new(attempt.prompt, attempt.dispatch, NOT_YET, NONE, NONE, NOT_YET) if row is None else row

    def _answered(self, now: int, event: GroupFinished | GroupFailed, done: tuple[changes.Change, ...]) -> None:
        row, rows = self._running_row(event.attempt), self.rows.columns
        rows["ended"][row] = now
        if isinstance(event, GroupFinished):
            rows["finished"][row], rows["zero_variance"][row] = 1, event.zero_variance
            if event.record is not None:
                rows["tokens"][row] = event.record.completion_tokens
                rows["reward"][row], rows["reward_std"][row] = event.record.reward_mean, event.record.reward_std
            self._finished = (event.attempt.prompt, row)
        else:
            rows["error"][row] = self._texts.number(event.error)
        for change in done:
            kind = type(change)
            if kind is changes.GroupCommitted:
                rows["state"][row] = GroupState.READY
                self._in_hand[event.attempt.prompt] = row
            elif kind is changes.GroupFiltered or kind is changes.GroupDropped:
                rows["state"][row] = GroupState.FILTERED if kind is changes.GroupFiltered else GroupState.DROPPED
            elif kind is changes.RetryWaits:
                rows["state"][row] = RETRIED
            elif kind is changes.GroupReplaced:
                rows["after"][row] = After.REPLACED
        self._lose(row, done)

    def _unreadable(self, event: ClaimUnreadable, done: tuple[changes.Change, ...]) -> None:
        row, rows = self._held(event.prompt), self.rows
        del self._in_hand[event.prompt]
        rows["state"][row], rows["error"][row] = GroupState.DROPPED, self._texts.number(event.error)
        self._lose(row, done)

    def _lose(self, row: int, done: tuple[changes.Change, ...]) -> None:
        for change in done:
            if type(change) is changes.GroupLost:
                self.rows["after"][row], self.rows["charged"][row] = After.LOST, change.charged_step

    def _held(self, prompt: int) -> int:
        """The row of a ready or selected group; a new row if it finished before the trace."""
        row = self._in_hand.get(prompt)
        if row is None:
            row = self._in_hand[prompt] = self._new(prompt, NOT_YET, NOT_YET, NONE, NONE, NOT_YET)
        return row

    def _select(self, now: int, effect: TrainChunk) -> None:
        rows = self.rows.columns
        for prompt, weight in effect.groups:
            row = self._held(prompt)
            rows["left"][row], rows["state"][row], rows["weight"][row] = now, GroupState.SELECTED, weight
            rows["step"][row], rows["chunk"][row] = effect.step, effect.chunk

    def _clear(self, now: int, effect: ClearRows) -> None:
        if effect.why not in _CLEARED:
            return  # known from the answer
        for prompt in effect.prompts:
            row = self._held(prompt)
            del self._in_hand[prompt]
            self.rows["state"][row] = _CLEARED[effect.why]
            if effect.why == "evicted":
                self.rows["left"][row] = now


_CLEARED = {"trained": GroupState.TRAINED, "evicted": GroupState.EVICTED}
_PLACES = {"ready": GroupState.READY, "chunk": GroupState.SELECTED, "accumulated": GroupState.SELECTED}
"""By place in a snapshot, the state of its groups."""
_IN_HAND = frozenset({GroupState.IN_FLIGHT, GroupState.READY, GroupState.SELECTED})


def lanes_of(attempts: Columns, now: int) -> tuple[dict[int, int], dict[int, int]]:
    """Give every attempt the first free lane of its worker, so that none covers another; running ones end `now`.

    Returns the lane by the attempt's row, without attempts that began before the trace; and how many lanes each worker
    has, where `NO_WORKER` stands for attempts that no worker got.
    """
    workers, begun, ended = attempts["worker"], attempts["begun"], attempts["ended"]
    rows = [row for row in range(len(attempts)) if begun[row] != NOT_YET]
    rows.sort(key=lambda row: (workers[row], begun[row], row))
    lane: dict[int, int] = {}
    counts: dict[int, int] = {}
    free: list[int] = []
    taken: list[tuple[int, int]] = []
    worker = -1
    for row in rows:
        if workers[row] != worker:
            worker, free, taken = workers[row], [], []
            counts[worker] = 0
        while taken and taken[0][0] <= begun[row]:
            heapq.heappush(free, heapq.heappop(taken)[1])
        if not free:
            heapq.heappush(free, counts[worker])
            counts[worker] += 1
        lane[row] = heapq.heappop(free)
        end = now if ended[row] == NOT_YET else ended[row]
        heapq.heappush(taken, (max(end, begun[row] + 1), lane[row]))
    return lane, counts


def in_lanes(attempts: Columns, now: int, workers: Sequence[str]) -> tuple[Columns, list[dict[str, object]]]:
    """Attempts in the order in which a page draws them, by lane and time; and by worker where its lanes begin."""
    order = Columns({"row": "I"})
    begun, worker_of = attempts["begun"], attempts["worker"]
    by_lane: dict[tuple[int, int], list[int]] = {}
    lanes, counts = lanes_of(attempts, now)
    for row, lane in lanes.items():
        by_lane.setdefault((worker_of[row], lane), []).append(row)
    shown: list[dict[str, object]] = []
    for worker, count in sorted(counts.items()):
        starts: list[int] = []
        for lane in range(count):
            starts.append(len(order))
            for row in sorted(by_lane[worker, lane], key=lambda row: (begun[row], row)):
                order.append(row)
        name = "not placed" if worker == NO_WORKER else workers[worker]
        shown.append({"name": name, "starts": [*starts, len(order)]})
    return order, shown
