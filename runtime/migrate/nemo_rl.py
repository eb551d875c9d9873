"""Conversions of NeMo-RL's keys that look at other keys too."""

from typing import Any

from fsm.config.blocks import InOrderConfig, ReadyFirstConfig, WeightFifoConfig, WindowedConfig
from fsm.config.strict import Strict
from runtime.migrate.rows import Converted, Fate, Theirs
from runtime.migrate.schedules import schedule

_LENGTH = "policy.max_total_sequence_length"
_NEW = "policy.generation.max_new_tokens"
_LENGTH_THERE = 512
_SAMPLERS: dict[str, type[Strict]] = {
    "in_order": InOrderConfig,
    "ready_first": ReadyFirstConfig,
    "windowed": WindowedConfig,
    "weight_fifo": WeightFifoConfig,
}


def shaping(value: Any, _: Theirs) -> Converted:
    """No punishment of long rollouts; the block's other keys fill it if it is enabled."""
    return Converted(Fate.RENAMED, {} if value else None)


def async_grpo(value: Any, theirs: Theirs) -> Converted:
    """The older asynchronous mode: exact batches, at most so many steps old; off: synchronous."""
    if theirs.get("async_rl") is not None:
        return Converted(Fate.DEFAULT, note="async_rl.sampler says it")
    return Converted(Fate.RENAMED, {"name": "in_order", "max_lookahead_versions": 1 if value else 0})


def penalties(value: Any, _: Theirs) -> Converted:
    """Penalties for what a completion looks like."""
    on = any(each not in (False, None) for each in value.values()) if isinstance(value, dict) else False
    return Converted(Fate.LOST if on else Fate.DEFAULT)


def sampler(value: Any, _: Theirs) -> Converted:
    """The sampler's block. A chain of files may leave other samplers' keys in it, which mean nothing there."""
    if not isinstance(value, dict):
        return Converted(Fate.DEFAULT)
    name = value.get("name", "in_order")
    if name not in _SAMPLERS:
        note = "a sampler of yours is another class here: write it anew (docs/writing_a_sampler.md)"
        return Converted(Fate.DECIDE, value, note)
    return Converted(Fate.RENAMED, {key: value[key] for key in _SAMPLERS[name].model_fields if key in value})


def deadlines(value: Any, theirs: Theirs) -> Converted:
    """Deadlines of a turn as one of the rollout."""
    given = [each for each in (value or {}).values() if isinstance(each, int | float)]
    if not given:
        return Converted(Fate.DEFAULT)
    return Converted(Fate.DECIDE, float(sum(given) * theirs.number("grpo.max_rollout_turns", 1)))


def gym_deadline(value: Any, _: Theirs) -> Converted:
    """NeMo-Gym's deadline of a rollout."""
    seconds = (value or {}).get("rollout_timeout_s")
    return Converted(Fate.DEFAULT) if seconds is None else Converted(Fate.RENAMED, float(seconds))


def microbatch(value: Any, theirs: Theirs) -> Converted:
    """Rollouts of a microbatch as tokens; the tokens themselves under packing or dynamic batching."""
    longest = theirs.number(_LENGTH, _LENGTH_THERE)
    for block in ("policy.sequence_packing", "policy.dynamic_batching"):
        if theirs.get(f"{block}.enabled"):
            return Converted(Fate.RENAMED, max(longest, theirs.number(f"{block}.train_mb_tokens", value * longest)))
    return Converted(Fate.RENAMED, value * longest)


