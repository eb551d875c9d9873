"""What a seed draws: the configuration of a run, the faults that strike it, and when.

plan = drawn(7)
plan.shape.overrides(model)   what the run is started with
plan.strikes                  one to three, in the order of their moments
"""

import random
from dataclasses import dataclass
from enum import StrEnum
from itertools import product
from pathlib import Path

from runtime.launch.supervision.roles import Role
from tests.chaos.cells import DRIVER
from tests.chaos.live import Phase

STEPS = 12
"""Of every run."""
SIBLINGS = 8
PROBE_S = 15.0
"""Above any pause that is drawn, and what a process may be away on a busy machine."""


class Harm(StrEnum):
    """What is done."""

    KILL = "kill -9"
    STOP = "SIGSTOP for ever"
    PAUSE = "SIGSTOP for a while"
    BLOCK = "SIGSTOP within load_weights"
    TEAR = "newest checkpoint damaged, then kill -9"
    FULL = "full disk"
    READ_ONLY = "checkpoints read-only"


class Decoding(StrEnum):
    """How tokens are drawn."""

    GREEDY = "greedy"
    SEEDED = "seeded"
    FREE = "free"


@dataclass(frozen=True, slots=True)
class Moment:
    """After a step's line and a delay, or in a call of a phase after that line. Step -1: before the first."""

    step: int
    delay_s: float
    phase: Phase | None

    def __str__(self) -> str:
        if self.step < 0:
            return f"{self.delay_s:.1f} s after the run began to load"
        if self.phase is not None:
            return f"in {self.phase} after step {self.step}"
        return f"{self.delay_s:.1f} s after step {self.step}"


@dataclass(frozen=True, slots=True)
class Strike:
    """One fault."""

    harm: Harm
    process: str
    """A role, or the driver. It gets the signal; a full disk and a read-only directory are everybody's."""
    moment: Moment
    seconds: float
    """How long it lasts, if it passes."""

    def __str__(self) -> str:
        lasts = f" for {self.seconds:.1f} s" if self.harm in (Harm.PAUSE, Harm.FULL, Harm.READ_ONLY) else ""
        what = {Harm.PAUSE: "SIGSTOP", Harm.FULL: "full disk", Harm.READ_ONLY: "checkpoints read-only"}
        whose = "" if self.harm in (Harm.FULL, Harm.READ_ONLY) else f" {self.process}"
        return f"{what.get(self.harm, self.harm)}{whose}{lasts}, {self.moment}"


@dataclass(frozen=True, slots=True)
class Shape:
    """A run's configuration."""

    decoding: Decoding
    sampler: str
    lag: int
    """Lookahead or staleness, as the sampler has it."""
    groups: int
    workers: int
    every_steps: int
    seed: int

    def __str__(self) -> str:
        return (
            f"{self.sampler} {self.lag}, {self.decoding}, {self.groups} × {SIBLINGS}, "
            f"{self.workers} worker{'s' * (self.workers > 1)}, checkpoints every {self.every_steps}"
        )

    @property
    def is_exact(self) -> bool:
        """Faults may not move a bit of the final weights."""
        return self.decoding is not Decoding.FREE

    @property
    def same_weights(self) -> str:
        """Equal for those whose weights must be equal: neither workers nor checkpoints may matter."""
        return f"{self.decoding} decoding, {self.groups} groups, seed {self.seed}"

    def overrides(self, model: Path) -> dict[str, object]:
        """Settings over those of `SMALL`, for a model directory."""
        lag = "max_lookahead_versions" if self.sampler == "in_order" else "max_staleness_versions"
        common: dict[str, object] = {
            "policy.model_name": model,
            "grpo.max_num_steps": STEPS,
            "grpo.num_prompts_per_step": self.groups,
            "async_rl.sampler": f"{{name: {self.sampler}, {lag}: {self.lag}}}",
            "async_rl.rollout_failure.backoff_base_s": 0.2,
            "cluster.num_generation_workers": self.workers,
            "cluster.frozen_timeout_s": PROBE_S,
            "cluster.probe_timeout_s": PROBE_S,
            "cluster.probe_interval_s": 1,
            "checkpointing.every_steps": self.every_steps,
            "data.delay": "{median_s: 0.3, sigma: 0.3, max_s: 1.0}",
            "data.validation_size": 0,
            "seed": self.seed,
            "data.seed": self.seed,
            "optimizer.lr": 0.001,
            "trace.flush_interval_s": 0.05,
            "logger.plot": "false",
        }
        if self.sampler == "weight_fifo":
            common["async_rl.rollout_failure.max_consecutive_dropped_prompts"] = 0  # it may lose no group
        if self.decoding is Decoding.FREE:
            return common
        exact = {
            # One group is decoded at a time, so its bits do not depend on which others a retry is sent with.
            "generation.engine.max_batch_sequences": SIBLINGS,
            # A step that lost a group would be another step: the run stops instead, and is resumed.
            "async_rl.rollout_failure.min_step_batch_fraction": 1.0,
            # Greedy siblings are equal and have no advantage: the bonus makes every token matter.
            "loss_fn.entropy_coefficient": 0.02,
        }
        return common | exact | ({"generation.top_k": 1} if self.decoding is Decoding.GREEDY else {})


