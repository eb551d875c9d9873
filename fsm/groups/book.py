"""From changes to effects: what the rules did to counts, the roster does to groups, and the world is told."""

from collections.abc import Iterable, Mapping, Sequence

from fsm.config.blocks import RolloutFailureConfig
from fsm.config.values import backoff_s
from fsm.effects import (
    AbortRollout,
    ClearReason,
    ClearRows,
    Completed,
    Effect,
    FinishStep,
    SelectedGroup,
    StartBackoff,
    StartRollout,
    StepClosed,
    Stopped,
    SyncWeights,
    TrainChunk,
)
from fsm.errors import InvariantBroken
from fsm.events import Attempt, FailureKind
from fsm.groups.roster import Group, Roster
from fsm.rules import changes
from fsm.rules.changes import Change
from fsm.samplers.protocol import optional
from fsm.state import NONE, GroupClass


class Book:
    """The roster, and what else is known of single groups, chunks and steps."""

    def __init__(self, failure: RolloutFailureConfig) -> None:
        self.roster = Roster()
        self.incarnation = 0
        self.next_chunk = 0
        self.closed: list[StepClosed] = []
        """Every closed step, in order."""
        self.stamps_target_steps = False
        """The sampler has stamped a batch with a target step (C1)."""
        self._failure = failure

    def attempt(self, group: Group) -> Attempt:
        """The current or last attempt of a group."""
        return Attempt(group.prompt, group.dispatch, self.incarnation)

    def is_last(self, attempt: Attempt, group: Group) -> bool:
        """`attempt` is the current or last one of `group`."""
        prompt, dispatch, incarnation = attempt
        return dispatch == group.dispatch and incarnation == self.incarnation and prompt == group.prompt

    def backoff_s(self, group: Group, kind: FailureKind) -> float:
        """Seconds before the next attempt of a group whose attempt fails now (L7)."""
        if kind is not FailureKind.INFRA:
            return 0.0
        failed = group.infra_failures + group.data_failures + 1
        return backoff_s(failed, self._failure.backoff_base_s, self._failure.max_backoff_s)

    def require(self, made: Sequence[Change], subject: Group | None) -> None:
        """Raise InvariantBroken unless all of `made` can be carried out, one after the other. Changes nothing.

        For each change the roster must have the groups that it takes, with those that an earlier one puts there.
        `subject` is the event's group.
        """
        ahead, group = _Ahead(self.roster), subject
        for change in made:
            if type(change) in _SUBJECT_IS:
                self._require_subject(change, group)
                group = None
            match change:
                case changes.GroupCommitted(after=after):
                    ahead.put(1, "ready", after)
                case changes.QueueDispatched(groups=groups):
                    ahead.take(change, groups, "queue")
                case changes.ChunkSelected(picks=picks):
                    for group_class, groups in picks:
                        ahead.take(change, groups, "ready", group_class)
                case changes.PromptsHeldBack(groups=groups):
                    ahead.put(groups, "spares")
                case changes.BatchAdmitted(groups=groups, from_spares=from_spares):
                    if from_spares:
                        ahead.take(change, groups, "spares")
                    ahead.put(groups, "queue")
                case changes.GroupReplaced():
                    _the(subject)
                    ahead.take(change, 1, "spares")
                case changes.GroupsEvicted(picks):
                    for group_class, groups in picks:
                        ahead.take(change, groups, "ready", group_class, whole=True)
                case changes.GroupsAborted(picks):  # comes before anything of the same event starts
                    for group_class, groups in picks:
                        ahead.take(change, groups, "running", group_class, whole=True)
                case changes.RunResumed():
                    for each in self.roster.selected():
                        ahead.put(1, "ready", each.group_class)
                case changes.RunRegenerated() | changes.DataReplaced():
                    ahead.empty()
                case _ if type(change) not in changes.RULES:
                    raise InvariantBroken(f"nobody carries out {change}")

    def _require_subject(self, change: Change, subject: Group | None) -> None:
        group, place = _the(subject), _SUBJECT_IS[type(change)]
        there = self.roster.runs(group) if place == "running" else group.prompt in getattr(self.roster, place)
        if not there:
            raise InvariantBroken(f"{change} is of prompt {group.prompt}, which the roster does not have {place}")

    def carry(self, change: Change, subject: Group | None) -> list[Effect]:
        """Carry out one change, which `require` has seen. `subject` is the event's group."""
        match change:
            case changes.GroupCommitted(after=after):
                group = _the(subject)
                self.roster.leave_flight(group)
                self.roster.make_ready(group, after)
                return []
            case changes.QueueDispatched(group_class, groups):
                return self._starts(self.roster.dispatch(group_class, groups))
            case changes.WaitingStarted(start_weight):
                return self._starts(self.roster.start_waiting(start_weight))
            case changes.ChunkSelected(step, picks):
                return [self._train(step, self.roster.select(picks))]
            case changes.ChunkAccumulated():
                self.roster.accumulate()
                return []
            case changes.PromptsHeldBack(groups, first):
                self.roster.spares.extend(self.roster.pull(groups, first))
                return []
            case changes.BatchAdmitted():
                return self._admit(change)
            case changes.RunCompleted():
                return [Completed()]
            case changes.RunStopped(error):
                return [Stopped(error)]
            case changes.StepFinishing(step, selected, charged, short):
                return [FinishStep(step, selected, charged, short)]
            case StepClosed():
                return self._close(change)
            case changes.GroupsEvicted(picks):
                return [_clear(self.roster.evict(picks), ClearReason.EVICTED)]
            case changes.GroupsAborted(picks):
                return [AbortRollout(self.attempt(group)) for group in self.roster.abort(picks)]
            case changes.RunResumed(start_weight):
                return self._starts(self.roster.resume(start_weight))
            case changes.RunRegenerated():
                return [ClearRows(tuple(self.roster.regenerate()), ClearReason.REGENERATED)]
            case changes.DataReplaced():
                return [ClearRows(tuple(self.roster.drop_data()), ClearReason.OTHER_DATA)]
            case changes.GateMoved() | changes.SourceExhausted() | changes.GroupLost() | changes.WeightsSynced():
                return []
            case _:
                return self._carry_failure(change, _the(subject))

    def _carry_failure(self, change: Change, group: Group) -> list[Effect]:
        """The changes that a failed, filtered or unreadable group makes."""
        match change:
            case changes.RetryWaits(kind=kind, after=after, backs_off=backs_off):
                delay_s = self.backoff_s(group, kind)
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
                return [_clear([group], ClearReason.FILTERED)]
            case changes.GroupDropped():
                self.roster.leave_flight(group)
                return [_clear([group], ClearReason.DROPPED)]
            case changes.ClaimFailed():
                del self.roster.chunk[group.prompt]
                return [_clear([group], ClearReason.DROPPED)]
            case changes.GroupReplaced(group_class):
                [prompt] = self.roster.draw_spares(1)
                self.roster.wait(Group(prompt, group.slot, group_class), group_class)
                return []
            case _:
                raise InvariantBroken(f"nobody carries out {change}")

    def _starts(self, groups: Iterable[Group]) -> list[Effect]:
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

    def _admit(self, change: changes.BatchAdmitted) -> list[Effect]:
        roster = self.roster
        if change.from_spares:
            roster.queue.extend(roster.draw_spares(change.groups))
        else:
            roster.queue.extend(roster.pull(change.groups, change.first_prompt))
        self.stamps_target_steps = change.target_step != NONE
        return []

    def _train(self, step: int, groups: list[Group]) -> TrainChunk:
        chunk, self.next_chunk = self.next_chunk, self.next_chunk + 1
        selected = tuple(SelectedGroup(group.prompt, group.group_class.start_weight) for group in groups)
        return TrainChunk(step, chunk, selected)

    def _close(self, closed: StepClosed) -> list[Effect]:
        self.closed.append(closed)
        trained = self.roster.close()
        return [closed, _clear(trained, ClearReason.TRAINED), SyncWeights(closed.step + 1)]


