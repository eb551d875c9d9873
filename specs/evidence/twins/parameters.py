"""What a twin is told of a run: integers, written as a header for SPIN and as constants for TLC."""

from __future__ import annotations

from typing import NamedTuple

from fsm.config.parse import CustomConfig, WindowedConfig
from specs.evidence.twins.configurations import Configuration


class Parameters(NamedTuple):
    """The constants of both twins, by the names that they use. A limit of −1 is none; a switch is 0 or 1."""

    SAMPLER: str
    """IN_ORDER, READY_FIRST, WEIGHT_FIFO or WINDOWED."""
    WINDOW: int
    FRESHEST_FIRST: int
    N: int
    MIN_GROUPS: int
    MAX_INFLIGHT: int
    MAX_BUFFERED: int
    FLOOR: int
    MAX_STEPS: int
    MAX_REPLACEMENTS: int
    """0 where no pool is used."""
    RESERVE: int
    DYNAMIC_SAMPLING: int
    MAX_FILTERED: int
    MAX_DROPPED: int
    MAX_SKIPPED: int
    PROMPTS: int
    """Of one epoch."""
    EPOCHS: int
    FAILS: int
    BACKS_OFF: int
    CLAIMS_FAIL: int
    CRASHES: int
    STEPS: int
    """Columns of versions and steps: 0 up to the last, and the one after it."""
    STAMPS: int
    """Columns of stamps: a stamp is below the number of batches; 1 where the sampler stamps nothing."""


def parameters(run: Configuration) -> Parameters:
    """The constants of a run under a built-in sampler. Raises ConfigError."""
    sampler, limits = run.parsed().async_rl.sampler, run.laws().limits
    if isinstance(sampler, CustomConfig):
        raise ValueError(f"{run.name}: the twins know the built-in samplers only, not {sampler.target}")
    batches = -(-limits.prompts_per_epoch // limits.size) * limits.epochs
    return Parameters(
        SAMPLER=sampler.name.upper(),
        WINDOW=sampler.window,
        FRESHEST_FIRST=int(isinstance(sampler, WindowedConfig) and sampler.sample_freshest_first),
        N=limits.size,
        MIN_GROUPS=limits.min_groups,
        MAX_INFLIGHT=limits.max_inflight,
        MAX_BUFFERED=limits.max_buffered,
        FLOOR=limits.floor,
        MAX_STEPS=limits.max_steps,
        MAX_REPLACEMENTS=limits.max_replacements,
        RESERVE=limits.reserve,
        DYNAMIC_SAMPLING=limits.dynamic_sampling,
        MAX_FILTERED=limits.max_filtered,
        MAX_DROPPED=limits.max_consecutive_dropped,
        MAX_SKIPPED=limits.max_skipped,
        PROMPTS=limits.prompts_per_epoch,
        EPOCHS=limits.epochs,
        FAILS=int(run.fails),
        BACKS_OFF=int(run.backs_off),
        CLAIMS_FAIL=int(run.claims_fail),
        CRASHES=int(run.crashes),
        STEPS=batches + 2,
        STAMPS=max(batches, 1) if sampler.name in ("in_order", "weight_fifo") else 1,
    )


def header(known: Parameters) -> str:
    """`parameters.h`: one definition a constant, and the lists of classes."""
    tries = known.MAX_REPLACEMENTS + 1
    classes = {
        "EVERY_RUNNING": known.STAMPS * known.STEPS * tries,
        "EVERY_HELD": known.STAMPS * tries,
        "EVERY_READY": known.STAMPS * known.STEPS,
    }
    lines = [f"#define {name} {value}" for name, value in known._asdict().items()]
    lines += [f"#define {name}(F) {' '.join(f'F({c})' for c in range(classes[name]))}" for name in classes]
    return "\n".join(lines) + "\n"


ONLY_FOR_SPIN = ("STEPS", "STAMPS")


def constants(known: Parameters) -> str:
    """`Evenstep.cfg`: what to check, and one line a constant. TLC's configuration has no negative numbers."""
    lines = ["INIT Init", "NEXT Next", "INVARIANTS StepsComeOutEven NothingIsStuck", "CONSTANTS", "NONE = NONE"]
    for name, value in known._asdict().items():
        if name not in ONLY_FOR_SPIN:
            lines.append(
                f'{name} = "{value}"' if isinstance(value, str) else f"{name} = {'NONE' if value < 0 else value}"
            )
    return "\n".join(lines) + "\n"
