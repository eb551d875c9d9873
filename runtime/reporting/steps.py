"""One row a step: what it was made of, what was lost meanwhile, rewards and lengths; from the other columns.

Which step a loss counts under: the one that the group was stamped for, else the one that was open when it happened.
Trained, selected and charged groups count under the step that they were selected into or charged to.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fsm.prompt_group import GroupState
from fsm.state import NONE
from runtime.reporting.attempts import RETRIED, After
from runtime.reporting.columns import NOT_YET, Columns
from runtime.reporting.phases import Phases
from runtime.step_record import StepRecord

STALENESS_SHOWN = 8
"""Columns of staleness: 0, 1, … and the last for all above."""
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
    "finished": "I",  # groups, kept or filtered, counted under it
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
class _Counted:
    """What counts under one step."""

    staleness: list[int] = field(default_factory=list)
    selected: int = 0
    charged: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    reward: _Mean = field(default_factory=_Mean)
    reward_finished: _Mean = field(default_factory=_Mean)
    length: _Mean = field(default_factory=_Mean)
    length_filtered: _Mean = field(default_factory=_Mean)

    def count(self, name: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1


def steps_of(attempts: Columns, phases: Phases) -> Columns:
    """All closed steps, and the open one where anything counts under it."""
    closings = phases.closings
    counted = _count(attempts, phases)
    begun = _begun(phases)
    rows = Columns(COLUMNS)
    for number, step in enumerate(closings["step"]):
        of_step = counted.pop(step, _Counted())
        times = [closings[name][number] for name in ("finishing", "closed", "synced", "selected", "charged", "short")]
        _append(rows, step, begun.get(step, times[0]), times, of_step)
    last = closings.last("step") if len(closings) else NONE
    for step in sorted(step for step in counted if step > last):
        of_step = counted[step]
        open_times = [NOT_YET, NOT_YET, NOT_YET, of_step.selected, of_step.charged, 0]
        _append(rows, step, begun.get(step, NOT_YET), open_times, of_step)
    return rows


def _begun(phases: Phases) -> dict[int, int]:
    """When the trainer turned to each step."""
    begun: dict[int, int] = {}
    rows = phases.rows
    for step, since in zip(rows["step"], rows["begun"], strict=True):
        begun.setdefault(step, since)
    if phases.now is not None:
        begun.setdefault(phases.now[1], phases.now[2])
    return begun


def _count(attempts: Columns, phases: Phases) -> dict[int, _Counted]:
    closed, numbers = phases.closings["closed"], phases.closings["step"]
    first = numbers[0] if len(numbers) else phases.now[1] if phases.now is not None else 0
    counted: dict[int, _Counted] = {}
    columns = [attempts[name] for name in _Row._fields]
    for values in zip(*columns, strict=True):
        row = _Row(*values)
        if row.state in (GroupState.SELECTED, GroupState.TRAINED):
            _add_selected(counted.setdefault(row.step, _Counted()), row)
        if row.charged != NONE:
            counted.setdefault(row.charged, _Counted()).charged += 1
        when = row.left if row.state == GroupState.EVICTED else row.ended
        if when == NOT_YET:
            continue
        step = row.target
        if step == NONE:
            step = first + bisect_right(closed, when)
        of_step = counted.setdefault(step, _Counted())
        if row.finished:
            _add_finished(of_step, row)
        if row.state in _LOSSES:
            of_step.count(_LOSSES[row.state])
        if row.after == After.REPLACED:
            of_step.count("replaced")
    return counted


class _Row(NamedTuple):
    """What is read of an attempt."""

    state: int
    after: int
    step: int
    charged: int
    target: int
    weight: int
    ended: int
    left: int
    finished: int
    zero_variance: int
    rollouts: int
    tokens: int
    reward: float

    @property
    def length(self) -> float:
        """Mean tokens a rollout; NaN where it is not known."""
        return self.tokens / self.rollouts if self.rollouts else math.nan


def _add_selected(of_step: _Counted, row: _Row) -> None:
    of_step.selected += 1
    of_step.staleness.append(row.step - row.weight)
    of_step.reward.add(row.reward)
    of_step.length.add(row.length)


def _add_finished(of_step: _Counted, row: _Row) -> None:
    of_step.count("finished")
    if row.zero_variance:
        of_step.count("zero_variance")
    of_step.reward_finished.add(row.reward)
    if row.state == GroupState.FILTERED:
        of_step.length_filtered.add(row.length)


def _append(rows: Columns, step: int, begun: int, known: Sequence[int], of_step: _Counted) -> None:
    staleness = of_step.staleness
    histogram = [0] * STALENESS_SHOWN
    for versions in staleness:
        histogram[min(max(versions, 0), STALENESS_SHOWN - 1)] += 1
    count = of_step.counts.get
    rows.append(
        step, begun, *known, *histogram,
        sum(staleness) / len(staleness) if staleness else math.nan, max(staleness, default=NONE),
        *(count(name, 0) for name in _COUNTS),
        of_step.reward.value(), of_step.reward_finished.value(), of_step.length.value(),
        of_step.length_filtered.value(),
    )  # fmt: skip


_COUNTS = ("finished", "zero_variance", "filtered", "replaced", "dropped", "retried", "evicted", "aborted")


def metric_columns(records: Sequence[StepRecord]) -> Columns:
    """The numbers of `metrics.jsonl`, a row a step; NaN where one is not known."""
    plain = [record.as_json() for record in records]
    names = [name for name in (plain[0] if plain else {}) if name != "step" and _is_number(plain, name)]
    rows = Columns({"step": "i", **dict.fromkeys(names, "f")})
    for line in plain:
        rows.append(line["step"], *(math.nan if line[name] is None else line[name] for name in names))
    return rows


def _is_number(plain: Sequence[Mapping[str, Any]], name: str) -> bool:
    values = [line[name] for line in plain]
    return all(value is None or isinstance(value, int | float) for value in values) and any(
        value is not None for value in values
    )
