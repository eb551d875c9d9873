"""A second opinion on a run: what must be true, worked out from events and effects alone.

`Watch` is told of every transition of a core. From the effects it keeps its own books (which prompt is where, who
is charged, which attempt failed how often) by its own reading of docs/rules.md, and compares them with the
core's state after every event. It calls none of the rules.
"""

import copy
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from fsm import events as ev
from fsm.config.blocks import CustomConfig, InOrderConfig, RunConfig
from fsm.core import AppliedEvent, Core
from fsm.effects import (
    AbortRollout,
    ClearRows,
    Effect,
    StartRollout,
    StepClosed,
    Stopped,
    SyncWeights,
    TrainChunk,
)
from fsm.errors import BudgetExceeded
from fsm.explain import status
from fsm.groups.invariants import check_deep
from fsm.machines.source import SourceState
from fsm.machines.trainer import TrainerState
from fsm.rules import changes
from fsm.rules.outlook import livelocked
from fsm.rules.own_moves import next_move
from fsm.state import State, charged
from fsm.values import pages

PLACES = ("in_flight", "ready", "selected", "trained", "filtered", "dropped", "evicted", "aborted")


class Place(NamedTuple):
    """A group as the effects tell of it."""

    slot: int
    target_step: int | None
    start_weight: int
    dispatch: int


@dataclass
class Facts:
    """What happened, as a checkpoint would keep it."""

    version: int = 0
    in_flight: dict[int, Place] = field(default_factory=dict)
    spares_to_start: dict[int, int | None] = field(default_factory=dict)
    """Per slot that a spare took over and has not started in yet, its target step."""
    ready: dict[int, Place] = field(default_factory=dict)
    selected: dict[int, Place] = field(default_factory=dict)
    """Of the open step."""
    trained: set[int] = field(default_factory=set)
    filtered: set[int] = field(default_factory=set)
    dropped: set[int] = field(default_factory=set)
    evicted: set[int] = field(default_factory=set)
    aborted: set[int] = field(default_factory=set)
    slots: dict[int, list[int]] = field(default_factory=dict)
    """Per slot the prompts that held it, in order."""
    failures: Counter[tuple[int, ev.FailureKind]] = field(default_factory=Counter)
    charges: Counter[int] = field(default_factory=Counter)
    searched: Counter[int] = field(default_factory=Counter)
    """Per step the groups filtered for it (L8)."""
    admitted: int = 0
    """Batches."""
    lost: int = 0
    replaced: int = 0
    consecutive: int = 0
    skipped: int = 0
    spares: int = 0
    dispatch: int = -1
    """The last dispatch number."""
    closed: list[StepClosed] = field(default_factory=list)


