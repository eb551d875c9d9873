"""Measure speed and memory of the checker: `python benchmarks/checker_speed.py`.

Explores one configuration (ready_first, window 1, N 3, streaming minimum 1, dynamic sampling, replacements, a reserve
of 2) up to a number of states: with state properties; also with those of transitions (edges and `sometimes`); and, with
`--properties everything`, keeping all transitions, as `eventually` needs. Each round is a separate process, to measure
its resident memory.

Machines differ and are noisy: `of plain` is the speed relative to a plain breadth-first search over tuples, measured
before and after each round in the same process.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from typing import NamedTuple

from specs.checker.explore import HOLDS, UNDETERMINED, explore
from specs.engine.search import Bounds
from specs.evidence.small_run import SmallRun
from specs.evidence.twins import spin
from specs.evidence.twins.compare import CONFIGURATIONS, TWINS, line, rows
from specs.model import CrashFrom, WorldOptions
from specs.properties.catalog import properties_of
from specs.properties.kinds import Properties

PLAIN_STATES = 100_000


class Round(NamedTuple):
    """One measurement."""

    states: int
    transitions: int
    seconds: float
    """CPU time of the process."""
    bytes_a_state: float
    """Growth of the process's resident memory."""
    plain: float
    """States a second of the plain search."""


RUN = SmallRun(
    "", "ready_first", 3, 1, 24,
    grpo={"use_dynamic_sampling": True},
    async_rl={"min_groups_for_streaming_train": 1},
    rollout_failure={
        "on_dropped_prompt": "replace", "replacement_reserve_prompts": 2, "max_consecutive_dropped_prompts": 1,
    },
)  # fmt: skip


def plain_speed() -> float:
    """States a second of a breadth-first search over tuples of six counts."""
    first = (0,) * 6
    seen, frontier = {first}, [first]
    started_s = time.process_time()
    while len(seen) < PLAIN_STATES:
        found = []
        for state in frontier:
            for place, count in enumerate(state):
                following = (*state[:place], count + 1, *state[place + 1 :])
                if following not in seen:
                    seen.add(following)
                    found.append(following)
        frontier = found
    return len(seen) / (time.process_time() - started_s)


def resident_bytes() -> int:
    """The peak memory of the process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1_024


def chosen(properties: Properties, which: str) -> Properties:
    """The properties of states, of states and transitions, or all."""
    match which:
        case "states":
            return Properties(always=properties.always)
        case "transitions":
            return properties._replace(eventually=())
    return properties


def measure(states: int, world: WorldOptions, which: str) -> Round:
    """One exploration of up to this many states."""
    laws = RUN.laws()
    properties = chosen(properties_of(laws), which)
    before, resident = plain_speed(), resident_bytes()
    started_s = time.process_time()
    result = explore(laws, world, properties, bounds=Bounds(states))
    seconds = time.process_time() - started_s
    if result.verdict not in (HOLDS, UNDETERMINED):
        raise SystemExit(f"the configuration is {result.verdict}: {result}")
    grown = resident_bytes() - resident
    return Round(result.states, result.transitions, seconds, grown / result.states, (before + plain_speed()) / 2)


WORLDS = {
    "commits, filters": WorldOptions(fails=False, claims_fail=False, late=False, crash=CrashFrom.NOTHING),
    "and failures": WorldOptions(claims_fail=False, crash=CrashFrom.NOTHING),
    "and unreadable data, crashes": WorldOptions(),
}


PROPERTIES = ("states", "transitions", "everything")


def in_its_own_process(name: str, states: int, which: str) -> Round:
    """`measure` in a fresh interpreter."""
    command = [sys.executable, __file__, "--one", name, "--states", str(states), "--properties", which]
    answer = subprocess.run(command, check=True, capture_output=True, text=True)
    return Round(*json.loads(answer.stdout))


def main() -> None:
    """Print a line for each world and kind of properties: medians over the rounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--states", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--properties", choices=PROPERTIES, help="only this kind (default: the first two)")
    parser.add_argument("--one", choices=WORLDS)
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(measure(asked.states, WORLDS[asked.one], asked.properties)))
        return
    heads = f"{'states':>9} {'states/s':>9} {'transitions/s':>13} {'bytes/state':>11} {'of plain':>8}"
    print(f"{'world':30} {'properties of':13} {heads}")
    for which in [asked.properties] if asked.properties else PROPERTIES[:2]:
        for name in WORLDS:
            rounds = [in_its_own_process(name, asked.states, which) for _ in range(asked.rounds)]
            speed = statistics.median(r.states / r.seconds for r in rounds)
            transitions = statistics.median(r.transitions / r.seconds for r in rounds)
            memory = statistics.median(r.bytes_a_state for r in rounds)
            share = statistics.median(r.states / r.seconds / r.plain for r in rounds)
            figures = f"{rounds[0].states:>9,} {speed:>9,.0f} {transitions:>13,.0f} {memory:>11,.0f} {share:>8.2f}"
            print(f"{name:30} {which:13} {figures}", flush=True)
    print_twins()


def print_twins() -> None:
    """Compare with SPIN on the same rules in its language, if it is installed, in small runs."""
    absent = spin.missing()
    if absent is not None:
        print(absent)
        return
    for row in rows(CONFIGURATIONS, [twin for twin in TWINS if twin.name == "SPIN"]):
        print(line(row))


if __name__ == "__main__":
    main()
