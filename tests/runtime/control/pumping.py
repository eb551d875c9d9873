"""Configurations of the runs that tests of the pumps make, and what was trained in one."""

from typing import Any

from tests.runtime.control.fakes import Run

N = 4


def config(sampler: str = "in_order", window: int = 0, **failure: Any) -> dict[str, Any]:
    option = "max_lookahead_versions" if sampler == "in_order" else "max_staleness_versions"
    return {
        "grpo": {"num_prompts_per_step": N, "num_generations_per_prompt": 2},
        "async_rl": {
            "sampler": {"name": sampler, option: window},
            "rollout_failure": {"backoff_base_s": 0.01, **failure},
        },
    }


def replacing(sampler: str = "ready_first", **failure: Any) -> dict[str, Any]:
    made = config(
        sampler, 1, on_dropped_prompt="replace", max_replacement_attempts=4, replacement_reserve_prompts=N, **failure
    )
    made["grpo"]["use_dynamic_sampling"] = True
    return made


def trained(run: Run) -> list[int]:
    return [prompt for _, prompts in run.trainer.chunks for prompt in prompts]
