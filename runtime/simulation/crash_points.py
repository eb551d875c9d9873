"""Crash points: a checkpoint after every event of a run, a crash after every later one, and a resume from each.

Nothing of a controller that crashes survives but its checkpoint, and answers that were under way. So what comes of a
checkpoint and a crash is one run from that checkpoint, with the answers of that moment.
"""

from dataclasses import replace
from typing import NamedTuple

from fsm.config.parse import parse_config
from fsm.config.setup import set_up
from fsm.events import Attempt
from runtime.settings import Settings
from runtime.simulation.life import Life, Past
from runtime.simulation.plan import STALENESS, WINDOW, Fault, SimulationPlan, run_plan
from runtime.simulation.runs import simulate
from runtime.simulation.world import SavedRun

RATES = {Fault.INFRA: 0.1, Fault.DATA: 0.05, Fault.TOO_LATE: 0.05, Fault.TWICE: 0.1, Fault.WORKER_DIES_LOADING: 0.1}
"""Of the reference run."""
PROMPTS = 22


class _Point(NamedTuple):
    """A moment of the reference run, right after an event."""

    saved: SavedRun
    under_way: tuple[Attempt, ...]


def crash_points(sampler: str, *, every_crash: bool) -> int:
    """Resume from a checkpoint after each event of a run under this sampler; how many resumes there were.

    `every_crash`: for the crash after each later event; otherwise for the next event and the last one. Raises
    AssertionError where a run that resumes goes wrong, with the two events.
    """
    plan, points = reference_plan(sampler), list[_Point]()

    def keep(life: Life) -> None:
        points.append(_Point(life.save(), life.fleet.under_way))

    story = simulate(plan, on_event=keep)
    assert story.outcome == "completed", f"the reference run: {story.outcome} {story.wrong}"
    assert not story.wrong, f"the reference run: {story.wrong}"
    resumes = 0
    resumed = replace(plan, rates={**plan.rates, Fault.EARLIER_LIFE: 0.5})
    for at, point in enumerate(points[:-1]):
        crashes = range(at + 1, len(points)) if every_crash else sorted({at + 1, len(points) - 1})
        for crash in crashes:
            after = simulate(resumed, past=Past(point.saved, points[crash].under_way))
            where = f"{sampler}: a checkpoint after event {at}, and a crash after event {crash}"
            assert not after.wrong, f"{where}: {after.wrong}"
            assert after.outcome == "completed", f"{where}: {after.outcome}"
            resumes += 1
    return resumes


def reference_plan(sampler: str) -> SimulationPlan:
    """A run that completes, in which attempts fail, come late and are lost, and groups are filtered."""
    pool = sampler in ("in_order", "ready_first")
    failure = {
        "on_dropped_prompt": "replace" if pool else "shrink",
        "min_step_batch_fraction": 0.01,
        "max_consecutive_dropped_prompts": 100 * (sampler != "weight_fifo"),
        "max_skipped_prompts": 100 * (sampler != "weight_fifo"),
        "max_data_attempts_per_prompt": 2 if sampler != "weight_fifo" else 100,
        "rollout_timeout_s": 60.0,
        "backoff_base_s": 5.0,
    }
    blocks = {
        "grpo": {
            "num_prompts_per_step": 3,
            "num_generations_per_prompt": 2,
            "use_dynamic_sampling": sampler != "weight_fifo",
        },
        "async_rl": {
            "sampler": {"name": sampler, WINDOW.get(sampler, STALENESS): 1},
            "min_groups_for_streaming_train": 2,
            "rollout_failure": failure,
        },
        "cluster": {"num_generation_workers": 2},
        "checkpointing": {"every_steps": 2},
        "validation": {"every_steps": 0},
    }
    settings = parse_config(blocks, model=Settings)
    return SimulationPlan(
        1, sampler, run_plan(settings, PROMPTS), set_up(settings, PROMPTS), "spread", RATES, (), 300.0, flat_share=0.1
    )
