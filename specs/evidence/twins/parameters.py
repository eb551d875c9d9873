"""The parameters of a run for its twins: integers, written as a header for SPIN and as constants for TLC."""

from collections.abc import Mapping

from specs.evidence.small_run import SmallRun
from specs.model import CrashFrom

Parameters = Mapping[str, int | str]
"""The constants of both twins, by the names that they use. A limit of −1 is none; a switch is 0 or 1."""

ONLY_FOR_SPIN = ("STEPS", "STAMPS")


def parameters(run: SmallRun) -> Parameters:
    """The constants of a run under a built-in sampler. Raises ConfigError."""
    limits, world = run.laws().limits, run.world
    batches = -(-limits.prompts_per_epoch // limits.size) * limits.epochs
    stamps = batches if run.sampler in ("in_order", "weight_fifo") else 1
    return {
        "SAMPLER": run.sampler.upper(),
        "WINDOW": run.window,
        "FRESHEST_FIRST": int(run.sampler_options.get("sample_freshest_first", False)),
        "N": limits.size,
        "MIN_GROUPS": limits.min_groups,
        "MAX_INFLIGHT": limits.max_inflight,
        "MAX_BUFFERED": limits.max_buffered,
        "FLOOR": limits.floor,
        "MAX_STEPS": limits.max_steps,
        "MAX_REPLACEMENTS": limits.max_replacements,  # 0 if no pool is used
        "RESERVE": limits.reserve,
        "DYNAMIC_SAMPLING": limits.dynamic_sampling,
        "MAX_FILTERED": limits.max_filtered,
        "MAX_DROPPED": limits.max_consecutive_dropped,
        "MAX_SKIPPED": limits.max_skipped,
        "PROMPTS": limits.prompts_per_epoch,
        "EPOCHS": limits.epochs,
        "FAILS": int(world.fails),
        "BACKS_OFF": int(world.backs_off),
        "CLAIMS_FAIL": int(world.claims_fail),
        "CRASHES": int(world.crash is not CrashFrom.NOTHING),
        "STEPS": batches + 2,  # columns of versions and steps: 0 up to the last, and the one after it
        "STAMPS": max(stamps, 1),  # columns of stamps, each below the number of batches
    }


def header(known: Parameters) -> str:
    """`parameters.h`: one definition a constant, and the lists of classes."""
    stamps, steps, tries = int(known["STAMPS"]), int(known["STEPS"]), int(known["MAX_REPLACEMENTS"]) + 1
    classes = {"EVERY_RUNNING": stamps * steps * tries, "EVERY_HELD": stamps * tries, "EVERY_READY": stamps * steps}
    lines = [f"#define {name} {value}" for name, value in known.items()]
    lines += [f"#define {name}(F) {' '.join(f'F({c})' for c in range(number))}" for name, number in classes.items()]
    return "\n".join(lines) + "\n"


def constants(known: Parameters) -> str:
    """`Evenstep.cfg`: what to check, and one line a constant. TLC's configuration has no negative numbers."""

    def written(value: int | str) -> str:
        return f'"{value}"' if isinstance(value, str) else "NONE" if value < 0 else str(value)

    lines = ["INIT Init", "NEXT Next", "INVARIANTS StepsComeOutEven NothingIsStuck", "CONSTANTS", "NONE = NONE"]
    lines += [f"{name} = {written(value)}" for name, value in known.items() if name not in ONLY_FOR_SPIN]
    return "\n".join(lines) + "\n"
