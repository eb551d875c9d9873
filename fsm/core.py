"""The core: `apply(event)` changes the state and returns the effects to carry out. Nothing else writes the
state of a core that has begun; `fsm.snapshot` makes cores that have not.

The docstring of `fsm` tells the way of one event. Nothing has changed before the book carries the changes to the
groups, so an error leaves the core as it was.

The same events give the same effects and the same snapshot: there is no clock and no randomness here.
"""

from collections.abc import Callable
from typing import NamedTuple

from fsm.config.setup import Setup
from fsm.effects import Effect, Stopped
from fsm.errors import Deadlocked, EvenstepError, IllegalEvent, LateAnswer, SamplerError, Stalled
from fsm.events import (
    Attempt,
    BackoffOver,
    Begin,
    ChunkTrained,
    ClaimUnreadable,
    DeadEndReached,
    Event,
    FailureKind,
    GroupFailed,
    GroupFinished,
    GroupRecord,
    StallTimeout,
    StepFinished,
    SyncFinished,
)
from fsm.explain import waits_for
from fsm.groups.book import Book
from fsm.groups.invariants import check
from fsm.groups.roster import Group
from fsm.machines.catalog import TABLES
from fsm.machines.drive import Drive
from fsm.machines.table import Fire
from fsm.machines.trainer import TrainerState
from fsm.rules import on_event, own_moves
from fsm.rules.changes import Change, Done, RunStopped
from fsm.rules.laws import Laws, laws_of
from fsm.rules.outlook import dead_end, is_dead_end, who_led_here
from fsm.rules.sampler_calls import ask_label
from fsm.samplers.protocol import LabellingSampler, labelling
from fsm.state import State, is_over


class AppliedEvent(NamedTuple):
    """One applied event, as the observer sees it."""

    event: Event
    changes: tuple[Change, ...]
    effects: tuple[Effect, ...]


