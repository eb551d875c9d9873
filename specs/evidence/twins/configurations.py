"""The runs that the twins are compared on: a name, a configuration, how much data, what the world may do.

Each sampler is there, each way a step can lose a group, and each limit that a rule looks at; the scopes are small,
since all three go through every state.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from fsm.config.parse import RunConfig, parse_config
from fsm.config.setup import set_up
from fsm.machines.table import fire
from fsm.rules.laws import Laws, laws_of


class Configuration(NamedTuple):
    """One run to compare."""

    name: str
    grpo: dict[str, Any]
    async_rl: dict[str, Any]
    num_prompts: int
    """Prompts of one epoch."""
    fails: bool = True
    """Attempts fail, and are retried or given up on."""
    backs_off: bool = False
    """A retry waits for its backoff, else only for a sync to end."""
    claims_fail: bool = True
    crashes: bool = True

    def parsed(self) -> RunConfig:
        """The configuration, checked. Raises ConfigError."""
        return parse_config({"grpo": {"num_generations_per_prompt": 2, **self.grpo}, "async_rl": self.async_rl})

    def laws(self) -> Laws:
        """The laws of the run, with the rules as plain functions."""
        setup = set_up(self.parsed(), self.num_prompts)
        return laws_of(setup.limits, setup.sampler, setup.sampler_name, fire)


CONFIGURATIONS: tuple[Configuration, ...] = (
    Configuration(
        "in_order, N=3, lookahead 1, shrink",
        {"num_prompts_per_step": 3},
        {
            "sampler": {"name": "in_order", "max_lookahead_versions": 1},
            "min_groups_for_streaming_train": 2,
            "rollout_failure": {"max_consecutive_dropped_prompts": 2, "min_step_batch_fraction": 0.5},
        },
        num_prompts=9,
        backs_off=True,
    ),
    Configuration(
        "ready_first, N=2, window 1, dynamic sampling, replace",
        {"num_prompts_per_step": 2, "use_dynamic_sampling": True, "dynamic_sampling_max_gen_batches": 1},
        {
            "sampler": {"name": "ready_first", "max_staleness_versions": 1},
            "rollout_failure": {
                "on_dropped_prompt": "replace",
                "replacement_reserve_prompts": 2,
                "max_replacement_attempts": 2,
                "max_consecutive_dropped_prompts": 1,
                "max_skipped_prompts": 1,
                "min_step_batch_fraction": 0.5,
            },
        },
        num_prompts=9,
    ),
    Configuration(
        "windowed, N=3, window 1, freshest first",
        {"num_prompts_per_step": 3, "use_dynamic_sampling": True},
        {
            "sampler": {"name": "windowed", "max_staleness_versions": 1, "sample_freshest_first": True},
            "max_buffered_rollouts": 5,
            "max_inflight_prompts": 3,
            "rollout_failure": {"max_consecutive_dropped_prompts": 1, "min_step_batch_fraction": 0.5},
        },
        num_prompts=11,
    ),
    Configuration(
        "weight_fifo, N=3, window 1",
        {"num_prompts_per_step": 3},
        {
            "sampler": {"name": "weight_fifo", "max_staleness_versions": 1},
            "min_groups_for_streaming_train": 1,
            "rollout_failure": {"max_infra_attempts_per_prompt": 5},
        },
        num_prompts=12,
        backs_off=True,
    ),
    Configuration(
        "in_order, N=2, lookahead 1, replace, two epochs, step limit",
        {
            "num_prompts_per_step": 2,
            "use_dynamic_sampling": True,
            "max_num_epochs": 2,
            "max_num_steps": 3,
            "dynamic_sampling_max_gen_batches": 1,
        },
        {
            "sampler": {"name": "in_order", "max_lookahead_versions": 1},
            "max_inflight_prompts": 3,
            "rollout_failure": {
                "on_dropped_prompt": "replace",
                "max_consecutive_dropped_prompts": 1,
                "min_step_batch_fraction": 0.5,
            },
        },
        num_prompts=5,
    ),
)