def _shares(theirs: Theirs) -> tuple[int, int, bool]:
    """The longest prompt and completion, and whether there they share one length."""
    total = theirs.number(_LENGTH, _LENGTH_THERE)
    new = theirs.number(_NEW, total)
    if new < total:
        return min(total - new, theirs.number("data.max_input_seq_length", total)), new, False
    prompt = max(1, total // 4)
    return prompt, total - prompt, True


def new_tokens(_value: Any, theirs: Theirs) -> Converted:
    """The longest completion. There a prompt and its completion may share one length; here each has its own."""
    prompt, new, shared = _shares(theirs)
    total = theirs.number(_LENGTH, _LENGTH_THERE)
    if not shared:
        return Converted(Fate.RENAMED, new)
    note = (
        f"prompt and completion share {total} tokens there; here each has a limit, in all at most "
        f"policy.max_total_sequence_length: {prompt} + {new} are written; set them as your prompts need"
    )
    return Converted(Fate.DECIDE, new, note)


def prompt_tokens(_value: Any, theirs: Theirs) -> Converted:
    """The longest prompt: what the completion leaves."""
    return Converted(Fate.RENAMED, _shares(theirs)[0])


def torch_schedule(value: Any, theirs: Theirs) -> Converted:
    """A chain of torch's schedulers: a linear warm-up, then constant or cosine."""
    parts = [part for part in (value if isinstance(value, list) else [value]) if isinstance(part, dict)]
    warmup, style, total, lowest = 0, "constant", 0, 0.0
    for part in parts:
        name, options = str(part.get("name", "")).rpartition(".")[2], part.get("kwargs", {})
        if name == "LinearLR" and options.get("start_factor", 1 / 3) <= options.get("end_factor", 1.0):
            warmup = int(options.get("total_iters", 5))
        elif name == "CosineAnnealingLR":
            style, total, lowest = "cosine", int(options["T_max"]), float(options.get("eta_min", 0.0))
        elif name not in ("ConstantLR", ""):
            return schedule(name, warmup, 0, 0.0)
    lr = theirs.get("policy.optimizer.kwargs.lr")
    return schedule(style, warmup, warmup + total, lowest / lr if lr else 0.0)


def megatron_schedule(value: Any, theirs: Theirs) -> Converted:
    """Megatron's decay after a linear warm-up."""
    block = value or {}
    lr, lowest = (theirs.get(f"policy.megatron_cfg.optimizer.{key}") for key in ("lr", "min_lr"))
    warmup, total = block.get("lr_warmup_iters") or 0, block.get("lr_decay_iters") or 0
    return schedule(block.get("lr_decay_style", "constant"), warmup, total, lowest / lr if lr and lowest else 0.0)


def betas(_value: Any, theirs: Theirs, first: str, second: str) -> Converted:
    """Adam's two decay rates as a list."""
    return Converted(Fate.RENAMED, [float(theirs.get(first, 0.9)), float(theirs.get(second, 0.999))])


def wandb(value: Any, theirs: Theirs, project: str) -> Converted:
    """The project, if W&B is on."""
    return Converted(Fate.RENAMED, theirs.get(project, "evenstep")) if value else Converted(Fate.DEFAULT)


def _gpus(theirs: Theirs) -> tuple[int, int]:
    """GPUs of the trainer, and of generation. Where they share theirs, half of them each."""
    nodes, each = theirs.number("cluster.num_nodes", 1), theirs.number("cluster.gpus_per_node", 1)
    total = nodes * each
    place = "policy.generation.colocated"
    if theirs.get(f"{place}.enabled", True):
        generation = total // 2
    else:
        here = theirs.number(f"{place}.resources.gpus_per_node", each)
        generation = here * (theirs.number(f"{place}.resources.num_nodes", 1) if nodes > 1 else 1)
    return max(1, total - generation), max(1, generation)


def colocated(value: Any, theirs: Theirs) -> Converted:
    """Whether trainer and generation share GPUs, which they do not here."""
    trainer, generation = _gpus(theirs)
    if not value:
        return Converted(Fate.DEFAULT)
    note = f"trainer and generation have GPUs of their own here: {trainer} and {generation} are written"
    return Converted(Fate.DECIDE, is_written=False, note=note)


def trainer_ranks(_value: Any, theirs: Theirs) -> Converted:
    """GPUs that are not for generation."""
    return Converted(Fate.RENAMED, _gpus(theirs)[0])


def generation_workers(_value: Any, theirs: Theirs) -> Converted:
    """Copies of the model that the GPUs for generation hold."""
    vllm = "policy.generation.vllm_cfg"
    copy = theirs.number(f"{vllm}.tensor_parallel_size", 1) * theirs.number(f"{vllm}.pipeline_parallel_size", 1)
    return Converted(Fate.RENAMED, max(1, _gpus(theirs)[1] // copy))


def prompt_file(value: Any, theirs: Theirs) -> Converted:
    """The template in a file, if it is there."""
    text = _text(value, theirs)
    if value is None:
        return Converted(Fate.DEFAULT)
    if text is None or "{}" not in text:
        return Converted(Fate.DECIDE, is_written=False)
    return Converted(Fate.RENAMED, text.replace("{}", "{prompt}"))


def text_of_file(value: Any, theirs: Theirs) -> Converted:
    """The text of a file, if it is there."""
    text = _text(value, theirs)
    if value is None:
        return Converted(Fate.DEFAULT)
    return Converted(Fate.DECIDE, is_written=False) if text is None else Converted(Fate.RENAMED, text)


def _text(path: Any, theirs: Theirs) -> str | None:
    file = next((found for folder in theirs.folders if (found := folder / str(path)).is_file()), None)
    try:
        return None if file is None else file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


CONVERSIONS = (
    shaping, async_grpo, penalties, sampler, deadlines, gym_deadline, microbatch, new_tokens, prompt_tokens,
    torch_schedule, megatron_schedule, betas, wandb, colocated, trainer_ranks, generation_workers, prompt_file,
    text_of_file,
)  # fmt: skip
