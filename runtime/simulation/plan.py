"""From a seed to a run: its configuration, its delays, and which faults strike how often until when.

Each seed draws a few kinds of faults, and how many of the others' chances they take, so that rare ones meet each other
too (swarm testing, Groce et al. 2012).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from random import Random
from typing import Any

from fsm.config.parse import parse_config
from fsm.config.setup import Setup, set_up
from fsm.errors import ConfigError, EvenstepError
from runtime.checkpoints.origin import Origin
from runtime.control.messages import RunPlan, Start
from runtime.naming import Names
from runtime.settings import Settings


class Fault(StrEnum):
    """What goes wrong. The value is its name in tables and reports."""

    INFRA = "attempt fails (infra)"
    DATA = "attempt fails (data)"
    VERDICT = "verifier raises"
    HANG = "attempt is never answered"
    TOO_LATE = "attempt is answered after its deadline"
    TWICE = "answer comes twice"
    EARLIER_LIFE = "answer to an earlier controller"
    WORKER_DIES = "worker dies"
    WORKER_DIES_LOADING = "worker dies in a load"
    WORKER_DIES_AGAIN = "worker dies as it restarts"
    ANSWER_AFTER_DEATH = "answer of a worker that died"
    EVALUATION_REPEATED = "part of a validation is repeated"
    ROW_UNREADABLE = "row is unreadable"
    STORE_LOST = "group store loses every row"
    TRAINER_SLOW = "trainer is slow"
    TRAINER_DIES = "trainer dies"
    SYNC_SLOW = "weight sync is slow"
    PUBLISH_FAILS = "publishing fails"
    NO_TOKENS = "step without a trained token"
    DISK_FULL = "checkpoint is refused"
    DISK_SLOW = "checkpoint is written slowly"
    CRASH = "controller crashes"
    INTERRUPT = "run is interrupted"


SCHEDULED = (Fault.WORKER_DIES, Fault.STORE_LOST, Fault.CRASH, Fault.INTERRUPT)
"""These strike at moments; the others at what they happen to."""


class ActorGone(EvenstepError):
    """A simulated actor whose loss ends the run, which resumes from a checkpoint."""


SAMPLERS = ("in_order", "ready_first", "windowed", "weight_fifo")
WINDOW = {"in_order": "max_lookahead_versions"}
"""The key of a sampler's window; of the others it is this one:"""
STALENESS = "max_staleness_versions"
ROLLOUT_S, CHUNK_S, STEP_S, SYNC_S, COPY_S, SAVE_S, RESTART_S = 20.0, 8.0, 4.0, 3.0, 1.0, 6.0, 40.0
"""Usual durations, in seconds."""
PACES = ("alike", "coarse", "grid", "spread")
"""How durations differ: not at all; by all or nothing, so that most things happen at once; by multiples; or widely."""
SLOWEST = 6.0
"""Nothing takes longer than so many times its usual duration."""
LIVES_MAX = 40
"""Most controllers of one run."""


@dataclass(frozen=True, slots=True)
class SimulationPlan:
    """One run, all but what its dice will show."""

    seed: int
    sampler: str
    run: RunPlan
    setup: Setup
    pace: str
    rates: Mapping[Fault, float]
    """The chance that a fault strikes at each thing that it can happen to."""
    moments: tuple[tuple[float, Fault], ...]
    """Faults that strike at a time, in seconds after the start."""
    faults_until_s: float
    """No fault strikes later, so the run must end."""
    flat_share: float = 0.0
    """Share of groups whose rewards are all equal."""
    resumes_when_stopped: bool = False
    """A run that a rule stopped is resumed once."""

    @property
    def settings(self) -> Settings:
        return self.run.settings

    @property
    def longest_s(self) -> float:
        """Longer than a run can take where no fault strikes, if everything comes after everything."""
        failure, limits = self.settings.async_rl.rollout_failure, self.setup.limits
        prompts = limits.prompts_per_epoch * limits.epochs
        attempts = failure.max_infra_attempts_per_prompt + failure.max_data_attempts_per_prompt
        attempt_s = SLOWEST * ROLLOUT_S + failure.max_backoff_s + (failure.rollout_timeout_s or 0.0)
        step_s = SLOWEST * (2 * CHUNK_S * limits.size + STEP_S + SYNC_S + COPY_S + SAVE_S + ROLLOUT_S)
        stall_s = 2 * self.settings.async_rl.stall_watchdog.stall_timeout_s
        return prompts * attempts * attempt_s + (prompts / limits.size + 1) * step_s + SLOWEST * RESTART_S + stall_s


def plan_of(seed: int, sampler: str | None = None) -> SimulationPlan:
    """The run of a seed; under a given sampler, or one that the seed draws too."""
    random = Random(seed)
    drawn = random.choice(SAMPLERS)
    sampler = sampler or drawn
    while True:
        blocks, prompts = _configuration(random, sampler)
        try:
            settings = parse_config(blocks, model=Settings)
            setup = set_up(settings, prompts)
        except ConfigError:
            continue  # keys that do not fit together
        break
    return _with_faults(seed, sampler, random, settings, setup)


