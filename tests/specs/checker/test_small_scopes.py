"""Every state of small runs, every answer of the world at any time: nothing hangs, miscounts or trains twice."""

from itertools import product

import pytest

from specs.checker.explore import HOLDS, UNDETERMINED, VIOLATED, explore
from specs.engine.search import Bounds
from specs.model import CrashFrom, WorldOptions
from specs.properties.catalog import properties_of
from tests.specs.checker.small_runs import BUILTIN, laws

SCOPES = [
    (sampler, size, window, minimum, pool)
    for sampler, size, window, pool in product(BUILTIN, (1, 2), (0, 1), ("shrink", "replace"))
    for minimum in range(1, size + 1)
    if (sampler, pool) != ("weight_fifo", "replace")  # refused at setup
]


@pytest.mark.parametrize(("sampler", "size", "window", "minimum", "pool"), SCOPES)
def test_no_answer_of_the_world_at_any_time_breaks_a_property(sampler, size, window, minimum, pool):
    run = laws(sampler, size, window, minimum, pool, num_prompts=size * 3)

    result = explore(run, WorldOptions(), properties_of(run), bounds=Bounds(states=60_000))

    assert (result.verdict, result.broken) == (HOLDS, None), result


@pytest.mark.parametrize("sampler", BUILTIN)
def test_a_crash_back_to_any_earlier_checkpoint_breaks_no_property(sampler):
    run = laws(sampler, 1, 1, 1, "shrink", num_prompts=3)

    result = explore(
        run, WorldOptions(crash=CrashFrom.LAST_CHECKPOINT), properties_of(run), bounds=Bounds(states=60_000)
    )

    assert (result.verdict, result.broken) == (HOLDS, None), result
    assert {"save", "crash"} <= set(result.answers)


def test_a_buffer_below_the_streaming_minimum_is_found_to_deadlock_at_once():
    run = laws("windowed", 2, 1, 2, "shrink", 4, async_rl__max_buffered_rollouts=1)

    result = explore(run, WorldOptions(fails=False, crash=CrashFrom.NOTHING), properties_of(run))

    assert (result.verdict, result.broken) == (VIOLATED, "deadlock")
    assert [answer.name for answer in result.counterexample] == ["commit"]


def test_filtering_and_replacements_under_weight_fifo_are_found_to_hang_and_to_exceed_the_staleness():
    run = laws("weight_fifo", 2, 1, 2, "replace", 8, grpo__use_dynamic_sampling=True)
    properties = properties_of(run)

    stale = explore(run, WorldOptions(), properties)
    hang = explore(run, WorldOptions(fails=False), properties.without("staleness"))

    assert (stale.verdict, stale.broken) == (VIOLATED, "staleness")
    assert (hang.verdict, hang.broken) == (VIOLATED, "deadlock")
    assert len(hang.counterexample) <= 25
    assert {"commit", "filter"} <= {answer.name for answer in hang.counterexample}


@pytest.mark.parametrize(
    "bounds",
    [Bounds(states=50), Bounds(seconds=0.0), Bounds(resident_bytes=1)],
    ids=["states", "seconds", "memory"],
)
def test_a_bound_that_is_hit_is_never_a_pass(bounds):
    run = laws("ready_first", 2, 1, 1, "replace", 7)

    result = explore(run, WorldOptions(), properties_of(run), bounds=bounds)

    assert result.verdict == UNDETERMINED
    assert result.why.startswith("more than")
