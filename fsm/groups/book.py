"""From moves to effects: what the rules did to counts, the roster does to groups, and the world is told."""

from __future__ import annotations

from collections.abc import Iterable

from fsm.effects import (
    AbortRollout,
    ClearRows,
    ClosedStep,
    Completed,
    Effect,
    FinishStep,
    SelectedGroup,
    StartBackoff,
    StartRollout,
    Stopped,
    SyncWeights,
    TrainChunk,
)
from fsm.errors import InvariantBroken
from fsm.events import Attempt
from fsm.groups.roster import Group, Roster
from fsm.rules import changes
from fsm.rules.changes import Change
from fsm.samplers.protocol import optional
from fsm.state import NONE


class Book:
    """The roster, and what else is known of single groups, chunks and steps."""

    def __init__(self, incarnation: int = 0) -> None:
        self.roster = Roster()
        self.incarnation = incarnation
        self.next_chunk = 0
        self.closed: list[ClosedStep] = []
        """Every closed step, in order."""
        self.stamps_target_steps = False
        """The sampler has stamped a batch with a target step (C1)."""

    def attempt(self, group: Group) -> Attempt:
        """The current or last attempt of a group."""
        return Attempt(group.prompt, group.dispatch, self.incarnation)

    def is_last(self, attempt: Attempt, group: Group) -> bool:
        """`attempt` is the current or last one of `group`."""
        prompt, dispatch, incarnation = attempt
        return dispatch == group.dispatch and incarnation == self.incarnation and prompt == group.prompt

    def starts(self, groups: Iterable[Group]) -> list[Effect]:
        """One StartRollout a group."""
        return [
            StartRollout(
                self.attempt(group),
                group.slot,
                optional(group.group_class.target_step),
                group.group_class.start_weight,
            )
            for group in groups
        ]

    def carry(self, move: Change, subject: Group | None, delay_s: float) -> list[Effect]:
        """Carry out one move. `subject` is the event's group, `delay_s` its backoff where it is retried."""
        match move:
            case changes.GroupCommitted(after=after):
                group = _the(subject)
                self.roster.leave_flight(group)
                self.roster.make_ready(group, after)
                return []
            case changes.QueueDispatched(group_class, groups):
                return self.starts(self.roster.dispatch(group_class, groups))
            case changes.WaitingStarted(start_weight):
                return self.starts(self.roster.start_waiting(start_weight))
            case changes.GateMoved() | changes.SourceExhausted() | changes.GroupLost():
                return []
            case changes.ChunkSelected(step, picks):
                return [self._train(step, self.roster.select(picks))]
            case changes.ChunkAccumulated():
                self.roster.accumulate()
                return []
            case changes.PromptsHeldBack(groups, first):
                self.roster.spares.extend(self.roster.pull(groups, first))
                return []
            case changes.BatchAdmitted():
                return self._admit(move)
            case changes.RunCompleted():
                return [Completed()]
            case changes.RunStopped(error):
                return [Stopped(error)]
            case changes.StepFinishing(step, selected, charged, short):
                return [FinishStep(step, selected, charged, short)]
            case changes.StepClosed(step, selected, charged, short):
                return self._close(ClosedStep(step, selected, charged, short))
            case changes.GroupsEvicted(picks):
                return [_clear(self.roster.evict(picks), "evicted")]
            case changes.GroupsAborted(picks):
                return [AbortRollout(self.attempt(group)) for group in self.roster.abort(picks)]
            case changes.WeightsSynced():
                return []
            case changes.RunResumed(start_weight):
                return self.starts(self.roster.resume(start_weight))
            case changes.RunRegenerated():
                return [ClearRows(tuple(self.roster.regenerate()), "regenerated")]
            case changes.DataReplaced():
                return [ClearRows(tuple(self.roster.drop_data()), "other data")]
            case _:
                return self._carry_failure(move, _the(subject), delay_s)

    def _carry_failure(self, move: Change, group: Group, delay_s: float) -> list[Effect]:
        """The moves that a failed, filtered or unreadable group makes."""
        match move:
            case changes.RetryWaits(kind=kind, after=after, backs_off=backs_off):
                self.roster.stop_running(group)
                group.count_failure(kind)
                if not backs_off:
                    self.roster.wait(group, after)
                    return []
                self.roster.back_off(group, after)
                return [StartBackoff(self.attempt(group), delay_s)]
            case changes.BackoffEnded(group_class):
                del self.roster.backing_off[group.prompt]
                self.roster.wait(group, group_class)
                return []
            case changes.GroupFiltered():
                self.roster.leave_flight(group)
                return [_clear([group], "filtered")]
            case changes.GroupDropped():
                self.roster.leave_flight(group)
                return [_clear([group], "dropped")]
            case changes.ClaimFailed():
                del self.roster.chunk[group.prompt]
                return [_clear([group], "dropped")]
            case changes.GroupReplaced(group_class):
                [prompt] = self.roster.draw_spares(1)
                self.roster.wait(Group(prompt, group.slot, group_class), group_class)
                return []
            case _:
                raise InvariantBroken(f"nobody carries out {move}")

    def _admit(self, move: changes.BatchAdmitted) -> list[Effect]:
        roster = self.roster
        if move.from_spares:
            roster.queue.extend(roster.draw_spares(move.groups))
        else:
            roster.queue.extend(roster.pull(move.groups, move.first_prompt))
        self.stamps_target_steps = move.target_step != NONE
        return []

    def _train(self, step: int, groups: list[Group]) -> TrainChunk:
        chunk, self.next_chunk = self.next_chunk, self.next_chunk + 1
        selected = tuple(SelectedGroup(group.prompt, group.group_class.start_weight) for group in groups)
        return TrainChunk(step, chunk, selected)

    def _close(self, closed: ClosedStep) -> list[Effect]:
        self.closed.append(closed)
        trained = self.roster.close()
        return [closed, _clear(trained, "trained"), SyncWeights(closed.step + 1)]


def _the(subject: Group | None) -> Group:
    if subject is None:
        raise InvariantBroken("a move of one group was made by an event that names none")
    return subject


def _clear(groups: Iterable[Group], why: str) -> ClearRows:
    return ClearRows(tuple(group.prompt for group in groups), why)
