"""One row an attempt: prompt, slot, worker, times, what it yielded, and what became of its group."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

from fsm.core import AppliedEvent
from fsm.effects import AbortRollout, ClearRows, StartRollout, TrainChunk
from fsm.events import Attempt, ClaimUnreadable, GroupFailed, GroupFinished
from fsm.machines.prompt_group import GroupState
from fsm.rules import changes
from fsm.state import NONE
from runtime.report.columns import NO_WORKER, NOT_YET, Columns, milliseconds
from runtime.report.texts import Texts
from runtime.trace.kinds import Json
from runtime.trace.notes import AttemptsPlaced, GroupReceived
from runtime.trace.show import printable

RETRIED = len(GroupState)
"""The state of an attempt that failed and is followed by another; the others are those of `GroupState`."""
STATES = [*(state.name.lower().replace("_", " ") for state in GroupState), "retried"]
"""Per value of the column `state`, its name."""


class After(IntEnum):
    """What followed in the slot of a group that was filtered or dropped."""

    NOTHING = 0
    REPLACED = 1
    LOST = 2


COLUMNS: Mapping[str, str] = {
    "prompt": "I",
    "slot": "I",  # NOT_YET where only its selection is in the trace
    "dispatch": "I",
    "worker": "H",  # NO_WORKER where it was not placed
    "weight": "i",  # start weight
    "target": "i",  # step that it is stamped for, or −1
    "begun": "I",  # ms; NOT_YET: before the trace
    "ended": "I",  # ms; NOT_YET: it runs
    "left": "I",  # ms at which the group was selected, or evicted
    "state": "B",
    "after": "B",
    "step": "i",  # that it was selected into, or −1
    "charged": "i",  # step that is charged for its loss, or −1
    "chunk": "i",
    "tokens": "I",
    "longest": "I",
    "rollouts": "H",
    "correct": "H",
    "truncated": "H",
    "zero_variance": "B",
    "finished": "B",  # 1 where it was answered with rewards
    "reward": "f",  # NaN where it is not known
    "reward_std": "f",
    "generation_s": "f",
    "error": "I",  # number of its text
}
_NAN = float("nan")


class Attempts:
    """Attempts by number of row, as the records tell of them."""

    def __init__(self, texts: Texts) -> None:
        self.rows = Columns(COLUMNS)
        self.workers: list[str] = []
        """Names by number, printable."""
        self.running: dict[int, int] = {}
        """Rows of attempts that run, by dispatch number."""
        self._texts = texts
        self._worker_numbers: dict[str, int] = {}
        self._in_hand: dict[int, int] = {}
        """Rows of groups that are ready or selected, by prompt."""
        self._finished: tuple[int, int] | None = None
        """Prompt and row of the group that finished last, until it is received."""

    def transition(self, now: int, transition: AppliedEvent) -> None:
        """One applied event."""
        event = transition.event
        if type(event) is GroupFinished or type(event) is GroupFailed:
            self._answered(now, event, transition.changes)
        elif type(event) is ClaimUnreadable:
            self._unreadable(event, transition.changes)
        for effect in transition.effects:
            if type(effect) is StartRollout:
                self._start(now, effect)
            elif type(effect) is TrainChunk:
                self._select(now, effect)
            elif type(effect) is AbortRollout:
                self._end(now, self._running_row(effect.attempt), GroupState.ABORTED)
            elif type(effect) is ClearRows:
                self._clear(now, effect)

    def placed(self, note: AttemptsPlaced) -> None:
        """A worker was given attempts."""
        worker = self.worker_number(note.worker)
        for attempt in note.attempts:
            row = self.running.get(attempt.dispatch)
            if row is not None:
                self.rows["worker"][row] = worker

    def received(self, note: GroupReceived) -> None:
        """What a worker says of the group that finished last."""
        if self._finished is None or self._finished[0] != note.prompt:
            return  # the record before is not in this trace
        row, rows = self._finished[1], self.rows.columns
        rows["longest"][row], rows["rollouts"][row], rows["correct"][row] = note.longest, note.rollouts, note.correct
        rows["truncated"][row], rows["generation_s"][row] = note.truncated, note.generation_s
        rows["worker"][row] = self.worker_number(note.worker)
        self._finished = None

    def adopt(self, core: Json, vitals: Json | None) -> None:
        """What a snapshot knows of groups in hand whose attempts are not in the trace."""
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

    def worker_number(self, name: str) -> int:
        """The number of a worker; a new one where it was not known."""
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

    def _start(self, now: int, effect: StartRollout) -> None:
        (prompt, dispatch, _), slot, target, weight = effect
        target_step = NONE if target is None else target
        self.running[dispatch] = self._new(prompt, dispatch, slot, weight, target_step, now)

    def _running_row(self, attempt: Attempt) -> int:
        """The row of an attempt that runs; of one that began before the trace, a new one."""
        row = self.running.pop(attempt.dispatch, None)
        return self._new(attempt.prompt, attempt.dispatch, NOT_YET, NONE, NONE, NOT_YET) if row is None else row

    def _end(self, now: int, row: int, state: int) -> None:
        self.rows["ended"][row], self.rows["state"][row] = now, state

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
        for move in done:
            kind = type(move)
            if kind is changes.GroupCommitted:
                rows["state"][row] = GroupState.READY
                self._in_hand[event.attempt.prompt] = row
            elif kind is changes.GroupFiltered or kind is changes.GroupDropped:
                rows["state"][row] = GroupState.FILTERED if kind is changes.GroupFiltered else GroupState.DROPPED
            elif kind is changes.RetryWaits:
                rows["state"][row] = RETRIED
            elif kind is changes.GroupReplaced:
                rows["after"][row] = After.REPLACED
            elif type(move) is changes.GroupLost:
                rows["after"][row], rows["charged"][row] = After.LOST, move.charged_step

    def _unreadable(self, event: ClaimUnreadable, done: tuple[changes.Change, ...]) -> None:
        row, rows = self._held(event.prompt), self.rows
        del self._in_hand[event.prompt]
        rows["state"][row], rows["error"][row] = GroupState.DROPPED, self._texts.number(event.error)
        for move in done:
            if type(move) is changes.GroupLost:
                rows["after"][row], rows["charged"][row] = After.LOST, move.charged_step

    def _held(self, prompt: int) -> int:
        """The row of a group that is ready or selected; of one that finished before the trace, a new one."""
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
            return  # said of an answer above
        for prompt in effect.prompts:
            row = self._held(prompt)
            del self._in_hand[prompt]
            self.rows["state"][row] = _CLEARED[effect.why]
            if effect.why == "evicted":
                self.rows["left"][row] = now


_CLEARED = {"trained": GroupState.TRAINED, "evicted": GroupState.EVICTED}
_PLACES = {"ready": GroupState.READY, "chunk": GroupState.SELECTED, "accumulated": GroupState.SELECTED}
"""Per place of a snapshot, the state of its groups."""
