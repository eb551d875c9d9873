"""What pumps tell the trace that the core doesn't know: placements, and the calls that make up a sync."""

import asyncio
from typing import Any

from tests.runtime.control.fakes import FakeFleet, Run

CONFIG: dict[str, Any] = {
    "grpo": {"num_prompts_per_step": 2, "num_generations_per_prompt": 2},
    "async_rl": {"sampler": {"name": "in_order", "max_lookahead_versions": 1}},
}


def test_every_attempt_is_noted_with_the_worker_that_it_was_given_to() -> None:
    run = Run(CONFIG, 8, FakeFleet(workers=2))
    asyncio.run(run.go())
    assert run.recorder.placements == [submission for submission in run.fleet.submissions if submission[1]]
    assert {worker for worker, _ in run.recorder.placements} == {"w0", "w1"}


def test_a_sync_is_a_publication_and_a_load_and_what_is_done_beside_is_noted() -> None:
    run = Run(CONFIG, 8, FakeFleet(), validations={"validation": 2}, checkpoint_every=2)
    asyncio.run(run.go())
    calls = run.recorder.calls
    for version in (1, 2, 3, 4):
        of_version = [(call, what) for call, number, what in calls if number == version and call in ("publish", "load")]
        assert of_version == [("publish", "began"), ("publish", "ended"), ("load", "began"), ("load", "ended")]
    assert [number for call, number, what in calls if (call, what) == ("checkpoint", "ended")] == [2, 4]
    assert ("evaluate", 2, "began") in calls
