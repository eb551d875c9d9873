"""Conversions of verl's keys that look at other keys too."""

import math
from typing import Any

from runtime.migrate.rows import Converted, Fate, Theirs
from runtime.migrate.schedules import lost_warmup, schedule

_ACTOR, _ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"


def mini_batches(value: Any, theirs: Theirs) -> Converted:
    """Optimizer steps of a batch."""
    same = value is None or value >= theirs.number("data.train_batch_size", 1024)
    return Converted(Fate.DEFAULT if same else Fate.DECIDE, is_written=False)


def replaced(value: Any, _: Theirs) -> Converted:
    """Filtered groups are replaced there."""
    return Converted(Fate.RENAMED, "replace") if value else Converted(Fate.DEFAULT)


def staleness(value: Any, _: Theirs) -> Converted:
    """How far generation may lead."""
    return Converted(Fate.DECIDE, {"name": "windowed", "max_staleness_versions": max(1, math.ceil(value or 0))})


def verl_samples(value: Any, _: Theirs) -> Converted:
    """Held-out prompts; all of them if negative."""
    if not isinstance(value, int) or value < 0:
        return Converted(Fate.DECIDE, is_written=False, note="all held-out prompts there; 256 by default here")
    return Converted(Fate.RENAMED, value)


def _longest(theirs: Theirs) -> int:
    return theirs.number("data.max_prompt_length", 512) + theirs.number("data.max_response_length", 512)


def verl_length(_value: Any, theirs: Theirs) -> Converted:
    """The longest rollout: prompt and response."""
    return Converted(Fate.RENAMED, _longest(theirs))


def verl_microbatch(value: Any, theirs: Theirs) -> Converted:
    """Tokens of a microbatch, at least the longest rollout."""
    return Converted(Fate.RENAMED, max(value, _longest(theirs)))


def verl_rollouts(value: Any, theirs: Theirs) -> Converted:
    """Rollouts of a microbatch as tokens."""
    if value is None or theirs.get(f"{_ACTOR}.use_dynamic_bsz"):
        return Converted(Fate.DEFAULT)
    return Converted(Fate.RENAMED, value * _longest(theirs))


def rollout_correction(value: Any, theirs: Theirs) -> Converted:
    """Importance weights of tokens; of sequences there is nothing. Asynchronous rollouts always need one."""
    if value in (None, "token"):
        return Converted(Fate.RENAMED, value is not None or theirs.get("async_training") is not None)
    return Converted(Fate.DECIDE, True, f"{value}: importance weights are per token here")


def kl_loss(value: Any, theirs: Theirs) -> Converted:
    """The weight of the KL divergence in the loss."""
    return Converted(Fate.RENAMED, float(theirs.get(f"{_ACTOR}.kl_loss_coef", 0.001)) if value else 0.0)


def verl_schedule(value: Any, theirs: Theirs) -> Converted:
    """The schedule, over the run's steps."""
    optim = f"{_ACTOR}.optim"
    own, whole = (theirs.number(path, -1) for path in (f"{optim}.total_training_steps", "trainer.total_training_steps"))
    total = own if own > 0 else max(0, whole)
    steps = theirs.number(f"{optim}.lr_warmup_steps", -1)
    if steps < 0:
        steps = math.ceil(float(theirs.get(f"{optim}.lr_warmup_steps_ratio") or 0.0) * total)
    return schedule(str(value), steps, total, float(theirs.get(f"{optim}.min_lr_ratio") or 0.0))


def verl_warmup(value: Any, theirs: Theirs) -> Converted:
    """A warm-up that is a share of the run's steps."""
    optim = f"{_ACTOR}.optim"
    totals = (theirs.number(path, -1) for path in (f"{optim}.total_training_steps", "trainer.total_training_steps"))
    known = theirs.number(f"{optim}.lr_warmup_steps", -1) >= 0 or any(total > 0 for total in totals)
    return Converted(Fate.DEFAULT) if known or not value else lost_warmup(value, "trainer.total_training_steps")


def if_named(value: Any, theirs: Theirs) -> Converted:
    """The older name of the schedule's key."""
    return Converted(Fate.DEFAULT) if value is None else verl_schedule(value, theirs)


def float_of(value: Any, _: Theirs) -> Converted:
    """A number that may be written without a point."""
    return Converted(Fate.RENAMED, float(value))


def vllm_only(value: Any, theirs: Theirs) -> Converted:
    """An option of the vLLM engine."""
    engine = theirs.get(f"{_ROLLOUT}.name", "vllm")
    return Converted(Fate.DEFAULT, note="of the vllm engine") if engine == "hf" else Converted(Fate.RENAMED, value)


def validation_temperature(value: Any, theirs: Theirs) -> Converted:
    """Greedy unless validation samples."""
    sampled = theirs.get(f"{_ROLLOUT}.val_kwargs.do_sample", False)
    return Converted(Fate.RENAMED, float(value) if sampled else 0.0)


def _gpus(theirs: Theirs) -> tuple[int, int, bool]:
    """GPUs of the trainer and of generation, and whether they share theirs there: then half of them each."""
    total = theirs.number("trainer.nnodes", 1) * theirs.number("trainer.n_gpus_per_node", 8)
    if theirs.get("rollout.n_gpus_per_node") is not None:
        return total, theirs.number("rollout.nnodes", 1) * theirs.number("rollout.n_gpus_per_node", 8), False
    return max(1, total - total // 2), max(1, total // 2), True


def shared_gpus(value: Any, theirs: Theirs) -> Converted:
    """Whether trainer and generation share GPUs, which they do not here."""
    trainer, generation, shared = _gpus(theirs)
    if not value or not shared:
        return Converted(Fate.DEFAULT)
    note = f"trainer and generation have GPUs of their own here: {trainer} and {generation} are written"
    return Converted(Fate.DECIDE, is_written=False, note=note)


def verl_workers(_value: Any, theirs: Theirs) -> Converted:
    """Copies of the model that the GPUs for generation hold."""
    return Converted(
        Fate.RENAMED, max(1, _gpus(theirs)[1] // theirs.number(f"{_ROLLOUT}.tensor_model_parallel_size", 2))
    )


def verl_ranks(_value: Any, theirs: Theirs) -> Converted:
    """GPUs of the trainer."""
    return Converted(Fate.RENAMED, _gpus(theirs)[0])


def logs_to_wandb(value: Any, theirs: Theirs) -> Converted:
    """The project, if W&B is among the loggers."""
    if "wandb" not in (value if isinstance(value, list) else [value]):
        return Converted(Fate.DEFAULT)
    return Converted(Fate.RENAMED, theirs.get("trainer.project_name", "verl_examples"))


CONVERSIONS = (
    mini_batches, replaced, staleness, verl_samples, verl_length, verl_microbatch, verl_rollouts, rollout_correction,
    kl_loss, verl_schedule, verl_warmup, if_named, float_of, vllm_only, validation_temperature, shared_gpus,
    verl_workers, verl_ranks, logs_to_wandb,
)  # fmt: skip
