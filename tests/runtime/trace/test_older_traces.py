"""Traces of an older evenstep, whose kinds have fewer fields at their end."""

import copy
from typing import Any

import pytest

from runtime.metrics.step_record import StepRecord
from runtime.trace.files import TraceUnreadable, check_kinds
from runtime.trace.kinds import FIELDS, TABLE, read_value
from runtime.trace.notes import Validated

BEFORE_EVALUATION_SETS = ["step", "accuracy", "reward_mean", "rollouts"]
BEFORE_PARTS_OF_REWARDS = "gate"
"""The last field of a step's metrics then."""


def header() -> dict[str, Any]:
    return {"kinds": copy.deepcopy(TABLE), "packages": {"evenstep": "0.1.0"}}


def test_a_trace_from_before_named_sets_and_parts_of_rewards_is_read() -> None:
    old = header()
    old["kinds"]["VD"][1] = BEFORE_EVALUATION_SETS
    metrics = list(FIELDS["SM"][: FIELDS["SM"].index(BEFORE_PARTS_OF_REWARDS) + 1])
    assert metrics[-3:] == ["queued", "spares", "gate"]
    assert not {"reward_parts", "repetition", "retries", "clip_fraction_low", "logprob_mismatch_mean"} & set(metrics)
    old["kinds"]["SM"][1] = metrics
    check_kinds(old)
    assert read_value(["VD", 3, 0.5, 0.25, 8]) == Validated(3, 0.5, 0.25, 8)
    record = read_value(["SM", *range(len(metrics))])
    assert isinstance(record, StepRecord)
    assert record.gate == len(metrics) - 1
    assert (record.repetition, record.retries, record.reward_parts) == (None, {}, {})


def test_a_trace_from_before_quarantine_is_read() -> None:
    old = header()
    del old["kinds"]["WQ"], old["kinds"]["AD"]
    fields = list(FIELDS["SM"])
    old["kinds"]["SM"][1] = fields[: fields.index("restarts")]
    check_kinds(old)
    record = read_value(["SM", *range(fields.index("restarts"))])
    assert isinstance(record, StepRecord)
    assert (record.restarts, record.workers_serving) == ({}, None)


@pytest.mark.parametrize("fields", [["accuracy", "step"], ["step", "accuracy", "reward_mean", "rollouts", "other"]])
def test_a_trace_whose_fields_are_other_ones_is_refused(fields: list[str]) -> None:
    old = header()
    old["kinds"]["VD"][1] = fields
    with pytest.raises(TraceUnreadable, match="where VD means"):
        check_kinds(old)