class Core:
    """The control core of one run. One owner; not for use from several threads."""

    def __init__(
        self,
        setup: Setup,
        *,
        observer: Callable[[AppliedEvent], None] | None = None,
        fire: Fire | None = None,
    ) -> None:
        """A core that has not begun: its first event is `Begin`.

        `observer` is called once for every applied event, after the state has changed. `fire` fires the rules of the
        machines; None for `transitions` machines.
        """
        self.setup = setup
        self.limits = setup.limits
        self.laws = laws_of(setup.limits, setup.sampler, setup.sampler_name, fire or Drive(TABLES))
        self.state = on_event.begin(self.laws)
        self.book = Book(setup.config.async_rl.rollout_failure)
        self.error: EvenstepError | None = None
        """Why the run was stopped; None while it runs and when it is completed."""
        self.notices: list[str] = list(setup.notices)
        self._labelling = labelling(setup.sampler)
        """The sampler, where it labels groups. Asked for once: an isinstance of a protocol is slow."""
        self.before_stop: Callable[[], None] | None = None
        """Called before an event that stops the run changes anything: a checkpoint saved then resumes as after a crash.
        """
        self._observer = observer
        self.opening: Callable[[State, Laws], Done] = on_event.open_fresh
        """What `Begin` does; `fsm.snapshot.restore` has another."""
        self.has_begun = False
        """`Begin` was applied, or the core was reinstated."""

    def apply(self, event: Event) -> tuple[Effect, ...]:
        """Apply one event and return the effects to carry out, in order (`fsm.effects` has the duties of each).

        Raises IllegalEvent (LateAnswer for an attempt that is over) where the event is refused, and InvariantBroken
        where evenstep itself is wrong. Both leave state, roster and book as they were.
        """
        (state, done), subject = self._transition(event)
        state, own = own_moves.settle(state, self.laws, self.state if self.has_begun else None)
        changes = (*done, *own)
        check(state, self.limits)
        if len(changes) > 1:  # a change that comes alone takes no group but the event's, which is where it should be
            self.book.require(changes, subject)
        if self.before_stop is not None and changes and type(changes[-1]) is RunStopped:
            self.before_stop()
        carry = self.book.carry
        effects = tuple([effect for change in changes for effect in carry(change, subject)])
        self.state = state
        self.has_begun = True
        if effects and isinstance(effects[-1], Stopped):
            self.error = effects[-1].error
        if self._observer is not None:
            self._observer(AppliedEvent(event, changes, effects))
        return effects

    def waits_for(self) -> str:
        """What the current step waits for, in one sentence."""
        return waits_for(self.state, self.limits, self.setup.sampler_name)

    @property
    def can_go_on(self) -> bool:
        """False once it is proven that nothing can close the step being trained any more (W2)."""
        return not is_dead_end(self.state, self.laws)

    def explain_dead_end(self) -> str:
        """Why the run can never go on, and which decision of a custom sampler led there.

        Raises IllegalEvent where the run can go on.
        """
        found = dead_end(self.state, self.limits, self.setup.sampler_name)
        if found is None:
            raise IllegalEvent(f"the run can go on: {self.waits_for()}")
        return f"the run can never go on: {self.waits_for()}. {who_led_here(found, self.laws)}"

    def _transition(self, event: Event) -> tuple[Done, Group | None]:
        """The next state, with the changes that lead to it, and the group that `event` is about; or IllegalEvent."""
        state, laws = self.state, self.laws
        if is_over(state) or not self.has_begun:
            return self._begin(event), None
        match event:
            case GroupFinished(attempt, zero_variance, record):  # by far the most frequent
                group = self._running(attempt)
                if zero_variance and self.limits.dynamic_sampling:
                    return on_event.filter_group(state, laws, group.group_class), group
                try:
                    label = 0 if self._labelling is None else self._label(self._labelling, record)
                except SamplerError as error:
                    return own_moves.stop_with(state, laws, error), group
                return on_event.commit(state, laws, group.group_class, label), group
            case GroupFailed(attempt, kind, error):
                if kind not in tuple(FailureKind):
                    raise IllegalEvent(f"{event!r}: kind is one of {', '.join(FailureKind)}")
                group = self._running(attempt)
                return self._fail(group, FailureKind(kind), error), group
            case BackoffOver(attempt):
                group = self._backing_off(attempt)
                return on_event.end_backoff(state, laws, group.group_class), group
            case ClaimUnreadable(prompt, error):
                group = self._claimed(prompt)
                return on_event.fail_claim(state, laws, group.group_class, error), group
            case ChunkTrained(chunk):
                self._require(event, TrainerState.TRAINING, "the chunk", chunk, self.book.next_chunk - 1)
                return on_event.finish_chunk(state, laws), None
            case StepFinished(step):
                self._require(event, TrainerState.FINISHING, "the step", step, state.trainer.version)
                return on_event.close_step(state, laws), None
            case SyncFinished(version):
                self._require(event, TrainerState.SYNCING, "the version", version, state.trainer.version)
                return on_event.finish_sync(state, laws), None
            case StallTimeout(idle_s):
                explanation = (
                    f"no group finished and no step closed for {idle_s:g} s, stall_timeout_s is over: "
                    f"{self.waits_for()}"
                )
                return own_moves.stop_with(state, laws, Stalled(explanation)), None
            case DeadEndReached():
                return own_moves.stop_with(state, laws, Deadlocked(self.explain_dead_end())), None
            case Begin():
                raise IllegalEvent("the run has begun; Begin comes first and once")
        raise IllegalEvent(f"{event!r} is no event of evenstep; see fsm.events")

    def _begin(self, event: Event) -> Done:
        """The transition of the first event, which must be `Begin`; a run that is over takes no event."""
        if is_over(self.state):
            raise IllegalEvent(f"the run is {self.state.run.status.name.lower()}; it takes no {event}")
        if not isinstance(event, Begin):
            raise IllegalEvent(f"the run has not begun; apply Begin before {event}")
        return self.opening(self.state, self.laws)

    def _fail(self, group: Group, kind: FailureKind, error: str) -> Done:
        """L7: another attempt follows, or the group is given up on; the roster knows how many there were."""
        failure = self.setup.config.async_rl.rollout_failure
        infra = kind is FailureKind.INFRA
        allowed = failure.max_infra_attempts_per_prompt if infra else failure.max_data_attempts_per_prompt
        if group.failures(kind) + 1 >= allowed:
            return on_event.give_up(self.state, self.laws, group.group_class, kind, error)
        backs_off = self.book.backoff_s(group, kind) > 0
        return on_event.retry(self.state, self.laws, group.group_class, kind, backs_off)

    def _running(self, attempt: Attempt) -> Group:
        """The group whose attempt runs, or LateAnswer (D2)."""
        book = self.book
        group = book.roster.in_flight.get(_checked(attempt).prompt)
        if group is None or not book.roster.runs(group) or not book.is_last(attempt, group):
            raise LateAnswer(f"{attempt} is over or never was; its answer changes nothing (D2)")
        return group

    def _backing_off(self, attempt: Attempt) -> Group:
        """The group that backs off after `attempt`, or LateAnswer."""
        group = self.book.roster.backing_off.get(_checked(attempt).prompt)
        if group is None or not self.book.is_last(attempt, group):
            raise LateAnswer(f"{attempt} is not backing off")
        return group

    def _claimed(self, prompt: int) -> Group:
        """The group of the chunk in training that has this prompt, or IllegalEvent."""
        chunk = self.book.roster.chunk
        group = chunk.get(prompt) if type(prompt) is int else None
        if group is None:
            raise IllegalEvent(f"prompt {prompt!r} is not in the chunk in training, which has {list(chunk)}")
        return group

    def _require(self, event: Event, status: TrainerState, what: str, number: int, current: int) -> None:
        """IllegalEvent unless the trainer is at this, and at the chunk, step or version of that number."""
        now = self.state.trainer.status
        if now is not status:
            raise IllegalEvent(f"{event} while the trainer is {now.name.lower()}, not {status.name.lower()}")
        if number != current:
            raise IllegalEvent(f"{event}, but {what} is {current}")

    def _label(self, sampler: LabellingSampler, record: GroupRecord | None) -> int:
        """What a custom sampler sees of a group that is ready."""
        if record is None:
            raise IllegalEvent(f"{self.setup.sampler_name} labels groups: GroupFinished must carry a record")
        return ask_label(self.laws, sampler, record)


def _checked(attempt: object) -> Attempt:
    """The attempt of an event; IllegalEvent where it is something else."""
    if not isinstance(attempt, Attempt) or type(attempt.prompt) is not int:
        raise IllegalEvent(f"{attempt!r} is no attempt; give back the one that StartRollout named")
    return attempt
