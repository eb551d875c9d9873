"""The runs on which the core is compared with its twins.

Each sampler is there, each way in which a step can lose a group, and each limit that a rule looks at. The scopes are
small, since all three sides visit every state.
"""

from __future__ import annotations

from specs.evidence.small_run import SmallRun
from specs.model import WorldOptions

WORLD = WorldOptions(backs_off=False, late=False)
"""Crashes, failures and unreadable data. A late answer changes nothing and is no answer of the twins."""
BACKS_OFF = WorldOptions(late=False)
_ONE_DROP = {"max_consecutive_dropped_prompts": 1}
_DYNAMIC = {"use_dynamic_sampling": True}

CONFIGURATIONS: tuple[SmallRun, ...] = (
    SmallRun(
        "in_order, N=3, lookahead 1, shrink", "in_order", 3, 1, 9, BACKS_OFF,
        async_rl={"min_groups_for_streaming_train": 2},
        rollout_failure={"max_consecutive_dropped_prompts": 2},
    ),
    SmallRun(
        "ready_first, N=2, window 1, dynamic sampling, replace", "ready_first", 2, 1, 9, WORLD,
        grpo={**_DYNAMIC, "dynamic_sampling_max_gen_batches": 1},
        rollout_failure={
            **_ONE_DROP, "on_dropped_prompt": "replace", "replacement_reserve_prompts": 2,
            "max_replacement_attempts": 2, "max_skipped_prompts": 1,
        },
    ),
    SmallRun(
        "windowed, N=3, window 1, freshest first", "windowed", 3, 1, 11, WORLD, grpo=_DYNAMIC,
        async_rl={"max_buffered_rollouts": 5, "max_inflight_prompts": 3},
        rollout_failure=_ONE_DROP, sampler_options={"sample_freshest_first": True},
    ),
    SmallRun(
        "weight_fifo, N=3, window 1", "weight_fifo", 3, 1, 12, BACKS_OFF,
        async_rl={"min_groups_for_streaming_train": 1},
        rollout_failure={"max_infra_attempts_per_prompt": 5, "min_step_batch_fraction": 0.9},
    ),
    SmallRun(
        "in_order, N=2, lookahead 1, replace, two epochs, step limit", "in_order", 2, 1, 5, WORLD,
        grpo={**_DYNAMIC, "max_num_epochs": 2, "max_num_steps": 3, "dynamic_sampling_max_gen_batches": 1},
        async_rl={"max_inflight_prompts": 3},
        rollout_failure={**_ONE_DROP, "on_dropped_prompt": "replace"},
    ),
)  # fmt: skip
