"""The records of whole runs against the core's own book."""

import json

import pytest

from fsm.snapshot import restore
from tests.runtime.bookkeeping import random_moves
from tests.runtime.metrics.metered import Metered, only

SAMPLERS = ("in_order", "ready_first", "windowed", "weight_fifo")


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("seed", range(5))
def test_over_a_run_the_records_sum_to_the_balance_sheet(sampler: str, seed: int) -> None:
    run = Metered(sampler, window=1, num_prompts=40)
    for move in range(10_000):
        run.now_s += 0.25
        random_moves(run.world, 10_000 * seed + move, 1)
        if run.world.over:
            break
    records = run.it.take()
    world, sheet = run.world, run.world.core.state.sheet
    assert world.status == "completed"
    found = [(record.step, record.selected, record.charged, record.short) for record in records]
    assert found == [tuple(closed) for closed in world.core.book.closed]
    assert sum(record.selected for record in records) == sheet.trained
    last = run.it._counted  # what counts under steps that never closed
    for name in ("filtered", "dropped", "replaced", "evicted", "aborted"):
        in_records = sum(getattr(record, f"{name}_prompt_groups") for record in records)
        assert in_records + sum(counted.lost[name] for counted in last.values()) == getattr(sheet, name), name
    assert sum(record.wall_s for record in records) == pytest.approx(records[-1].time_s)
    for record in records:
        parts = record.assembling_s + record.training_s + record.finishing_s + record.syncing_s
        assert parts == pytest.approx(record.wall_s)


def test_after_a_resume_the_groups_taken_back_are_not_counted_twice() -> None:
    run = Metered("in_order", window=1)
    run.finish_next(1.0, 0.0)  # selected at once, as a chunk of its own
    assert run.world.status == "training"
    saved = json.loads(run.world.snapshot())
    run.world.core = restore(
        run.world.setup, saved, observer=lambda transition: run.observe(transition, run.world.core.state)
    )
    run.world._open()
    run.world.chunk_trained()
    run.finish_next(1.0, 0.0)
    run.close()
    record = only(run.it.take())
    assert (record.selected, record.charged) == (2, 0)
    assert (record.staleness_mean, record.staleness_max) == (0.0, 0)
