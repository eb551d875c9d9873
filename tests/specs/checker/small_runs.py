"""Laws of small runs, for tests of the checker."""

from fsm.config.parse import parse_config
from fsm.config.setup import set_up
from fsm.machines.table import fire
from fsm.rules.laws import Laws, laws_of
from specs.check.cases import ScopeName
from specs.evidence.matrix import Cell, matrix
from specs.model import CrashFrom

WINDOW_KEY = {"in_order": "max_lookahead_versions"}
BUILTIN = ("in_order", "ready_first", "windowed", "weight_fifo")


def laws(sampler: str, size: int, window: int, minimum: int, pool: str, num_prompts: int, **overrides) -> Laws:
    """The laws of a small run; dynamic sampling and drops wherever the sampler may have them.

    An override is named by block and key (`grpo__max_num_steps`) and skips the refusals of setup.
    """
    fifo = sampler == "weight_fifo"
    document = {
        "grpo": {
            "num_prompts_per_step": size,
            "num_generations_per_prompt": 2,
            "use_dynamic_sampling": not fifo and (pool == "replace" or sampler == "windowed"),
        },
        "async_rl": {
            "sampler": {"name": sampler, WINDOW_KEY.get(sampler, "max_staleness_versions"): window},
            "min_groups_for_streaming_train": minimum,
            "rollout_failure": {
                "on_dropped_prompt": pool,
                "max_consecutive_dropped_prompts": 0 if fifo else 1,
                "min_step_batch_fraction": 0.5,
            },
        },
    }
    for path, value in overrides.items():
        block, key = path.split("__")
        document[block][key] = value
    check = not overrides
    setup = set_up(parse_config(document, check=check), num_prompts, check=check)
    return laws_of(setup.limits, setup.sampler, setup.sampler_name, fire)


def smoke(scope: ScopeName = ScopeName.QUICK) -> list[Cell]:
    """A part of the matrix that has every sampler, and runs in about a minute: N 2 and 3, window 0 and 1, crashes."""
    return [
        cell
        for cell in matrix(scope)
        if cell.refused is None
        and cell.case.scaled.config.grpo.num_prompts_per_step < 4
        and cell.case.scaled.window < 2
        and cell.case.world.crash is not CrashFrom.NOTHING
    ]
