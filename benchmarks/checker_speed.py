"""Speed and memory of the checker: `python benchmarks/checker_speed.py`.

Explores one configuration (ready_first, window 1, N 3, streaming minimum 1, dynamic sampling, replacements, a reserve
of 2) with every state and edge property on, up to a number of states; a second measurement keeps all transitions too,
as `eventually` needs. Each round is a process of its own, so that its resident memory is its own.

Machines are noisy: `triggers` is what a state costs in guarded triggers of a `transitions` machine (8.6 µs on a quiet
core), measured before and after each round; `quiet` is the speed of a machine on which a trigger takes that.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from typing import NamedTuple

from fsm.config import parse_config
from fsm.drive import Drive
from fsm.laws import Laws, laws_of
from fsm.machines import TABLES
from fsm.setup import set_up
from fsm.table import fire
from fsm.trainer import TRAINER, Trainer, TrainerContext
from specs.checker import HOLDS, UNDETERMINED, Bounds, explore
from specs.model import CrashFrom, World
from specs.properties import properties_of
from specs.twins import spin
from specs.twins.compare import TWINS, line, rows
from specs.twins.configurations import CONFIGURATIONS

QUIET_TRIGGER_US = 8.6
PROMPTS = 24


class Round(NamedTuple):
    """One measurement."""

    states: int
    transitions: int
    seconds: float
    """CPU time of the process."""
    bytes_a_state: float
    """By how much the process's resident memory grew."""
    trigger_us: float


def laws() -> Laws:
    """The laws of the run that is explored."""
    document = {
        "grpo": {"num_prompts_per_step": 3, "num_generations_per_prompt": 2, "use_dynamic_sampling": True},
        "async_rl": {
            "sampler": {"name": "ready_first", "max_staleness_versions": 1},
            "min_groups_for_streaming_train": 1,
            "rollout_failure": {
                "on_dropped_prompt": "replace",
                "replacement_reserve_prompts": 2,
                "max_consecutive_dropped_prompts": 1,
                "min_step_batch_fraction": 0.5,
            },
        },
    }
    setup = set_up(parse_config(document), PROMPTS)
    return laws_of(setup.limits, setup.sampler, setup.sampler_name, fire)


def trigger_us() -> float:
    """CPU microseconds of one guarded trigger."""
    drive, triggers = Drive(TABLES), 5_000
    started_s = time.process_time()
    for _ in range(triggers):
        drive(TRAINER, "train_chunk", Trainer(), TrainerContext(1))
    return (time.process_time() - started_s) / triggers * 1e6


def resident_bytes() -> int:
    """The most that the process has had in memory."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1_024


def measure(states: int, world: World, eventually: bool) -> Round:
    """One exploration of at least so many states, unless there are fewer."""
    run = laws()
    properties = properties_of(run)
    if not eventually:
        properties = properties._replace(eventually=())
    before_us, resident = trigger_us(), resident_bytes()
    started_s = time.process_time()
    result = explore(run, world, properties, bounds=Bounds(states))
    seconds = time.process_time() - started_s
    if result.verdict not in (HOLDS, UNDETERMINED):
        raise SystemExit(f"the configuration is {result.verdict}: {result}")
    grown = resident_bytes() - resident
    triggers_us = (before_us + trigger_us()) / 2
    return Round(result.states, result.transitions, seconds, grown / result.states, triggers_us)


WORLDS = {
    "commits, filters": World(fails=False, claims_fail=False, late=False, crash=CrashFrom.NOTHING),
    "and failures": World(claims_fail=False, crash=CrashFrom.NOTHING),
    "and unreadable data, crashes": World(),
}


def in_its_own_process(name: str, states: int, eventually: bool) -> Round:
    """`measure` in a fresh interpreter."""
    command = [sys.executable, __file__, "--one", name, "--states", str(states), *(["--eventually"] * eventually)]
    answer = subprocess.run(command, check=True, capture_output=True, text=True)
    return Round(*json.loads(answer.stdout))


def main() -> None:
    """Print a line a world: medians over the rounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--states", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--eventually", action="store_true")
    parser.add_argument("--one", choices=WORLDS)
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(measure(asked.states, WORLDS[asked.one], asked.eventually)))
        return
    heads = f"{'states':>9} {'states/s':>9} {'transitions/s':>13} {'bytes/state':>11} {'triggers':>8} {'quiet':>9}"
    print(f"{'world':30} {heads}")
    for name in WORLDS:
        rounds = [in_its_own_process(name, asked.states, asked.eventually) for _ in range(asked.rounds)]
        speed = statistics.median(r.states / r.seconds for r in rounds)
        transitions = statistics.median(r.transitions / r.seconds for r in rounds)
        memory = statistics.median(r.bytes_a_state for r in rounds)
        triggers = statistics.median(r.seconds / r.states * 1e6 / r.trigger_us for r in rounds)
        quiet = 1e6 / (triggers * QUIET_TRIGGER_US)
        print(
            f"{name:30} {rounds[0].states:>9,} {speed:>9,.0f} {transitions:>13,.0f} {memory:>11,.0f} {triggers:>8.2f} "
            f"{quiet:>9,.0f}"
        )
    print_twins()


def print_twins() -> None:
    """What SPIN makes of the same rules in its language, where it is installed; small runs, so ours mostly learn."""
    absent = spin.missing()
    if absent is not None:
        print(absent)
        return
    for row in rows(CONFIGURATIONS, [twin for twin in TWINS if twin.name == "SPIN"]):
        print(line(row))


if __name__ == "__main__":
    main()
