"""Per-step metrics: an accumulator without a clock, which yields one record a closed step.

    meter = StepMeter(setup.limits, now_s=time.monotonic())
    core = Core(setup, observer=lambda transition: meter.observe(transition, core.state, time.monotonic()))

    try:
        core.apply(GroupFinished(…))
    except LateAnswer:
        meter.late_answer()
    else:
        meter.receive(receipt)

    meter.trained(trainer_metrics)        # the result of finish_step, before StepFinished is applied
    for record in meter.take(): …         # a step's record is complete once its weights are synced

A group that is stamped for a step (in_order) counts under that step. For samplers that stamp none, a finished,
filtered, dropped or replaced group counts under the step being assembled at that moment (the earliest with selected +
charged < N). That is approximate: a group that finishes while step k is assembled may be trained in step k + 1, so the
groups of a step's `unfiltered_reward` are not a superset of those of its `reward`. Over a run both are exact. The
selected, charged and short groups, and the staleness, are the core's own.
"""

import math
from collections import Counter, deque
from dataclasses import dataclass, field
from itertools import compress
from typing import Any

from fsm.core import AppliedEvent
from fsm.effects import TrainChunk
from fsm.events import ClaimUnreadable, Event, GroupFinished
from fsm.machines.trainer import TrainerState
from fsm.rules import changes
from fsm.state import NONE, Limits, State, assembling_step
from runtime.groups import GroupReceipt
from runtime.metrics.step_record import PASS_RATES, RATE_WINDOW_S, RESTARTED, StepRecord
from runtime.training.step_metrics import StepMetrics


@dataclass(slots=True)
class _StepCounts:
    """The counts of one step."""

    groups: int = 0
    zero_variance: int = 0
    rollouts: int = 0
    reward: float = 0.0
    correct: int = 0
    tokens: int = 0
    longest: int = 0
    truncated: int = 0
    parts: dict[str, float] = field(default_factory=dict)
    """Sums of the parts of rewards."""
    correct_tokens: int = 0
    """Tokens of the correct rollouts."""
    repetition: float = 0.0
    pass_rates: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)
    """Groups filtered, dropped, replaced, evicted and aborted."""
    dropped: Counter[str] = field(default_factory=Counter)
    """The dropped ones by kind."""


@dataclass(slots=True)
class _Closed:
    """A closed step that is being synced."""

    change: changes.StepClosed
    state: State
    staleness: list[int]


@dataclass(slots=True)
class _WorkerTimes:
    """A worker's reports: at the start of its current interval, and the last one."""

    since_busy_s: float
    since_s: float
    busy_s: float
    at_s: float


@dataclass(slots=True)
class _Interval:
    """Sums from one step's record to the next."""

    since_s: float
    phases_s: dict[TrainerState, float] = field(default_factory=lambda: dict.fromkeys(TrainerState, 0.0))
    tokens: int = 0
    late_answers: int = 0
    retries: Counter[str] = field(default_factory=Counter)
    dropped_in_a_row_max: int = 0
    restarts: Counter[str] = field(default_factory=Counter)
    trained: StepMetrics | None = None


@dataclass(frozen=True, slots=True)
class _Rate:
    """The tokens of one interval."""

    wall_s: float
    generated: int
    trained: int | None


_COUNTED = frozenset((
    changes.GroupCommitted, changes.GroupFiltered, changes.GroupDropped, changes.GroupReplaced, changes.RunStopped,
    changes.ClaimFailed, changes.RetryWaits, changes.GroupsEvicted, changes.GroupsAborted, changes.RunResumed,
    changes.RunRegenerated, changes.DataReplaced, changes.StepClosed, changes.WeightsSynced,
))  # fmt: skip
"""The changes that `_count` handles. All others are skipped at once, since this runs on the control path."""
_OF_TRAINER = (
    "reward", "kl", "reference_kl", "entropy", "clip_fraction", "clip_fraction_low", "clip_fraction_high",
    "importance_weight_mean", "importance_weight_max", "logprob_mismatch_mean", "logprob_mismatch_max",
    "logprob_mismatch_share", "grad_norm", "loss", "lr",
)  # fmt: skip
"""Metrics that a record takes unchanged from the trainer's."""
_LOST = ("filtered", "dropped", "replaced", "evicted", "aborted")


