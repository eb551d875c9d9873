"""The blocks of the run configuration that the core reads, as they are written in YAML.

A block says what each key may hold by itself. Which keys must fit together is in `fsm.config.refusals`, what null
stands for in `fsm.config.values`.
"""

import copy
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, model_validator

from fsm.config.plain import Options
from fsm.config.strict import Strict

Count = Annotated[int, Field(ge=0)]
"""A whole number that may be zero: a window, a budget of drops."""

Positive = Annotated[int, Field(ge=1)]
"""A whole number of which zero makes no sense: a size, a budget of attempts."""

Seconds = Annotated[float, Field(ge=0)]
"""A duration that may be zero."""

PositiveSeconds = Annotated[float, Field(gt=0)]
"""A duration of which zero makes no sense: a deadline."""


class GrpoConfig(Strict):
    """Steps, groups and dynamic sampling."""

    num_prompts_per_step: Positive = Field(default=8, description="N, the prompt groups of one step.")
    num_generations_per_prompt: Positive = Field(default=8, description="Sibling rollouts of one prompt group.")
    max_num_steps: Positive | None = Field(
        default=None, description="Steps after which the run is completed; null: until the data is used up."
    )
    max_num_epochs: Positive | None = Field(
        default=1, description="Passes over the data; null: no limit, so that max_num_steps ends the run."
    )
    use_dynamic_sampling: bool = Field(
        default=False, description="Filter a prompt group when all its rewards are equal."
    )
    dynamic_sampling_max_gen_batches: Positive | None = Field(
        default=None,
        description="k: more than k × N groups filtered for one step stop the run; null: no such limit.",
    )


class InOrderConfig(Strict):
    """Trains each batch as the step it is stamped for."""

    name: Literal["in_order"] = Field(default="in_order", description="The sampler.")
    max_lookahead_versions: Count = Field(default=1, description="How many batches dispatch may lead the trainer by.")


class ReadyFirstConfig(Strict):
    """Trains whichever groups are ready first."""

    name: Literal["ready_first"] = Field(default="ready_first", description="The sampler.")
    max_staleness_versions: Count = Field(default=1, description="How many batches dispatch may lead the trainer by.")


class WindowedConfig(Strict):
    """Trains groups whose staleness is within a window, and evicts and aborts the others."""

    name: Literal["windowed"] = Field(default="windowed", description="The sampler.")
    max_staleness_versions: Count = Field(default=1, description="Staleness above which groups are evicted or aborted.")
    sample_freshest_first: bool = Field(
        default=False, description="Select the smallest staleness first, instead of in order of dispatch."
    )


class WeightFifoConfig(Strict):
    """Trains groups of the oldest bucket first, the bucket being the version at admission."""

    name: Literal["weight_fifo"] = Field(default="weight_fifo", description="The sampler.")
    max_staleness_versions: Count = Field(default=1, description="How many batches dispatch may lead the trainer by.")


def _module_and_class(target: str) -> str:
    """Refuse what cannot be the name of a class. Whether there is such a class shows when it is loaded."""
    if not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*", target):
        raise ValueError('allowed: "module:ClassName", as in "my_package.samplers:ShortestFirst"')
    return target


class CustomConfig(Strict):
    """A sampler from outside. Keys other than `name` and `target` go to its constructor, by way of `options`."""

    name: Literal["custom"] = Field(default="custom", description="The sampler.")
    target: Annotated[str, AfterValidator(_module_and_class)] = Field(
        description="The sampler's class, module:ClassName."
    )
    options: Options = Field(
        default_factory=dict, description="What the constructor is given; extra keys are collected here."
    )

    @model_validator(mode="before")
    @classmethod
    def _collect_options(cls, given: Any) -> Any:
        """Move the extra keys into `options`, in a copy: the caller's mapping stays as it is."""
        if not isinstance(given, dict):
            return given
        extra = {key: value for key, value in given.items() if key not in cls.model_fields}
        options = given.get("options", {})
        if not isinstance(options, Mapping):
            return given  # refused as what it is
        twice = sorted(str(key) for key in extra.keys() & options.keys())
        if twice:
            raise ValueError(f"{', '.join(twice)} is given twice, next to options and in it; keep one")
        known = {key: value for key, value in given.items() if key in cls.model_fields}
        return known | {"options": copy.deepcopy({**options, **extra})}


SamplerConfig = Annotated[
    InOrderConfig | ReadyFirstConfig | WindowedConfig | WeightFifoConfig | CustomConfig,
    Field(discriminator="name"),
]


