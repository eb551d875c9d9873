"""One row per step, from the other columns: its groups, losses, rewards and lengths.

Selected, trained and charged groups count under the step that took or was charged for them. A loss counts under the
step that its group is stamped with; without a stamp, under the step that was open at the time.
"""

import math
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any

from fsm.machines.prompt_group import GroupState
from fsm.state import NONE
from runtime.metrics.step_record import StepRecord
from runtime.report.attempts import REDONE, RETRIED, After
from runtime.report.columns import NOT_YET, Columns
from runtime.report.phases import Phases

STALENESS_SHOWN = 8
"""Columns of staleness: 0, 1, …; the last counts all above."""
COLUMNS: Mapping[str, str] = {
    "step": "i",
    "begun": "I",  # ms: the sync of the step before is over
    "finishing": "I",
    "closed": "I",  # NOT_YET while it is open
    "synced": "I",
    "selected": "I",
    "charged": "I",
    "short": "I",
    **{f"staleness_{versions}": "H" for versions in range(STALENESS_SHOWN)},
    "staleness_mean": "f",
    "staleness_max": "i",
    "finished": "I",  # groups, kept or filtered
    "zero_variance": "I",
    "filtered": "I",
    "replaced": "I",
    "dropped": "I",
    "retried": "I",  # attempts
    "evicted": "I",
    "aborted": "I",
    "reward": "f",  # mean over its groups; NaN where none is known
    "reward_finished": "f",
    "length": "f",  # mean tokens a rollout, of its groups
    "length_filtered": "f",
}
_LOSSES = {
    GroupState.FILTERED: "filtered",
    GroupState.DROPPED: "dropped",
    GroupState.EVICTED: "evicted",
    GroupState.ABORTED: "aborted",
    RETRIED: "retried",
}
_IN_A_STEP = frozenset({GroupState.SELECTED, GroupState.TRAINED})
_READ = (
    "state", "after", "step", "charged", "target", "weight", "ended", "left", "finished", "zero_variance",
    "rollouts", "tokens", "reward",
)  # fmt: skip


@dataclass(slots=True)
class _Mean:
    total: float = 0.0
    count: float = 0.0

    def add(self, value: float, weight: float = 1.0) -> None:
        if not math.isnan(value):
            self.total, self.count = self.total + value, self.count + weight

    def value(self) -> float:
        return self.total / self.count if self.count else math.nan


@dataclass(slots=True)
class _AttemptCounts:
    """Counts of one step."""

    staleness: list[int] = field(default_factory=list)
    selected: int = 0
    charged: int = 0
    finished: int = 0
    zero_variance: int = 0
    replaced: int = 0
    losses: Counter[str] = field(default_factory=Counter)
    """By column."""
    reward: _Mean = field(default_factory=_Mean)
    reward_finished: _Mean = field(default_factory=_Mean)
    length: _Mean = field(default_factory=_Mean)
    length_filtered: _Mean = field(default_factory=_Mean)


def steps_of(attempts: Columns, phases: Phases) -> Columns:
    """All closed steps, and open ones that have any counts."""
    closings = phases.closings
    counted = _count(attempts, phases)
    begun = _begun(phases)
    rows = Columns(COLUMNS)
    for number, step in enumerate(closings["step"]):
        of_step = counted.pop(step, _AttemptCounts())
        times = [closings[name][number] for name in ("finishing", "closed", "synced", "selected", "charged", "short")]
        _append(rows, step, begun.get(step, times[0]), times, of_step)
    last = closings["step"][-1] if len(closings) else NONE
    for step in sorted(step for step in counted if step > last):
        of_step = counted[step]
        open_times = [NOT_YET, NOT_YET, NOT_YET, of_step.selected, of_step.charged, 0]
        _append(rows, step, begun.get(step, NOT_YET), open_times, of_step)
    return rows


def _begun(phases: Phases) -> dict[int, int]:
    begun: dict[int, int] = {}
    rows = phases.rows
    for step, since in zip(rows["step"], rows["begun"], strict=True):
        begun.setdefault(step, since)
    if phases.now is not None:
        begun.setdefault(phases.now[1], phases.now[2])
    return begun


def _count(attempts: Columns, phases: Phases) -> dict[int, _AttemptCounts]:
    closed, numbers = phases.closings["closed"], phases.closings["step"]
    first = numbers[0] if len(numbers) else phases.now[1] if phases.now is not None else 0
    counted: defaultdict[int, _AttemptCounts] = defaultdict(_AttemptCounts)
    columns = [attempts[name] for name in _READ]
    for row in zip(*columns, strict=True):
        state, after, step, charged, target, weight, ended, left, finished, zero_variance, rollouts, tokens, reward = (
            row
        )
        if state == REDONE:
            continue
        length = tokens / rollouts if rollouts else math.nan
        if state in _IN_A_STEP:
            of_step = counted[step]
            of_step.selected += 1
            of_step.staleness.append(step - weight)
            of_step.reward.add(reward)
            of_step.length.add(length)
        if charged != NONE:
            counted[charged].charged += 1
        when = left if state == GroupState.EVICTED else ended
        if when == NOT_YET:
            continue
        of_step = counted[first + bisect_right(closed, when) if target == NONE else target]
        if finished:
            of_step.finished += 1
            of_step.zero_variance += zero_variance
            of_step.reward_finished.add(reward)
            if state == GroupState.FILTERED:
                of_step.length_filtered.add(length)
        if state in _LOSSES:
            of_step.losses[_LOSSES[state]] += 1
        of_step.replaced += after == After.REPLACED
    return counted


def _append(rows: Columns, step: int, begun: int, known: Sequence[int], of_step: _AttemptCounts) -> None:
    staleness = of_step.staleness
    histogram = [0] * STALENESS_SHOWN
    for versions in staleness:
        histogram[min(max(versions, 0), STALENESS_SHOWN - 1)] += 1
    losses = of_step.losses
    rows.append(
        step, begun, *known, *histogram,
        sum(staleness) / len(staleness) if staleness else math.nan, max(staleness, default=NONE),
        of_step.finished, of_step.zero_variance, losses["filtered"], of_step.replaced, losses["dropped"],
        losses["retried"], losses["evicted"], losses["aborted"],
        of_step.reward.value(), of_step.reward_finished.value(), of_step.length.value(),
        of_step.length_filtered.value(),
    )  # fmt: skip


def metric_columns(records: Sequence[StepRecord]) -> Columns:
    """The numbers of `metrics.jsonl`, one row per step; NaN where one is missing."""
    values = {field.name: list(map(attrgetter(field.name), records)) for field in fields(StepRecord)}
    steps = values.pop("step")
    for part in dict.fromkeys(part for record in records for part in record.reward_parts):
        values[f"reward/{part}"] = [record.reward_parts.get(part) for record in records]
    numbers = {name: of_steps for name, of_steps in values.items() if _are_numbers(of_steps)}
    rows = Columns({"step": "i", **dict.fromkeys(numbers, "f")})
    rows["step"].extend(steps)
    for name, of_steps in numbers.items():
        rows[name].extend([math.nan if value is None else value for value in of_steps])
    return rows


def _are_numbers(values: Sequence[Any]) -> bool:
    known = [value for value in values if value is not None]
    return bool(known) and all(isinstance(value, int | float) for value in known)