class StepMeter:
    """Adds up transitions and reports, and yields one record a closed step."""

    def __init__(self, limits: Limits, now_s: float) -> None:
        """`limits` are the setup's; `now_s` is on the clock of all later times."""
        self._limits = limits
        self._began_s = now_s
        self._now_s = now_s
        self._state = State()
        self._interval = _Interval(since_s=now_s)
        self._counted: dict[int, _StepCounts] = {}
        self._staleness: dict[int, int] = {}
        """Per prompt selected into the open step."""
        self._finished: tuple[int, int] | None = None
        """Prompt and step of the group that finished last, until its receipt arrives."""
        self._workers: dict[str, _WorkerTimes] = {}
        self._serving: set[str] = set()
        """Generation workers."""
        self._closed: _Closed | None = None
        self._records: list[StepRecord] = []
        self._rates: deque[_Rate] = deque()
        """The last intervals: as few as cover RATE_WINDOW_S."""

    def observe(self, transition: AppliedEvent, state: State, now_s: float) -> None:
        """One applied event, and the state after it. For the core's observer."""
        self._advance(now_s)
        before, self._state = self._state, state
        event = transition.event
        if isinstance(event, ClaimUnreadable):
            self._staleness.pop(event.prompt, None)
        for change in transition.changes:
            if type(change) in _COUNTED:
                self._count(event, change, before)
        for effect in transition.effects:
            if type(effect) is TrainChunk:
                for prompt, start_weight in effect.groups:
                    self._staleness[prompt] = effect.step - start_weight

    def receive(self, receipt: GroupReceipt) -> None:
        """The receipt of the group whose GroupFinished was applied last. Raises ValueError for another's."""
        if self._finished is None or self._finished[0] != receipt.prompt:
            raise ValueError(f"a receipt of prompt {receipt.prompt}, but the last to finish is {self._finished}")
        counted = self._under(self._finished[1])
        self._finished = None
        counted.groups += 1
        counted.zero_variance += receipt.zero_variance
        counted.rollouts += len(receipt.rewards)
        counted.reward += sum(receipt.rewards)
        for name, column in receipt.parts.items():
            counted.parts[name] = counted.parts.get(name, 0.0) + sum(column)
        counted.correct += sum(receipt.correct)
        counted.pass_rates[pass_rate(sum(receipt.correct), len(receipt.correct))] += 1
        counted.tokens += sum(receipt.completion_tokens)
        counted.correct_tokens += sum(compress(receipt.completion_tokens, receipt.correct))
        counted.repetition += sum(receipt.repetition)
        counted.longest = max(counted.longest, *receipt.completion_tokens)
        counted.truncated += receipt.finished.count(False)
        self._interval.tokens += sum(receipt.completion_tokens)

    def late_answer(self) -> None:
        """An answer was refused because its attempt is over (D2)."""
        self._interval.late_answers += 1

    def trained(self, metrics: StepMetrics) -> None:
        """The trainer's metrics of its optimizer step, before StepFinished is applied."""
        self._interval.trained = metrics

    def worker_busy(self, worker: str, busy_s: float) -> None:
        """Seconds that a worker has generated since it started (`EngineHealth.busy_s`), as of now.

        A smaller number than before means that the worker was restarted. Call it at least with each receipt.
        """
        known = self._workers.get(worker)
        if known is None or busy_s < known.busy_s:
            self._workers[worker] = _WorkerTimes(busy_s, self._now_s, busy_s, self._now_s)
        else:
            known.busy_s, known.at_s = busy_s, self._now_s

    def worker_started(self, worker: str) -> None:
        """A generation worker serves."""
        self._serving.add(worker)

    def worker_lost(self, worker: str) -> None:
        """A generation worker is being restarted."""
        self._serving.discard(worker)
        self.restarted("generation")

    def restarted(self, what: str) -> None:
        """One of RESTARTED is restarted."""
        self._interval.restarts[what] += 1

    def take(self) -> list[StepRecord]:
        """The records completed since the last call, in order."""
        records, self._records = self._records, []
        return records

    def close(self, now_s: float) -> None:
        """The run is over: complete the record of a step whose sync did not end."""
        self._advance(now_s)
        if self._closed is not None:
            self._complete(self._closed)

    def _advance(self, now_s: float) -> None:
        self._interval.phases_s[self._state.trainer.status] += now_s - self._now_s
        self._now_s = now_s

    def _under(self, step: int) -> _StepCounts:
        return self._counted.setdefault(step, _StepCounts())

    def _count(self, event: Event, change: changes.Change, before: State) -> None:
        def step_of(target_step: int) -> int:
            return assembling_step(before, self._limits) if target_step == NONE else target_step

        def lost(what: str, step: int, groups: int = 1) -> None:
            self._under(step).lost[what] += groups

        match change:
            case changes.GroupCommitted(before=group_class) | changes.GroupFiltered(group_class):
                step = step_of(group_class.target_step)
                lost("filtered", step, isinstance(change, changes.GroupFiltered))
                if isinstance(event, GroupFinished):
                    self._finished = (event.attempt.prompt, step)
            case changes.RunStopped() if self._finished is None and isinstance(event, GroupFinished):
                self._finished = (event.attempt.prompt, step_of(NONE))  # its sampler gave it no label
            case changes.RetryWaits(kind=kind):
                self._interval.retries[kind] += 1
            case changes.GroupDropped(group_class, kind):
                step = step_of(group_class.target_step)
                lost("dropped", step)
                self._under(step).dropped[kind] += 1
                row = self._state.budgets.consecutive_dropped
                self._interval.dropped_in_a_row_max = max(self._interval.dropped_in_a_row_max, row)
            case changes.GroupReplaced(group_class):
                lost("replaced", step_of(group_class.target_step))
            case changes.ClaimFailed():
                lost("dropped", before.trainer.version)
                self._under(before.trainer.version).dropped["claim"] += 1
            case changes.GroupsEvicted(picks):
                lost("evicted", self._state.trainer.version, sum(groups for _, groups in picks))
            case changes.GroupsAborted(picks):
                lost("aborted", self._state.trainer.version, sum(groups for _, groups in picks))
            case changes.RunResumed() | changes.RunRegenerated() | changes.DataReplaced():
                self._staleness.clear()
            case changes.StepClosed():
                self._closed = _Closed(change, self._state, list(self._staleness.values()))
                self._staleness.clear()
            case changes.WeightsSynced() if self._closed is not None:
                self._complete(self._closed)

    def _complete(self, closed: _Closed) -> None:
        step = closed.change.step
        interval, trained, counted = self._interval, self._interval.trained, self._under(step)
        wall_s = self._now_s - interval.since_s
        generated_per_s, trained_per_s = self._rates_with(
            _Rate(wall_s, interval.tokens, None if trained is None else trained.tokens)
        )
        state, staleness = closed.state, closed.staleness
        named: dict[str, Any] = {
            **{f"{what}_prompt_groups": counted.lost[what] for what in _LOST},
            **{f"{phase.name.lower()}_s": phase_s for phase, phase_s in interval.phases_s.items()},
            **{name: None if trained is None else _finite(getattr(trained, name)) for name in _OF_TRAINER},
            "not_finite": str(trained.not_finite) if trained is not None and trained.not_finite else None,
        }
        self._records.append(
            StepRecord(
                step=step,
                time_s=self._now_s - self._began_s,
                wall_s=wall_s,
                selected=closed.change.selected,
                charged=closed.change.charged,
                short=closed.change.short,
                unfiltered_reward=_ratio(counted.reward, counted.rollouts),
                unfiltered_accuracy=_ratio(counted.correct, counted.rollouts),
                zero_variance_fraction=_ratio(counted.zero_variance, counted.groups),
                finished_prompt_groups=counted.groups,
                late_answers=interval.late_answers,
                staleness_mean=_ratio(sum(staleness), len(staleness)),
                staleness_max=max(staleness, default=None),
                completion_length_mean=_ratio(counted.tokens, counted.rollouts),
                completion_length_max=counted.longest if counted.rollouts else None,
                completion_length_correct=_ratio(counted.correct_tokens, counted.correct),
                completion_length_wrong=_ratio(
                    counted.tokens - counted.correct_tokens, counted.rollouts - counted.correct
                ),
                truncated_fraction=_ratio(counted.truncated, counted.rollouts),
                repetition=_ratio(counted.repetition, counted.rollouts),
                pass_rate_histogram={rate: counted.pass_rates[rate] for rate in PASS_RATES},
                dropped_by_kind={kind: counted.dropped[kind] for kind in ("infra", "data", "claim")},
                retries={kind: interval.retries[kind] for kind in ("infra", "data")},
                dropped_in_a_row_max=interval.dropped_in_a_row_max,
                restarts={what: interval.restarts[what] for what in RESTARTED},
                workers_serving=len(self._serving),
                generation_tokens_per_s=generated_per_s,
                trained_tokens=None if trained is None else trained.tokens,
                masked_rollouts=None if trained is None else trained.masked_sequences,
                trained_tokens_per_s=trained_per_s,
                trainer_idle_share=_ratio(interval.phases_s[TrainerState.ASSEMBLING], wall_s) or 0.0,
                worker_idle_share=self._idle_shares(),
                in_flight=state.sheet.in_flight,
                ready=state.sheet.ready,
                queued=state.sheet.queued,
                spares=state.sheet.spare,
                gate=state.gate.status.name.lower(),
                reward_parts={name: total / counted.rollouts for name, total in counted.parts.items()},
                **named,
            )
        )
        self._closed = None
        self._counted.pop(step, None)
        self._interval = _Interval(since_s=self._now_s)

    def _rates_with(self, newest: _Rate) -> tuple[float, float | None]:
        """Generated and trained tokens a second over the window that ends with this interval."""
        self._rates.append(newest)
        while sum(rate.wall_s for rate in self._rates) - self._rates[0].wall_s >= RATE_WINDOW_S:
            self._rates.popleft()
        wall_s = sum(rate.wall_s for rate in self._rates)
        reported = [(rate.trained, rate.wall_s) for rate in self._rates if rate.trained is not None]
        trained = _ratio(sum(tokens for tokens, _ in reported), sum(seconds for _, seconds in reported))
        return _ratio(sum(rate.generated for rate in self._rates), wall_s) or 0.0, trained

    def _idle_shares(self) -> dict[str, float]:
        """Per worker that has reported since the last record, the idle share of the time between its reports."""
        shares = {}
        for name, worker in self._workers.items():
            elapsed_s = worker.at_s - worker.since_s
            if elapsed_s > 0:
                busy = (worker.busy_s - worker.since_busy_s) / elapsed_s
                shares[name] = min(1.0, max(0.0, 1.0 - busy))
                worker.since_busy_s, worker.since_s = worker.busy_s, worker.at_s
        return shares


def _ratio(total: float, count: float) -> float | None:
    return total / count if count else None


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def pass_rate(correct: int, rollouts: int) -> str:
    """Which of PASS_RATES a group has."""
    if correct in (0, rollouts):
        return PASS_RATES[0 if correct == 0 else -1]
    return PASS_RATES[1 + 4 * correct // rollouts]