class _Ahead:
    """How many groups a place of the roster will have after some changes that are not carried out yet."""

    def __init__(self, roster: Roster) -> None:
        self._roster: Roster | None = roster
        self._groups: dict[tuple[str, GroupClass | None], int] = {}

    def _now(self, place: str, group_class: GroupClass | None) -> int:
        known = self._groups.get((place, group_class))
        if known is not None or self._roster is None:
            return known or 0
        there = getattr(self._roster, place)
        return len(there) if group_class is None else len(there.get(group_class, ()))

    def put(self, groups: int, place: str, group_class: GroupClass | None = None) -> None:
        self._groups[place, group_class] = self._now(place, group_class) + groups

    def take(
        self, change: Change, groups: int, place: str, group_class: GroupClass | None = None, *, whole: bool = False
    ) -> None:
        """`whole`: the change takes all the groups that are there."""
        now = self._now(place, group_class)
        if groups > now or (whole and groups < now):
            raise InvariantBroken(
                f"{change} takes {groups} groups of {place}{'' if group_class is None else f' {group_class}'}, the "
                f"roster has {now}. This is a defect of evenstep; please report it with the trace"
            )
        self._groups[place, group_class] = now - groups

    def empty(self) -> None:
        """No place has a group any more."""
        self._roster, self._groups = None, {}


_SUBJECT_IS: Mapping[type[Change], str] = {
    changes.GroupCommitted: "running",
    changes.RetryWaits: "running",
    changes.GroupFiltered: "running",
    changes.GroupDropped: "running",
    changes.BackoffEnded: "backing_off",
    changes.ClaimFailed: "chunk",
}
"""Where the event's group is before a change of it."""


def _the(subject: Group | None) -> Group:
    if subject is None:
        raise InvariantBroken("a rule changed one group, and the event names none, or its group was changed before")
    return subject


def _clear(groups: Iterable[Group], why: ClearReason) -> ClearRows:
    return ClearRows(tuple(group.prompt for group in groups), why)
