"""Measure the cost of control per group, by sampler and groups in the buffer: `make bench`.

A group goes through dispatch, commit, selection and close. Every machine is a `transitions` machine, every invariant is
asserted after every event, the roster is kept, and nothing does I/O. First the buffer is filled: every group finishes,
in random order among its 1,024 neighbours, while a chunk is in training. Then steps close one after the other: N groups
are selected, N more are dispatched and finish in random order.

A gated sampler admits (window + 1) × N groups, so its window sets the buffer. windowed, always open, has a window of 2
and evicts older groups, which count too.

Machines are noisy: `triggers` is the cost in guarded triggers of a `transitions` machine (8.6 µs on a quiet core),
measured before and after each round, and `× 64` compares those.
"""

import argparse
import gc
import json
import random
import resource
import statistics
import time
from typing import NamedTuple

from fsm.config.parse import parse_config
from fsm.config.setup import set_up
from fsm.core import Core
from fsm.effects import Effect, StartRollout
from fsm.events import Attempt, Begin, ChunkTrained, GroupFinished, StepFinished, SyncFinished
from fsm.machines.drive import Drive
from fsm.machines.trainer import TRAINER, Trainer, TrainerContext

N = 64
NEIGHBOURS = 1_024
"""Rollouts finish out of order among this many that started together."""
SIZES = (64, 1_000, 10_000, 100_000, 1_000_000)
SAMPLERS = ("in_order", "ready_first", "weight_fifo", "windowed")


class Row(NamedTuple):
    """One measurement."""

    sampler: str
    buffer: int
    classes: int
    """Classes of ready and running groups at the end of the measurement."""
    fill_us: float
    """Microseconds a group to fill the buffer."""
    cost_us: float
    """Microseconds a group in steady state: median over the rounds."""
    spread_us: float
    """Largest minus smallest round."""
    triggers: float
    """The cost in guarded `transitions` triggers, measured around each round, which noise does not change."""


def configuration(sampler: str, buffer: int) -> dict[str, object]:
    """A run whose buffer holds `buffer` groups, rounded up to whole batches."""
    batches = max(1, -(-buffer // N))
    window = {"in_order": "max_lookahead_versions"}.get(sampler, "max_staleness_versions")
    span = 2 if sampler == "windowed" else batches - 1
    return {
        "grpo": {"num_prompts_per_step": N, "num_generations_per_prompt": 2},
        "async_rl": {"sampler": {"name": sampler, window: span}, "max_buffered_rollouts": batches * N},
    }


class Driver:
    """Answers the core's effects in random order."""

    def __init__(self, sampler: str, buffer: int) -> None:
        """Fill the buffer; `fill_s` is the core's time for that."""
        config = parse_config(configuration(sampler, buffer))
        self.core = Core(set_up(config, num_prompts=1_000_000_000))
        self.random = random.Random(0)
        self.running: list[Attempt] = []
        self.spent_s = 0.0
        self.handle(self.timed(Begin()))
        self.commit(len(self.running))
        self.fill_s = self.spent_s

    def timed(self, event: object) -> tuple[Effect, ...]:
        """Apply one event on the clock."""
        began = time.process_time()
        effects = self.core.apply(event)  # type: ignore[arg-type]
        self.spent_s += time.process_time() - began
        return effects

    def handle(self, effects: tuple[Effect, ...]) -> None:
        self.running += [effect.attempt for effect in effects if isinstance(effect, StartRollout)]

    def commit(self, groups: int) -> None:
        """This many of the oldest rollouts finish, in random order."""
        finished, self.running = self.running[:groups], self.running[groups:]
        for start in range(0, groups, NEIGHBOURS):
            block = finished[start : start + NEIGHBOURS]
            self.random.shuffle(block)
            finished[start : start + NEIGHBOURS] = block
        events = [GroupFinished(attempt, zero_variance=False) for attempt in finished]
        apply, handle = self.core.apply, self.handle
        began = time.process_time()
        answers = [apply(event) for event in events]
        self.spent_s += time.process_time() - began
        for effects in answers:
            if effects:
                handle(effects)

    def step(self) -> None:
        """The step in training closes, and the groups dispatched then finish."""
        core = self.core
        self.handle(self.timed(ChunkTrained(core.book.next_chunk - 1)))
        self.handle(self.timed(StepFinished(core.state.trainer.version)))
        self.handle(self.timed(SyncFinished(core.state.trainer.version)))
        self.commit(len(self.running))

    def left(self) -> int:
        """Groups that have left the buffer so far."""
        sheet = self.core.state.sheet
        return sheet.trained + sheet.evicted + sheet.aborted


def measure(sampler: str, buffer: int, rounds: int) -> Row:
    """Fill a buffer and run steps; one round is at least 1,280 groups, and a whole window under windowed."""
    driver = Driver(sampler, buffer)
    steps = 3 if sampler == "windowed" and buffer > 10_000 else 21
    costs, triggers = [], []
    for _ in range(rounds):
        yardstick_us = trigger_us()
        before, driver.spent_s = driver.left(), 0.0
        for _ in range(steps):
            driver.step()
        costs.append(driver.spent_s / (driver.left() - before) * 1e6)
        triggers.append(costs[-1] / ((yardstick_us + trigger_us()) / 2))
    state = driver.core.state
    classes = sum(len(page) for counts in (state.ready, state.running) for page in counts)
    capacity = driver.core.limits.max_buffered
    fill_us, cost_us = driver.fill_s / capacity * 1e6, statistics.median(costs)
    spread_us = max(costs) - min(costs)
    return Row(sampler, capacity, classes, fill_us, cost_us, spread_us, statistics.median(triggers))


def trigger_us() -> float:
    """Microseconds of one guarded `transitions` trigger, the yardstick for how fast the machine is now."""
    drive, trainer, costs = Drive((TRAINER,)), Trainer(), []
    for _ in range(5):
        began = time.process_time()
        for _ in range(2_000):
            drive(TRAINER, "train_chunk", trainer, TrainerContext(1))
        costs.append((time.process_time() - began) / 2_000 * 1e6)
    return statistics.median(costs)


def main() -> None:
    """Print the table; `--json FILE` writes it too."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="groups in the buffer")
    parser.add_argument("--samplers", nargs="+", default=SAMPLERS, choices=SAMPLERS)
    parser.add_argument("--rounds", type=int, default=7, help="rounds a measurement; the median counts")
    parser.add_argument("--json", help="write the rows to this file")
    options = parser.parse_args()
    rows = []
    print(f"control cost per group, N = {N}, median of {options.rounds} rounds")
    print("sampler         buffer  classes  fill µs  µs/group  spread  triggers   × 64")
    for sampler in options.samplers:
        base = None
        for buffer in options.sizes:
            row = measure(sampler, buffer, options.rounds)
            gc.collect()
            base = base or row.triggers
            rows.append(row)
            print(
                f"{row.sampler:12} {row.buffer:9,} {row.classes:8,} {row.fill_us:8.1f} {row.cost_us:9.1f} "
                f"{row.spread_us:7.1f} {row.triggers:9.2f} {row.triggers / base:6.2f}",
                flush=True,
            )
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory {peak_mb:,.0f} MB")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump([row._asdict() for row in rows], file, indent=1)


if __name__ == "__main__":
    main()