def run_plan(settings: Settings, num_prompts: int) -> RunPlan:
    """What a controller is given; no file of it is ever read or written."""
    start = Start(num_prompts, {"validation": 2}, Origin("simulated", {}, {}), None)
    return RunPlan(settings, Names("simulated", "simulation"), Path(), Path("simulated"), start)


def _with_faults(seed: int, sampler: str, random: Random, settings: Settings, setup: Setup) -> SimulationPlan:
    limits = setup.limits
    usual_s = (ROLLOUT_S + CHUNK_S + STEP_S + SYNC_S) * max(1, limits.prompts_per_epoch * limits.epochs // limits.size)
    chance = random.choice((0.0, 0.02, 0.1, 0.3))
    possible = set(Fault) - set(SCHEDULED)
    if settings.async_rl.rollout_failure.rollout_timeout_s is None:
        possible -= {Fault.TOO_LATE}
        possible -= {Fault.HANG} if settings.async_rl.stall_watchdog.stall_action == "warn" else set()
    rates = {fault: chance for fault in Fault if fault in possible and random.random() < 0.4}
    for fault in {Fault.TRAINER_DIES, Fault.PUBLISH_FAILS, Fault.WORKER_DIES_AGAIN, Fault.HANG} & rates.keys():
        rates[fault] = min(chance, 0.1)
    if rates.get(Fault.ANSWER_AFTER_DEATH):
        rates[Fault.ANSWER_AFTER_DEATH] = 0.5  # few workers die while an answer is on its way
    moments = [
        (random.uniform(0.0, 1.5 * usual_s), fault)
        for fault in SCHEDULED
        if random.random() < 0.5
        for _ in range(random.randint(1, 3))
    ]
    return SimulationPlan(
        seed,
        sampler,
        run_plan(settings, limits.prompts_per_epoch),
        setup,
        random.choice(PACES),
        rates,
        tuple(sorted(moments)),
        faults_until_s=3.0 * usual_s,
        flat_share=random.choice((0.0, 0.1, 0.3)),
        resumes_when_stopped=random.random() < 0.5,
    )


def _configuration(random: Random, sampler: str) -> tuple[dict[str, Any], int]:
    """The blocks of a configuration, and how many prompts an epoch has. Keys may not fit together."""
    size = random.randint(1, 5)
    epochs = random.choice((1, 1, 2))
    steps = random.randint(1, 8)
    prompts = size * steps // epochs + random.choice((0, 0, 1, size - 1))
    flag = random.random
    block: dict[str, Any] = {"name": sampler, WINDOW.get(sampler, STALENESS): random.randint(0, 2)}
    if sampler == "windowed":
        block["sample_freshest_first"] = flag() < 0.5
    timeout_s = random.choice((None, 1.5 * ROLLOUT_S, 3.0 * ROLLOUT_S))
    grpo: dict[str, Any] = {
        "num_prompts_per_step": size,
        "num_generations_per_prompt": 2,
        "max_num_epochs": epochs,
        "max_num_steps": random.choice((None, None, max(1, steps - 1))),
        "use_dynamic_sampling": flag() < 0.4,
    }
    if grpo["use_dynamic_sampling"] and flag() < 0.3:
        grpo["dynamic_sampling_max_gen_batches"] = 2
    failure = {
        "on_dropped_prompt": random.choice(("shrink", "replace")),
        "max_replacement_attempts": random.randint(1, 3),
        "replacement_reserve_prompts": random.randint(1, size),
        "min_step_batch_fraction": random.choice((0.01, 0.01, 0.5, 1.0)),
        "max_infra_attempts_per_prompt": random.choice((1, 2, 3, 5, 10, 20)),
        "max_data_attempts_per_prompt": random.choice((1, 2, 3, 10, 20)),
        "max_consecutive_dropped_prompts": random.choice((0, 2, 100, 100)),
        "max_skipped_prompts": random.choice((0, 2, 100, 100)),
        "backoff_base_s": random.choice((0.0, 1.0, 15.0)),
        "max_backoff_s": random.choice((20.0, 60.0)),
        "rollout_timeout_s": timeout_s,
    }
    watchdog = {
        "stall_timeout_s": random.choice((120.0, 1200.0)),
        "stall_action": random.choice(("warn", "abort")),
        "interval_s": 60.0,
    }
    required = size * (block[WINDOW.get(sampler, STALENESS)] + 1)
    async_rl = {
        "sampler": block,
        "min_groups_for_streaming_train": random.choice((None, 1, max(1, size - 1))),
        "max_inflight_prompts": random.choice((None, None, random.randint(1, 2 * size))),
        "max_buffered_rollouts": random.choice((None, None, required + random.randint(0, size))),
        "rollout_failure": failure,
        "stall_watchdog": watchdog,
    }
    blocks = {
        "grpo": grpo,
        "async_rl": async_rl,
        "cluster": {"num_generation_workers": random.randint(1, 3)},
        "checkpointing": {"every_steps": random.choice((0, 1, 1, 2, 3)), "enabled": flag() < 0.9},
        "validation": {"every_steps": random.choice((0, 1, 2))},
        "loss_fn": {"stop_after_steps_without_tokens": random.choice((None, 2))},
    }
    return blocks, max(1, prompts)
