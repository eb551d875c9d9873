"""Conversions of TRL's keys that look at other keys too."""

import math
from typing import Any

from runtime.migrate.rows import Converted, Fate, Theirs
from runtime.migrate.schedules import lost_warmup, schedule
from runtime.wording import counted

_PROMPT_TOKENS = 512
"""Written where a file does not say how long prompts are."""


def _rollouts(theirs: Theirs) -> int:
    """Rollouts of one optimizer step of one training process."""
    return theirs.number("per_device_train_batch_size", 8) * theirs.number("gradient_accumulation_steps", 1)


def prompts_per_step(_value: Any, theirs: Theirs) -> Converted:
    """Prompts of a step. There the rollouts of a step depend on the number of processes, which a file does not say."""
    rollouts, siblings = _rollouts(theirs), max(1, theirs.number("num_generations", 8))
    prompts = max(1, rollouts // siblings)
    note = (
        f"a training process has {counted(rollouts, 'rollout')} a step (per_device_train_batch_size × "
        f"gradient_accumulation_steps), {rollouts / siblings:g} prompts of {siblings}: multiply by your number of "
        "processes"
    )
    return Converted(Fate.DECIDE, prompts, note)


def trl_length(value: Any, theirs: Theirs) -> Converted:
    """The longest rollout: prompt and completion."""
    return Converted(Fate.RENAMED, theirs.number("max_prompt_length", _PROMPT_TOKENS) + value)


def trl_prompt(_value: Any, theirs: Theirs) -> Converted:
    """The longest prompt, if the file does not say it."""
    if theirs.get("max_prompt_length") is not None:
        return Converted(Fate.DEFAULT, note="max_prompt_length says it")
    return Converted(Fate.DECIDE, _PROMPT_TOKENS)


def trl_microbatch(value: Any, theirs: Theirs) -> Converted:
    """Rollouts of a microbatch as tokens."""
    longest = theirs.number("max_prompt_length", _PROMPT_TOKENS) + theirs.number("max_completion_length", 512)
    return Converted(Fate.RENAMED, value * longest)


def several_updates(value: Any, theirs: Theirs) -> Converted:
    """Batches that are sampled at once for several optimizer steps."""
    if value is None or value in (_rollouts(theirs), theirs.number("gradient_accumulation_steps", 1)):
        return Converted(Fate.DEFAULT)
    return Converted(Fate.DECIDE, is_written=False)


def trl_epochs(value: Any, theirs: Theirs) -> Converted:
    """Passes over the data; with max_steps there is no other limit."""
    if theirs.number("max_steps", -1) > 0:
        return Converted(Fate.RENAMED, None, "max_steps alone ends the run there")
    return Converted(Fate.RENAMED, max(1, math.ceil(value)))


def trl_dtype(value: Any, _: Theirs) -> Converted:
    """The type of the weights in generation."""
    if value in (None, "auto"):
        return Converted(Fate.DEFAULT)
    return (
        Converted(Fate.RENAMED, value) if value in ("float32", "bfloat16") else Converted(Fate.DECIDE, is_written=False)
    )


def dr_grpo_length(value: Any, theirs: Theirs) -> Converted:
    """The constant of Dr. GRPO."""
    if value != "dr_grpo":
        return Converted(Fate.DEFAULT)
    return Converted(Fate.RENAMED, theirs.number("max_completion_length", 512))


def trl_schedule(value: Any, theirs: Theirs) -> Converted:
    """The schedule; linear and cosine decay over max_steps."""
    total = max(0, theirs.number("max_steps", -1))
    warmup = theirs.get("warmup_steps") or 0
    if not warmup and theirs.get("warmup_ratio"):
        warmup = theirs.get("warmup_ratio")
    steps = math.ceil(warmup * total) if isinstance(warmup, float) and warmup < 1 else int(warmup)
    return schedule(str(value), steps, total, 0.0)


def trl_warmup(value: Any, theirs: Theirs) -> Converted:
    """A warm-up that is a share of the run's steps, if the file says how many these are or how long it is."""
    is_share = isinstance(value, float) and 0 < value < 1
    steps = theirs.get("warmup_steps") or 0
    if not is_share or steps >= 1 or theirs.number("max_steps", -1) > 0:
        return Converted(Fate.DEFAULT)
    return lost_warmup(value, "max_steps")


def separate_gpus(value: Any, _: Theirs) -> Converted:
    """vLLM on the trainer's GPUs."""
    if value != "colocate":
        return Converted(Fate.DEFAULT)
    note = (
        "colocate: trainer and generation have GPUs of their own here, so a run needs at least 2: "
        "cluster.num_trainer_ranks, and cluster.num_generation_workers × tensor_parallel_size"
    )
    return Converted(Fate.DECIDE, is_written=False, note=note)


def trl_every(value: Any, theirs: Theirs, strategy: str) -> Converted:
    """Steps between two, under the strategy `steps`."""
    chosen = theirs.get(strategy, "steps" if strategy == "save_strategy" else "no")
    if chosen == "no":
        return Converted(Fate.RENAMED, 0)
    if chosen != "steps" or value is None or (isinstance(value, float) and value < 1):
        return Converted(Fate.DECIDE, is_written=False, note=f"{strategy} is {chosen}: a whole number of steps here")
    return Converted(Fate.RENAMED, int(value))


def _reports(value: Any, word: str) -> bool:
    names = value if isinstance(value, list) else [value]
    return word in names or "all" in names


def reports_to(value: Any, _: Theirs, word: str) -> Converted:
    """Whether a logger is among those of `report_to`."""
    return Converted(Fate.RENAMED, True) if _reports(value, word) else Converted(Fate.DEFAULT)


def reports_to_wandb(value: Any, theirs: Theirs) -> Converted:
    """The project, if W&B is among `report_to`."""
    if not _reports(value, "wandb"):
        return Converted(Fate.DEFAULT)
    return Converted(Fate.RENAMED, theirs.get("project", "huggingface"))


CONVERSIONS = (
    prompts_per_step, trl_length, trl_prompt, trl_microbatch, several_updates, trl_epochs, trl_dtype, dr_grpo_length,
    trl_schedule, trl_warmup, separate_gpus, trl_every, reports_to, reports_to_wandb,
)  # fmt: skip
