"""The portfolio: small runs that together reach every rule, each with the world that it needs.

They are as small as they can be: a mutant that none of them kills is explored in all of them.
"""

from __future__ import annotations

from fsm.rules import on_event
from fsm.rules.laws import Laws
from fsm.state import State
from specs.evidence.small_run import CALM, SmallRun
from specs.model import CORE, CrashFrom, Model, after, canonical, initial, possible

_REPLACE = {"on_dropped_prompt": "replace", "max_consecutive_dropped_prompts": 1}
_ONE_DROP = {"max_consecutive_dropped_prompts": 1}
_DYNAMIC = {"use_dynamic_sampling": True}
_CRASHES = CrashFrom.OWN_SNAPSHOT

REGENERATES: Model = CORE._replace(resume=on_event.regenerate)
"""Every resume is under another sampler or N (C3)."""


def _after_another_size(laws: Laws) -> State:
    """A run that trained four of five prompts with N = 1 goes on with another N (C3)."""
    earlier = SmallRun("in_order, N=1", "in_order", 1, 0, 5).laws()
    state = initial(earlier)
    while state.trainer.version < 4:
        given = next(possible(state, earlier, CALM))
        state, _ = after(state, earlier, given)
    return on_event.regenerate(canonical(state), laws)[0]


PORTFOLIO: tuple[SmallRun, ...] = (
    SmallRun(
        "in_order, N=2, shrink, drops", "in_order", 2, 1, 6, CALM._replace(fails=True), rollout_failure=_ONE_DROP
    ),
    SmallRun(
        "in_order, N=2, shrink, floor of all, crash", "in_order", 2, 0, 4,
        CALM._replace(fails=True, claims_fail=True, crash=_CRASHES),
        rollout_failure={**_ONE_DROP, "min_step_batch_fraction": 1.0},
    ),
    SmallRun(
        "in_order, N=1, replace, filter, search and step limit, crash", "in_order", 1, 1, 6,
        CALM._replace(crash=_CRASHES), grpo={**_DYNAMIC, "max_num_steps": 2, "dynamic_sampling_max_gen_batches": 1},
        rollout_failure={**_REPLACE, "max_replacement_attempts": 2},
    ),
    SmallRun(
        "in_order, N=3, streaming, claims fail, crash", "in_order", 3, 0, 3,
        CALM._replace(claims_fail=True, crash=_CRASHES),
        async_rl={"min_groups_for_streaming_train": 1},
        rollout_failure={"max_consecutive_dropped_prompts": 3, "min_step_batch_fraction": 0.3},
    ),
    SmallRun(
        "ready_first, N=2, replace, filter, drops", "ready_first", 2, 1, 8, CALM._replace(fails=True),
        grpo=_DYNAMIC, rollout_failure=_REPLACE,
    ),
    SmallRun(
        "ready_first, N=2, replace, trailing batch, crash", "ready_first", 2, 0, 7, CALM._replace(crash=_CRASHES),
        grpo=_DYNAMIC, rollout_failure=_REPLACE,
    ),
    SmallRun(
        "ready_first, N=2, shrink, streaming, backoff, skips", "ready_first", 2, 1, 6,
        CALM._replace(fails=True, backs_off=True),
        async_rl={"min_groups_for_streaming_train": 1},
        rollout_failure={"max_skipped_prompts": 1},
    ),
    SmallRun(
        "ready_first, N=2, two epochs, one permit", "ready_first", 2, 1, 5, CALM._replace(late=True),
        grpo={"max_num_epochs": 2}, async_rl={"max_inflight_prompts": 1},
    ),
    SmallRun(
        "ready_first, N=1, resumed otherwise", "ready_first", 1, 1, 3,
        CALM._replace(fails=True, crash=_CRASHES),
        grpo={"max_num_epochs": 2}, rollout_failure=_REPLACE, model=REGENERATES,
    ),
    SmallRun(
        "windowed, N=2, filter, trailing batch", "windowed", 2, 1, 7, CALM, grpo=_DYNAMIC,
        async_rl={"max_inflight_prompts": 2, "max_buffered_rollouts": 3},
    ),
    SmallRun(
        "windowed, N=3, floor, freshest first, crash", "windowed", 3, 0, 5, CALM._replace(crash=_CRASHES),
        async_rl={"max_inflight_prompts": 2, "max_buffered_rollouts": 4, "min_groups_for_streaming_train": 2},
        sampler_options={"sample_freshest_first": True},
    ),
    SmallRun(
        "windowed, N=2, step limit, drops", "windowed", 2, 0, 6, CALM._replace(fails=True),
        grpo={"max_num_steps": 1}, async_rl={"max_inflight_prompts": 2, "max_buffered_rollouts": 2},
        rollout_failure=_ONE_DROP,
    ),
    SmallRun(
        "windowed, N=2, window of 2, floor of all", "windowed", 2, 2, 5, CALM._replace(fails=True),
        async_rl={"max_inflight_prompts": 2, "max_buffered_rollouts": 3, "min_groups_for_streaming_train": 1},
        rollout_failure={**_ONE_DROP, "min_step_batch_fraction": 1.0},
    ),
    SmallRun(
        "ready_first, N=1, reserve of 3, two replacements, crash", "ready_first", 1, 1, 6,
        CALM._replace(crash=_CRASHES), grpo=_DYNAMIC,
        rollout_failure={**_REPLACE, "max_replacement_attempts": 2, "replacement_reserve_prompts": 3},
    ),
    SmallRun(
        "ready_first, N=2, search limit, one permit, claims fail", "ready_first", 2, 1, 6,
        CALM._replace(claims_fail=True), grpo={**_DYNAMIC, "dynamic_sampling_max_gen_batches": 1},
        async_rl={"max_inflight_prompts": 1},
        rollout_failure={**_REPLACE, "max_consecutive_dropped_prompts": 2},
    ),
    SmallRun(
        "in_order, N=2, streaming, search limit, two replacements", "in_order", 2, 0, 6, CALM,
        grpo={**_DYNAMIC, "dynamic_sampling_max_gen_batches": 1}, async_rl={"min_groups_for_streaming_train": 1},
        rollout_failure={**_REPLACE, "max_replacement_attempts": 2, "replacement_reserve_prompts": 2},
    ),
    SmallRun(
        "ready_first, N=2, after another N", "ready_first", 2, 0, 5, CALM,
        grpo={"max_num_epochs": 2}, model=CORE._replace(begin=_after_another_size),
    ),
    SmallRun(
        "weight_fifo, N=2, three permits, backoff", "weight_fifo", 2, 1, 6, CALM._replace(fails=True, backs_off=True),
        async_rl={"max_inflight_prompts": 3, "min_groups_for_streaming_train": 1},
    ),
    SmallRun(
        "weight_fifo, N=2, retries", "weight_fifo", 2, 1, 6, CALM._replace(fails=True),
        async_rl={"min_groups_for_streaming_train": 1},
    ),
)  # fmt: skip
"""In the order in which mutants meet them."""