class RolloutFailureConfig(Strict):
    """What happens to a prompt whose rollouts fail or are filtered."""

    on_dropped_prompt: Literal["shrink", "replace"] = Field(
        default="shrink",
        description="Let the step shrink by a lost group, or replace it from the spare pool.",
    )
    max_replacement_attempts: Count = Field(
        default=1, description="Replacements that one slot may have, under replace."
    )
    replacement_reserve_prompts: Count = Field(
        default=1, description="Spares below which the next batch goes to the spare pool, under replace."
    )
    min_step_batch_fraction: float = Field(
        default=0.9, gt=0, le=1, description="Part of N that a step must keep after charges, rounded up."
    )
    max_infra_attempts_per_prompt: Positive = Field(
        default=5, description="Attempts of a prompt after which infra failures make it dropped."
    )
    max_data_attempts_per_prompt: Positive = Field(
        default=2, description="Attempts of a prompt after which data failures make it dropped."
    )
    max_consecutive_dropped_prompts: Count = Field(
        default=0,
        description="Prompts dropped in a row for infra failures, beyond which the run stops.",
    )
    max_skipped_prompts: Count = Field(
        default=0, description="Prompts dropped for data failures in the whole run, beyond which it stops."
    )
    backoff_base_s: Seconds = Field(
        default=1.0, description="Wait before the second attempt after an infra failure; doubled each time."
    )
    max_backoff_s: Seconds = Field(default=30.0, description="Longest wait before an attempt.")
    rollout_timeout_s: PositiveSeconds | None = Field(
        default=None,
        description="Time from its start, verdicts included, after which an attempt fails (infra); null: no deadline.",
    )


class StallWatchdogConfig(Strict):
    """What happens when a run makes no progress: no group finishes and no step closes."""

    interval_s: Seconds = Field(default=30.0, description="Time between two reports of the same stall.")
    stall_timeout_s: PositiveSeconds = Field(
        default=600.0, description="Time without progress after which the watchdog acts."
    )
    stall_action: Literal["warn", "abort"] = Field(
        default="warn",
        description="Warn, or stop the run, with the explanation of the wait; abort needs a stall_timeout_s of at "
        "least what the deadline and the retries of one prompt allow.",
    )
    on_deadlock: Literal["stop", "warn"] = Field(
        default="stop",
        description="Stop a run that provably can never go on, at once; or warn once, and keep it for a debugger, "
        "also under stall_action: abort.",
    )


class AsyncRlConfig(Strict):
    """The sampler, the limits on groups in flight and ready, and what failures lead to."""

    sampler: SamplerConfig = Field(
        default=InOrderConfig(),
        description="Which ready groups a step is made of, and when a batch is admitted.",
    )
    min_groups_for_streaming_train: Positive | None = Field(
        default=None, description="Eligible groups from which a chunk is selected; null: N."
    )
    max_inflight_prompts: Positive | None = Field(
        default=None, description="Most groups in flight; null: max_buffered_rollouts."
    )
    max_buffered_rollouts: Positive | None = Field(
        default=None,
        description=("Most groups in flight or ready; null: what the sampler requires (windowed: N × (window + 2))."),
    )
    rollout_failure: RolloutFailureConfig = Field(
        default=RolloutFailureConfig(), description="Retry budgets, replacement and the floor of a step."
    )
    stall_watchdog: StallWatchdogConfig = Field(
        default=StallWatchdogConfig(), description="What is done about a run without progress."
    )


class CoreLossConfig(Strict):
    """What the core must know of the loss."""

    use_importance_sampling_correction: bool = Field(
        default=True, description="Correct the loss for groups generated under earlier weights."
    )


class CorePolicyConfig(Strict):
    """What the core must know of the policy."""

    train_global_batch_size: Positive | None = Field(
        default=None,
        description="Rollouts of one optimizer step, checked against N × generations; null: not checked.",
    )


class RunConfig(Strict):
    """The run configuration as far as the core reads it. The runtime adds its own blocks in a subclass."""

    foreign_keys: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """What is said of other frameworks' keys, by dotted path, or by `*.` and the last key; by `**.` and the last key,
    even of one that is a key elsewhere here; by `*`, of many of them."""

    grpo: GrpoConfig = Field(default=GrpoConfig(), description="Steps, groups and dynamic sampling.")
    async_rl: AsyncRlConfig = Field(
        default=AsyncRlConfig(), description="The sampler, its limits, and what failures lead to."
    )
    loss_fn: CoreLossConfig = Field(default=CoreLossConfig(), description="The loss.")
    policy: CorePolicyConfig = Field(default=CorePolicyConfig(), description="The policy.")