@dataclass(frozen=True, slots=True)
class Plan:
    """A seed's run."""

    seed: int
    shape: Shape
    strikes: tuple[Strike, ...]


NEEDED = (Role.TRAINER, Role.CONTROLLER, Role.RAYLET, Role.RAY_CLIENT)
"""The death of any of these restarts the run."""
PROCESSES = (DRIVER, *map(str, Role))


def drawn(seed: int) -> Plan:
    """The plan of a seed. First strikes go through all harms of all processes, before one comes again."""
    chance = random.Random(f"chaos {seed}")
    deck = [
        *product((Harm.KILL, Harm.STOP, Harm.PAUSE), PROCESSES),
        (Harm.BLOCK, str(Role.GENERATION)),
        *product((Harm.FULL, Harm.READ_ONLY), ("",)),
        *product((Harm.TEAR,), (DRIVER, *map(str, NEEDED))),
    ]
    random.Random("deck").shuffle(deck)
    number = chance.choices((1, 2, 3), (5, 3, 2))[0]
    cards = [deck[seed % len(deck)], *chance.choices(deck, k=number - 1)]
    strikes = sorted((_strike(chance, *card) for card in cards), key=lambda strike: strike.moment.step)
    return Plan(seed, _shape(chance, seed), tuple(strikes))


def _strike(chance: random.Random, harm: Harm, process: str) -> Strike:
    phases = [None, None, None, Phase.GENERATION, Phase.TRAINING, Phase.SYNC, Phase.CHECKPOINT]
    phase = Phase.SYNC if harm is Harm.BLOCK else chance.choice(phases)
    if phase is not None or harm is Harm.TEAR:
        step = chance.randrange(STEPS - 4)  # the call is still to come, and the checkpoint
    else:
        step = chance.randrange(-1, STEPS if harm is Harm.KILL else STEPS - 2)
    delay_s = round(chance.uniform(0.0, 1.5 if step >= 0 else 4.0), 1)
    return Strike(harm, process, Moment(step, delay_s, phase), round(chance.uniform(2.0, 8.0), 1))


def _shape(chance: random.Random, seed: int) -> Shape:
    exact = (Decoding.GREEDY, Decoding.SEEDED)
    decoding = Decoding.FREE if seed % 3 == 2 else exact[seed % 3]
    sampler = "in_order" if decoding in exact else chance.choice(("in_order", "ready_first", "windowed", "weight_fifo"))
    return Shape(
        decoding=decoding,
        sampler=sampler,
        lag=0 if decoding in exact else chance.randint(0, 2),
        groups=chance.choice((2, 4)),
        workers=chance.choice((1, 1, 2)),
        every_steps=chance.randint(1, 4),
        seed=chance.randint(0, 1) if decoding in exact else seed,
    )
