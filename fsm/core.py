"""The core: `apply(event)` changes the state and returns the effects to carry out. It is the only writer.

An event is first checked against the roster and the machines; a refused one raises IllegalEvent and changes
nothing. Then the rules make the event's transition and all of the core's own moves on an immutable state
(`fsm.rules.on_event`, `fsm.rules.own_moves`), the invariants are asserted, and only then is the state replaced and the
roster told. The same events give the same effects and the same snapshot: there is no clock and no randomness here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from fsm.config.setup import Setup
from fsm.config.values import backoff_s
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
from fsm.rules.changes import Change, RunStopped
from fsm.rules.laws import Laws, laws_of
from fsm.rules.on_event import Done
from fsm.rules.outlook import WHAT_LED_HERE, DeadEnd, dead_end, is_dead_end
from fsm.rules.sampler_calls import ask_label
from fsm.samplers.protocol import LabellingSampler
from fsm.state import State, is_over


class AppliedEvent(NamedTuple):
    """One applied event, as the observer sees it."""

    event: Event
    changes: tuple[Change, ...]
    effects: tuple[Effect, ...]


_Plan = tuple[Callable[[State, Laws], Done], Group | None, float]
"""What a legal event does: the transition on counts, the group that it is about, and the backoff of its retry."""


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

        `observer` is called once for every applied event, after the state has changed. `fire` is how rules are
        fired; None for `transitions` machines.
        """
        self.setup = setup
        self.limits = setup.limits
        self.laws = laws_of(setup.limits, setup.sampler, setup.sampler_name, fire or Drive(TABLES))
        self.state = on_event.begin(self.laws)
        self.book = Book()
        self.error: EvenstepError | None = None
        """Why the run was stopped; None while it runs and when it is completed."""
        self.notices: list[str] = list(setup.notices)
        sampler = setup.sampler
        self._labelling = sampler if isinstance(sampler, LabellingSampler) and sampler.labels > 1 else None
        """The sampler, where it labels groups. Asked for once: an isinstance of a protocol is slow."""
        self.before_stop: Callable[[], None] | None = None
        """Called before an event that stops the run changes anything: what is saved then goes on as after a crash."""
        self._observer = observer
        self._opening: Callable[[State, Laws], Done] = _open_fresh
        self._begun = False

    def apply(self, event: Event) -> tuple[Effect, ...]:
        """Apply one event and return the effects to carry out, in order.

        Raises IllegalEvent (LateAnswer for an attempt that is over) and changes nothing where the event is
        refused; raises InvariantBroken, with the state as it was, where evenstep itself is wrong.
        """
        transition, subject, delay_s = self._plan(event)
        state, done = transition(self.state, self.laws)
        state, own = own_moves.settle(state, self.laws, self.state if self._begun else None)
        check(state, self.limits)
        moves = (*done, *own)
        if self.before_stop is not None and moves and type(moves[-1]) is RunStopped:
            self.before_stop()
        self.state = state
        self._begun = True
        carry = self.book.carry
        effects = [effect for move in moves for effect in carry(move, subject, delay_s)]
        if effects and isinstance(effects[-1], Stopped):
            self.error = effects[-1].error
        if self._observer is not None:
            self._observer(AppliedEvent(event, moves, tuple(effects)))
        return tuple(effects)

    def waits_for(self) -> str:
        """What the current step waits for, in one sentence (see `fsm.explain`)."""
        return waits_for(self.state, self.limits, self.setup.sampler_name)

    @property
    def can_go_on(self) -> bool:
        """False where it is proven that nothing can close the step being trained any more (W2)."""
        return not is_dead_end(self.state, self.laws)

    def explain_dead_end(self) -> str:
        """Why the run can never go on, and which answer of a custom sampler led there. Raises IllegalEvent where it
        can."""
        found = dead_end(self.state, self.limits, self.setup.sampler_name)
        if found is None:
            raise IllegalEvent(f"the run can go on: {self.waits_for()}")
        return f"the run can never go on: {self.waits_for()}. {self._blame(found)}"

    def _blame(self, found: DeadEnd) -> str:
        name = self.setup.sampler_name
        if not self.laws.is_custom:
            return "No sampler from outside is to blame: please report it with the trace"
        led = " or ".join(f"{method}: {WHAT_LED_HERE[method]}" for method in found.methods)
        return (
            f"Sampler {name} led here by what it answered to {led}. Correct it (evenstep check --sampler finds the "
            f"shortest way to such a state), and resume from a checkpoint before that answer"
        )

    def open_with(self, opening: Callable[[State, Laws], Done]) -> None:
        """Begin otherwise than afresh; for `fsm.snapshot.restore`."""
        self._opening = opening

    def go_on(self) -> None:
        """The run has begun before; for `fsm.snapshot.reinstate`."""
        self._begun = True

    def _plan(self, event: Event) -> _Plan:
        """The transition that `event` makes, or IllegalEvent."""
        if isinstance(event, GroupFinished) and self._begun and not is_over(self.state):  # by far the most frequent
            return self._plan_finished(self._running(event.attempt), event.zero_variance, event.record)
        if is_over(self.state):
            raise IllegalEvent(f"the run is {self.state.run.status.name.lower()}; it takes no {event}")
        if isinstance(event, Begin):
            if self._begun:
                raise IllegalEvent("the run has begun; Begin comes first and once")
            return self._opening, None, 0.0
        if not self._begun:
            raise IllegalEvent(f"the run has not begun; apply Begin before {event}")
        match event:
            case GroupFailed(attempt, kind, error):
                if kind not in tuple(FailureKind):
                    raise IllegalEvent(f"{event!r}: kind is one of {', '.join(FailureKind)}")
                return self._plan_failed(self._running(attempt), FailureKind(kind), error)
            case BackoffOver(attempt):
                group = self.book.roster.backing_off.get(_checked(attempt).prompt)
                if group is None or self.book.attempt(group) != attempt:
                    raise LateAnswer(f"{attempt} is not backing off")
                return partial(on_event.end_backoff, group_class=group.group_class), group, 0.0
            case ClaimUnreadable(prompt, error):
                return self._plan_unreadable(prompt, error)
            case StallTimeout(idle_s):
                explanation = (
                    f"no group finished and no step closed for {idle_s:g} s, stall_timeout_s is over: "
                    f"{self.waits_for()}"
                )
                return partial(on_event.stop_with, error=Stalled(explanation)), None, 0.0
            case DeadEndReached():
                return partial(on_event.stop_with, error=Deadlocked(self.explain_dead_end())), None, 0.0
        return self._plan_trainer(event)

    def _plan_trainer(self, event: Event) -> _Plan:
        trainer = self.state.trainer
        match event:
            case ChunkTrained(chunk):
                current = self.book.next_chunk - 1
                self._require(TrainerState.TRAINING, event, chunk == current, f"the chunk is {current}")
                return on_event.finish_chunk, None, 0.0
            case StepFinished(step):
                version = trainer.version
                self._require(TrainerState.FINISHING, event, step == version, f"the step is {version}")
                return on_event.close_step, None, 0.0
            case SyncFinished(version):
                current = trainer.version
                self._require(TrainerState.SYNCING, event, version == current, f"the version is {current}")
                return on_event.finish_sync, None, 0.0
        raise IllegalEvent(f"{event!r} is no event of evenstep; see fsm.events")

    def _plan_finished(self, group: Group, zero_variance: bool, record: GroupRecord | None) -> _Plan:
        running = group.group_class
        if zero_variance and self.limits.dynamic_sampling:
            return partial(on_event.filter_group, group_class=running), group, 0.0
        try:
            label = self._label(record)
        except SamplerError as error:
            return partial(on_event.stop_with, error=error), group, 0.0
        return partial(on_event.commit, group_class=running, label=label), group, 0.0

    def _plan_failed(self, group: Group, kind: FailureKind, error: str) -> _Plan:
        """L7: the roster knows the attempts, so whether another follows is an answer of the world to the rules."""
        failure = self.setup.config.async_rl.rollout_failure
        running = group.group_class
        infra = kind is FailureKind.INFRA
        allowed = failure.max_infra_attempts_per_prompt if infra else failure.max_data_attempts_per_prompt
        if group.failures(kind) + 1 >= allowed:
            return partial(on_event.give_up, group_class=running, kind=kind, error=error), group, 0.0
        failed = group.infra_failures + group.data_failures + 1
        delay_s = backoff_s(failed, failure.backoff_base_s, failure.max_backoff_s) if infra else 0.0
        transition = partial(on_event.retry, group_class=running, kind=kind, backs_off=delay_s > 0)
        return transition, group, delay_s

    def _plan_unreadable(self, prompt: int, error: str) -> _Plan:
        group = self.book.roster.chunk.get(prompt) if type(prompt) is int else None
        if group is None:
            raise IllegalEvent(
                f"prompt {prompt!r} is not in the chunk in training, which has {list(self.book.roster.chunk)}"
            )
        return partial(on_event.fail_claim, group_class=group.group_class, error=error), group, 0.0

    def _running(self, attempt: Attempt) -> Group:
        """The group whose attempt runs, or LateAnswer (D2)."""
        book = self.book
        group = book.roster.in_flight.get(_checked(attempt).prompt)
        if group is None or not book.roster.runs(group) or not book.is_last(attempt, group):
            raise LateAnswer(f"{attempt} is over or never was; its answer changes nothing (D2)")
        return group

    def _require(self, status: TrainerState, event: Event, same: bool, otherwise: str) -> None:
        now = self.state.trainer.status
        if now is not status:
            raise IllegalEvent(f"{event} while the trainer is {now.name.lower()}, not {status.name.lower()}")
        if not same:
            raise IllegalEvent(f"{event}, but {otherwise}")

    def _label(self, record: GroupRecord | None) -> int:
        """What a custom sampler sees of a group that is ready."""
        sampler = self._labelling
        if sampler is None:
            return 0
        if record is None:
            raise IllegalEvent(f"{self.setup.sampler_name} labels groups: GroupFinished must carry a record")
        return ask_label(self.laws, sampler, record)


def _checked(attempt: object) -> Attempt:
    """The attempt of an event; an IllegalEvent where it is something else."""
    if not isinstance(attempt, Attempt) or type(attempt.prompt) is not int:
        raise IllegalEvent(f"{attempt!r} is no attempt; give back the one that StartRollout named")
    return attempt


def _open_fresh(state: State, laws: Laws) -> Done:
    del laws
    return state, []
