"""A deterministic world around the real core, which scenario files, tests and the benchmark drive.

Rollouts finish, chunks are trained and time passes when a method says so, without Ray, torch and a clock. Users can
test a custom sampler or trainer with it.
"""

import json
from collections.abc import Callable
from typing import Any

from fsm.config.blocks import RunConfig
from fsm.config.setup import Setup, set_up
from fsm.core import AppliedEvent, Core
from fsm.effects import Effect, StartBackoff, StartRollout
from fsm.errors import IllegalEvent, LateAnswer
from fsm.events import (
    Attempt,
    BackoffOver,
    Begin,
    ChunkTrained,
    ClaimUnreadable,
    Event,
    FailureKind,
    GroupFailed,
    GroupFinished,
    GroupRecord,
    StallTimeout,
    StepFinished,
    SyncFinished,
)
from fsm.explain import status
from fsm.groups.invariants import check_deep
from fsm.machines.trainer import TrainerState
from fsm.snapshot import restore, snapshot
from fsm.state import is_over


class WorldMistake(Exception):
    """The world was told to do what it cannot do now. The message says why."""


class World:
    """One run: the core, the attempts that it started, a clock that `tick` moves, and the last checkpoint."""

    def __init__(
        self,
        config: RunConfig,
        num_prompts: int,
        *,
        check_setup: bool = True,
        observer: Callable[[AppliedEvent], None] | None = None,
        make_core: Callable[..., Core] = Core,
    ) -> None:
        """Begin a run over `num_prompts` prompts an epoch. Raises ConfigError."""
        self.config = config
        self.setup: Setup = set_up(config, num_prompts, check=check_setup)
        self._observer = observer
        self._make_core = make_core
        self.now_s = 0.0
        self.crashes = 0
        self.saved: str | None = None
        """The last checkpoint, as JSON text."""
        self.attempts: dict[int, list[Attempt]] = {}
        """Per prompt every attempt that this process or an earlier one has started."""
        self.core = make_core(self.setup, observer=observer)
        self._open()

    def _open(self) -> None:
        self.started_s: dict[Attempt, float] = {}
        self.backoffs: list[tuple[float, Attempt]] = []
        self.progress_s = self.now_s
        self.apply(Begin())

    def apply(self, event: Event) -> tuple[Effect, ...]:
        """Feed one event and do what its effects ask of a clock; the roster is checked against the counts."""
        effects = self.core.apply(event)
        check_deep(self.core.state, self.core.limits, self.core.book.roster)
        if isinstance(event, GroupFinished | StepFinished):
            self.progress_s = self.now_s
        for effect in effects:
            if isinstance(effect, StartRollout):
                self.attempts.setdefault(effect.attempt.prompt, []).append(effect.attempt)
                self.started_s[effect.attempt] = self.now_s
            elif isinstance(effect, StartBackoff):
                self.backoffs.append((self.now_s + effect.delay_s, effect.attempt))
        return effects

    @property
    def status(self) -> str:
        """What the run is doing, as `fsm.explain.status` names it."""
        return status(self.core.state)

    @property
    def over(self) -> bool:
        """The run is completed or stopped."""
        return is_over(self.core.state)

    def running(self, prompt: int) -> Attempt:
        """The running attempt of `prompt`. Raises WorldMistake if there is none."""
        self._alive()
        roster = self.core.book.roster
        group = roster.in_flight.get(prompt)
        if group is None:
            raise WorldMistake(f"prompt {prompt} is not in flight; in flight: {sorted(roster.in_flight)}")
        if prompt in roster.waiting:
            raise WorldMistake(f"the attempt of prompt {prompt} waits for the weight sync to end (D2)")
        if prompt in roster.backing_off:
            raise WorldMistake(f"prompt {prompt} backs off after a failed attempt (L7)")
        return self.core.book.attempt(group)

    def _alive(self) -> None:
        if self.over:
            raise WorldMistake(f"the run is {self.status}: {self.core.error or 'all is done'}")

    def commit(self, prompt: int, record: GroupRecord | None = None) -> None:
        """The rollout of `prompt` finishes, with reward variance."""
        known = record or GroupRecord(prompt, completion_tokens=0, reward_mean=0.5, reward_std=0.5)
        self.apply(GroupFinished(self.running(prompt), zero_variance=False, record=known))

    def filter(self, prompt: int) -> None:
        """The rollout of `prompt` finishes with all rewards equal."""
        record = GroupRecord(prompt, completion_tokens=0, reward_mean=1.0, reward_std=0.0)
        self.apply(GroupFinished(self.running(prompt), zero_variance=True, record=record))

    def fail(self, prompt: int, kind: FailureKind, error: str = "the world failed it") -> None:
        """One attempt of `prompt` fails."""
        self.apply(GroupFailed(self.running(prompt), kind, error))

    def drop(self, prompt: int, kind: FailureKind) -> None:
        """Every attempt of `prompt` fails until it is given up on."""
        group = self.core.book.roster.in_flight.get(prompt)
        self.fail(prompt, kind)
        while not self.over and self.core.book.roster.in_flight.get(prompt) is group and group is not None:
            self.fail(prompt, kind)

    def last_over(self, prompt: int) -> Attempt:
        """The last attempt of `prompt` that is over. Raises WorldMistake if none is."""
        self._alive()
        roster = self.core.book.roster
        group = roster.in_flight.get(prompt)
        runs = self.core.book.attempt(group) if group is not None and roster.runs(group) else None
        over = [attempt for attempt in self.attempts.get(prompt, []) if attempt != runs]
        if not over:
            raise WorldMistake(f"no attempt of prompt {prompt} is over, so none can answer late")
        return over[-1]

    def late(self, prompt: int) -> None:
        """An answer arrives for an attempt of `prompt` that is over; it is refused and nothing changes."""
        over = self.last_over(prompt)
        before = self.snapshot()
        try:
            self.core.apply(GroupFinished(over, zero_variance=False))
        except LateAnswer:
            if self.snapshot() != before:
                raise WorldMistake(
                    f"the late answer of prompt {prompt} was refused, and yet changed something"
                ) from None
            return
        raise WorldMistake(f"the late answer of prompt {prompt}, {over}, was applied")

    def chunk_trained(self) -> None:
        """The chunk in training finishes."""
        self._trainer_is(TrainerState.TRAINING, "no chunk is in training")
        self.apply(ChunkTrained(self.core.book.next_chunk - 1))

    def claim_failed(self, prompt: int) -> None:
        """The data of a group of the chunk in training cannot be read."""
        self._trainer_is(TrainerState.TRAINING, "no chunk is in training")
        try:
            self.apply(ClaimUnreadable(prompt, f"the data of prompt {prompt} cannot be read"))
        except IllegalEvent as refused:
            raise WorldMistake(str(refused)) from refused

    def step_finished(self) -> None:
        """The optimizer step asked for finishes."""
        self._trainer_is(TrainerState.FINISHING, "no optimizer step was asked for")
        self.apply(StepFinished(self.core.state.trainer.version))

    def weights_synced(self) -> None:
        """The weight sync asked for finishes."""
        self._trainer_is(TrainerState.SYNCING, "no weight sync was asked for")
        self.apply(SyncFinished(self.core.state.trainer.version))

    def _trainer_is(self, wanted: TrainerState, otherwise: str) -> None:
        self._alive()
        if self.core.state.trainer.status is not wanted:
            raise WorldMistake(f"{otherwise}; the run is {self.status}: {self.core.waits_for()}")

    def close(self) -> None:
        """Make the chunk_trained, step_finished and weights_synced that the current step still needs."""
        self._alive()
        while not self.over:
            match self.core.state.trainer.status:
                case TrainerState.TRAINING:
                    self.chunk_trained()
                case TrainerState.FINISHING:
                    self.step_finished()
                case TrainerState.SYNCING:
                    self.weights_synced()
                    return
                case TrainerState.ASSEMBLING:
                    raise WorldMistake(f"the step cannot close without more rollouts: {self.core.waits_for()}")

    def tick(self, seconds: float) -> None:
        """Time passes, in one go: deadlines (W1), then ends of backoffs, then the watchdog (W2)."""
        self._alive()
        self.now_s += seconds
        deadline_s = self.config.async_rl.rollout_failure.rollout_timeout_s
        if deadline_s is not None:
            for attempt in self._due(deadline_s):
                if not self.over:
                    error = f"the attempt ran for rollout_timeout_s = {deadline_s:g} s"
                    self.apply(GroupFailed(attempt, FailureKind.INFRA, error))
        # Backoffs that end together keep the order in which they began.
        due = sorted((entry for entry in self.backoffs if entry[0] <= self.now_s), key=lambda entry: entry[0])
        self.backoffs = [entry for entry in self.backoffs if entry[0] > self.now_s]
        for _, attempt in due:
            if not self.over:
                self.apply(BackoffOver(attempt))
        watchdog = self.config.async_rl.stall_watchdog
        idle_s = self.now_s - self.progress_s
        if not self.over and idle_s >= watchdog.stall_timeout_s and watchdog.stall_action == "abort":
            self.apply(StallTimeout(idle_s))

    def _due(self, deadline_s: float) -> list[Attempt]:
        """Running attempts that have reached their deadline, in order of dispatch."""
        book = self.core.book
        running = [book.attempt(group) for group in book.roster.in_order() if group.group_class.start_weight >= 0]
        return [attempt for attempt in running if self.now_s - self.started_s[attempt] >= deadline_s]

    def snapshot(self) -> str:
        """The core's snapshot as JSON text."""
        return json.dumps(snapshot(self.core))

    def checkpoint(self) -> None:
        """The process writes a checkpoint."""
        self._alive()
        self.saved = self.snapshot()

    def crash(self) -> None:
        """The process dies; a new one resumes from the last checkpoint, or begins a new run if there is none."""
        self.crashes += 1
        if self.saved is None:
            self.core = self._make_core(self.setup, observer=self._observer)
            self.core.book.incarnation = self.crashes
        else:
            saved: dict[str, Any] = json.loads(self.saved)
            self.core = restore(
                self.setup, saved, incarnation=self.crashes, observer=self._observer, make_core=self._make_core
            )
        self._open()