class Watch:
    """Checks every transition of the cores of one run, across crashes."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.sampler = config.async_rl.sampler
        self.failure = config.async_rl.rollout_failure
        self.facts = Facts()
        self.saved = Facts()
        self.opening: Facts | None = None
        """What was true before a resume, until the first event after it."""

    def checkpoint(self) -> None:
        """The world saved a checkpoint."""
        self.saved = copy.deepcopy(self.facts)

    def rollback(self) -> None:
        """The world is about to crash: what happened since the checkpoint did not."""
        self.facts = copy.deepcopy(self.saved)
        self.opening = self.saved

    def see(self, core: Core, transition: AppliedEvent) -> None:
        """One applied event, with the core as it is after it."""
        state, facts = core.state, self.facts
        event, effects = transition.event, transition.effects
        if isinstance(event, ev.Begin):
            self._begins(effects)
        else:
            self._answered(core, event, effects)
        for effect in effects:
            self._carry(core, effect)
        facts.spares = state.sheet.spare
        facts.admitted += sum(isinstance(move, changes.BatchAdmitted) for move in transition.changes)
        self.check(core)
        self._check_dispatch(core, transition)

    # What an event says

    def _begins(self, effects: tuple[Effect, ...]) -> None:
        """C2: the groups in flight start again, in their slots and order; the open step's are ready again."""
        if self.opening is None:
            return
        facts, self.opening = self.facts, None
        held = len(facts.in_flight) + len(facts.spares_to_start)
        again = [effect for effect in effects if isinstance(effect, StartRollout)][:held]
        slots = {each.attempt.prompt: each.slot for each in again}
        assert {p: g.slot for p, g in facts.in_flight.items()}.items() <= slots.items(), "C2: nothing lost, old slots"
        assert facts.spares_to_start.keys() <= set(slots.values()), "C2: nothing lost"
        assert len(slots) == held
        for prompt in facts.in_flight:
            for kind in ev.FailureKind:
                facts.failures.pop((prompt, kind), None)
        facts.ready |= facts.selected
        facts.selected = {}

    def _answered(self, core: Core, event: ev.Event, effects: tuple[Effect, ...]) -> None:
        facts = self.facts
        gone = {p: e.why for e in effects if isinstance(e, ClearRows) for p in e.prompts}
        match event:
            case ev.GroupFinished(attempt, zero_variance):
                place = facts.in_flight.pop(attempt.prompt)
                facts.consecutive = 0
                if zero_variance and self.config.grpo.use_dynamic_sampling:
                    assert gone[attempt.prompt] == "filtered", "L1"
                    facts.filtered.add(attempt.prompt)
                    facts.searched[self._payer(place)] += 1
                    self._replaced_or_lost(core, place, stopped=False)
                else:
                    facts.ready[attempt.prompt] = place
            case ev.GroupFailed(attempt, kind):
                self._failed(core, attempt.prompt, kind, gone.get(attempt.prompt), effects)
            case ev.ClaimUnreadable(prompt):
                place = facts.selected.pop(prompt)
                facts.dropped.add(prompt)
                if not self._spends(core, ev.FailureKind.INFRA, effects):
                    self._lost(place)

    def _failed(
        self, core: Core, prompt: int, kind: ev.FailureKind, gone: str | None, effects: tuple[Effect, ...]
    ) -> None:
        facts, failure = self.facts, self.failure
        facts.failures[prompt, kind] += 1
        infra = kind is ev.FailureKind.INFRA
        allowed = failure.max_infra_attempts_per_prompt if infra else failure.max_data_attempts_per_prompt
        given_up = facts.failures[prompt, kind] >= allowed
        assert given_up == (gone == "dropped"), "L7: attempts have a budget per prompt and kind"
        if given_up:
            place = facts.in_flight.pop(prompt)
            facts.dropped.add(prompt)
            self._replaced_or_lost(core, place, stopped=self._spends(core, kind, effects))

    def _spends(self, core: Core, kind: ev.FailureKind, effects: tuple[Effect, ...]) -> bool:
        """L7: one more given up on; whether that stops the run."""
        facts, failure = self.facts, self.failure
        if kind is ev.FailureKind.INFRA:
            facts.consecutive += 1
            over = facts.consecutive > failure.max_consecutive_dropped_prompts
        else:
            facts.skipped += 1
            over = facts.skipped > failure.max_skipped_prompts
        assert over == isinstance(core.error or _error(effects), BudgetExceeded), "L7: one more than the budget stops"
        return over

    def _replaced_or_lost(self, core: Core, place: Place, *, stopped: bool) -> None:
        """L2, L3."""
        if stopped:
            return
        limits, facts = core.limits, self.facts
        had = len(facts.slots[place.slot]) - 1
        if had < limits.max_replacements and facts.spares:
            facts.replaced += 1
            facts.spares_to_start[place.slot] = place.target_step
            assert core.state.sheet.replaced == facts.replaced, "L2: a spare takes over the slot"
        else:
            self._lost(place)

    def _payer(self, place: Place) -> int:
        """The step that a loss counts for: the group's target step, or the earliest with a place left (L3)."""
        if place.target_step is not None:
            return place.target_step
        size, step = self.config.grpo.num_prompts_per_step, self.facts.version
        if len(self.facts.selected) + self.facts.charges[step] < size:
            return step
        step += 1
        while self.facts.charges[step] >= size:
            step += 1
        return step

    def _lost(self, place: Place) -> None:
        self.facts.lost += 1
        if self.sampler.name != "windowed":
            self.facts.charges[self._payer(place)] += 1

    # What an effect asks

    def _carry(self, core: Core, effect: Effect) -> None:
        facts = self.facts
        match effect:
            case StartRollout():
                self._starts(core, effect)
            case AbortRollout(attempt):
                place = facts.in_flight.pop(attempt.prompt)
                assert place.dispatch == attempt.dispatch
                assert facts.version - place.start_weight > self._window(), "E1: only below the window"
                facts.aborted.add(attempt.prompt)
            case TrainChunk(step, _, groups):
                self._selects(core, step, [(group.prompt, group.start_weight) for group in groups])
            case StepClosed():
                self._closes(core, effect)
            case ClearRows(prompts, "trained"):
                assert set(prompts) == facts.selected.keys(), "L5: the step's groups are trained when it closes"
                assert not facts.trained & set(prompts), "no group is trained twice"
                facts.trained |= set(prompts)
                facts.selected = {}
            case ClearRows(prompts, "evicted"):
                for prompt in prompts:
                    place = facts.ready.pop(prompt)
                    assert facts.version - place.start_weight > self._window(), "E1: only below the window"
                    facts.evicted.add(prompt)
            case SyncWeights(version):
                assert version == facts.version

    def _window(self) -> int:
        assert not isinstance(self.sampler, CustomConfig)
        if isinstance(self.sampler, InOrderConfig):
            return self.sampler.max_lookahead_versions
        return self.sampler.max_staleness_versions

    def _starts(self, core: Core, start: StartRollout) -> None:
        """D2."""
        facts, prompt = self.facts, start.attempt.prompt
        assert start.attempt.dispatch > facts.dispatch, "dispatch numbers rise"
        facts.dispatch = start.attempt.dispatch
        assert start.start_weight == facts.version == core.state.trainer.version
        before = facts.in_flight.get(prompt)
        if before is None:
            places = [place for place in PLACES if prompt in getattr(facts, place)]
            assert not places, f"prompt {prompt} starts and is already {places}"
            held = facts.slots.get(start.slot)
            if held is not None:
                assert facts.spares_to_start.pop(start.slot) == start.target_step, "L2: a replacement keeps the stamp"
            facts.slots.setdefault(start.slot, []).append(prompt)
            assert len(facts.slots[start.slot]) <= 1 + core.limits.max_replacements, "L2: replacements of a slot"
        else:
            assert (before.slot, before.target_step) == (start.slot, start.target_step), "a retry keeps its slot"
            assert start.start_weight >= before.start_weight, "start weights never fall"
        facts.in_flight[prompt] = Place(start.slot, start.target_step, start.start_weight, start.attempt.dispatch)

    def _selects(self, core: Core, step: int, groups: list[tuple[int, int]]) -> None:
        """S1 to S3, and staleness at selection."""
        facts, limits = self.facts, core.limits
        assert step == facts.version
        want = limits.size - len(facts.selected) - charged(core.state, step)
        closing_short = limits.closes_short and core.state.source.status is SourceState.EXHAUSTED
        assert len(groups) <= want, "S1: no more than the step wants"
        assert closing_short or len(groups) >= min(limits.min_groups, want), "S1: no fewer than the streaming minimum"
        places = [facts.ready.pop(prompt) for prompt, _ in groups]
        assert [place.start_weight for place in places] == [start_weight for _, start_weight in groups]
        facts.selected |= {prompt: place for (prompt, _), place in zip(groups, places, strict=True)}
        if isinstance(self.sampler, CustomConfig):
            return
        if self.sampler.name != "ready_first":
            assert all(0 <= step - place.start_weight <= self._window() for place in places), "staleness"
        if self.sampler.name == "in_order":
            assert all(place.target_step == step for place in places), "S2: only groups of the target step"
        if self.sampler.name == "weight_fifo":
            self._check_bucket(core)
        self._check_order(places)

    def _check_bucket(self, core: Core) -> None:
        """S2: one bucket, the oldest of which anything is left."""
        buckets = {group.group_class.bucket for group in core.book.roster.chunk.values()}
        assert len(buckets) == 1, f"S2: a chunk of buckets {buckets}"
        [bucket] = buckets
        state = core.state
        left = [each.bucket for counts in (state.running, state.waiting, state.backing_off, state.ready)
                for each, _ in pages.items(counts)]  # fmt: skip
        left += [state.queue.bucket] if state.queue.groups else []
        assert bucket >= 0
        assert bucket <= min(left, default=bucket), "S2: the oldest bucket first"

    def _check_order(self, taken: list[Place]) -> None:
        """S3: first come first, or the freshest first; and nothing eligible is passed over for a later one."""
        if self.sampler.name == "windowed" and self.sampler.sample_freshest_first:
            keys = [(-place.start_weight, place.dispatch) for place in taken]
            left = [(-place.start_weight, place.dispatch) for place in self.facts.ready.values()]
        else:
            keys = [(place.dispatch, 0) for place in taken]
            left = [(place.dispatch, 0) for place in self.facts.ready.values()]
        assert keys == sorted(keys), "S3"
        if self.sampler.name in ("ready_first", "windowed"):
            assert not left or keys[-1] < min(left), "S3"

    def _closes(self, core: Core, closed: StepClosed) -> None:
        facts, limits = self.facts, core.limits
        made_up = len(facts.selected) + facts.charges[closed.step]
        assert closed.step == facts.version, "steps close in order"
        assert (closed.selected, closed.charged) == (len(facts.selected), facts.charges[closed.step]), "S4, L3"
        assert made_up + closed.short == limits.size, "every step closes with selected + charged = N"
        if closed.short:
            assert closed.short > 0
            assert limits.closes_short, "only a sampler that says so closes short"
            assert core.state.source.status is SourceState.EXHAUSTED, "X1: short at exhaustion only"
            assert closed.selected >= limits.floor, "X1"
        facts.closed.append(closed)
        facts.version += 1

    # What must be true of every state

    def check(self, core: Core) -> None:
        """The core's state against these books, and what holds of any state."""
        state, limits, facts = core.state, core.limits, self.facts
        check_deep(state, limits, core.book.roster)
        sheet = state.sheet
        waiting = len(facts.spares_to_start)
        for place in PLACES:
            held = len(getattr(facts, place)) + (waiting if place == "in_flight" else 0)
            assert held == getattr(sheet, place), f"X4: {place}"
        prompts = [*core.book.roster.spares, *core.book.roster.queue]
        for place in PLACES:
            prompts += getattr(facts, place)
        assert len(set(prompts)) == len(prompts), "X4: no prompt is in two places"
        assert len(prompts) + waiting == sheet.pulled, "X4: every prompt pulled is somewhere"
        assert state.trainer.version == facts.version == len(core.book.closed)
        assert sheet.replaced == facts.replaced
        assert sheet.filtered + sheet.dropped - sheet.replaced >= facts.lost
        assert 0 <= limits.size - state.step.selected - charged(state, facts.version) <= limits.size
        assert next_move(state, core.laws) is None, "what can be done is done"
        assert status(state) != "deadlocked", core.waits_for()
        assert core.can_go_on, core.waits_for()
        assert not livelocked(state, limits), core.waits_for()
        if core.error is None:
            self._check_losses(state, core)
        if not isinstance(self.sampler, CustomConfig) and not limits.closes_short:
            assert state.gate.dispatch_index <= facts.version + self._window(), "A1"
            assert limits.max_steps < 0 or state.gate.dispatch_index < limits.max_steps, "A6"
        assert limits.max_steps < 0 or facts.version <= limits.max_steps, "X3"

    def _check_losses(self, state: State, core: Core) -> None:
        facts, limits, sheet = self.facts, core.limits, state.sheet
        for step in [*facts.charges, facts.version, facts.version + 1]:
            if step >= facts.version:
                assert charged(state, step) == facts.charges[step], f"L3: the charges of step {step}"
        if not limits.closes_short:
            assert sum(facts.charges.values()) == facts.lost, "every loss is charged to one step"
            slots = sheet.queued + sheet.in_flight + sheet.ready + sheet.selected + sum(facts.charges.values())
            slots += sum(closed.selected for closed in facts.closed)
            assert slots == facts.admitted * limits.size, "X2: every admitted slot is in hand, selected or charged"
        if state.trainer.status is TrainerState.ASSEMBLING and status(state) != "completed":
            assert limits.size - charged(state, facts.version) >= limits.floor, "L6"
            assert limits.max_filtered < 0 or facts.searched[facts.version] <= limits.max_filtered, "L8"

    def _check_dispatch(self, core: Core, transition: AppliedEvent) -> None:
        """D1, D2."""
        sheet, limits = core.state.sheet, core.limits
        syncing = core.state.trainer.status is TrainerState.SYNCING
        assert not syncing or not any(isinstance(effect, StartRollout) for effect in transition.effects), "D2"
        for move in transition.changes:
            if isinstance(move, changes.BatchAdmitted):
                self._check_admitted(core, move)
        if any(isinstance(move, changes.QueueDispatched) for move in transition.changes):
            assert sheet.in_flight <= limits.max_inflight, "D1"
            assert sheet.in_flight + sheet.ready <= limits.max_buffered, "D1"

    def _check_admitted(self, core: Core, move: changes.BatchAdmitted) -> None:
        """A2, A5, D3."""
        if self.sampler.name == "weight_fifo":
            assert move.bucket == self.facts.version, "D3: the bucket is the version at admission"
        assert (move.target_step >= 0) == (self.sampler.name == "in_order"), "A2"
        whole = move.groups == core.limits.size
        assert whole or (self.sampler.name == "windowed" and move.groups < core.limits.size), "A5"


def _error(effects: tuple[Effect, ...]) -> Exception | None:
    return effects[-1].error if effects and isinstance(effects[-1], Stopped) else None
