"""What the tests of the runtime's bookkeeping share: runs of the real core without Ray, and groups with data."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np

from fsm.config.blocks import RunConfig
from fsm.config.parse import parse_config
from fsm.core import AppliedEvent, Core
from fsm.events import FailureKind
from runtime.groups import GroupReceipt, Rollout, RolloutGroup
from runtime.tasks.base import Completion
from specs.scenarios.world import World
from tests.fsm.helpers import running_prompts, step_on

WINDOW_KEY = {"in_order": "max_lookahead_versions"}


def config_of(sampler: str = "in_order", window: int = 1, **changes: Any) -> RunConfig:
    """A small run with every way to lose a group: dynamic sampling where the sampler takes it, and drop budgets."""
    losses = sampler != "weight_fifo"
    document: dict[str, Any] = {
        "grpo": {"num_prompts_per_step": 2, "num_generations_per_prompt": 2, "use_dynamic_sampling": losses},
        "async_rl": {
            "sampler": {"name": sampler, WINDOW_KEY.get(sampler, "max_staleness_versions"): window},
            "min_groups_for_streaming_train": 1,
            "rollout_failure": {
                "on_dropped_prompt": "replace" if sampler in ("in_order", "ready_first") else "shrink",
                "min_step_batch_fraction": 0.5,
                "backoff_base_s": 1.0,
                "max_infra_attempts_per_prompt": 2,
                "max_consecutive_dropped_prompts": 100 if losses else 0,
                "max_skipped_prompts": 100 if losses else 0,
            },
        },
    }
    for block, values in changes.items():
        document[block] |= values
    return parse_config(document)


def world_of(
    config: RunConfig, num_prompts: int = 24, observer: Callable[[AppliedEvent, Core], None] = lambda event, core: None
) -> World:
    """A world whose observer is given the core, too."""
    cores: list[Core] = []

    def make_core(*given: Any, **named: Any) -> Core:
        cores.append(Core(*given, **named))
        return cores[-1]

    def observe(transition: AppliedEvent) -> None:
        observer(transition, cores[-1])

    return World(config, num_prompts, observer=observe, make_core=make_core)


def random_moves(world: World, seed: int, moves: int) -> None:
    """Rollouts finish, fail or are filtered, and the trainer reports, in an order that the seed decides."""
    chance = random.Random(seed)
    losses = world.config.grpo.use_dynamic_sampling
    for _ in range(moves):
        if world.over:
            return
        running = running_prompts(world)
        if running and chance.random() < 0.7:
            prompt = chance.choice(running)
            what = chance.random()
            if losses and what < 0.15:
                world.filter(prompt)
            elif losses and what < 0.25:
                world.fail(prompt, chance.choice(list(FailureKind)), 'said "no", twice\n')
            else:
                world.commit(prompt)
        elif not step_on(world):
            world.tick(5.0)


def prompts_with_data(world: World) -> list[int]:
    """Prompts whose groups' data a run still has use for, from the roster itself."""
    roster = world.core.book.roster
    return [group.prompt for group in [*roster.ready_groups(), *roster.chunk.values(), *roster.accumulated]]


def group_of(prompt: int, siblings: int = 2, seed: int = 0) -> RolloutGroup:
    """A group of rollouts of different lengths."""
    chance = np.random.default_rng([seed, prompt])
    rollouts = []
    for _ in range(siblings):
        tokens = int(chance.integers(1, 12))
        mask = chance.random(tokens) < 0.7
        rollouts.append(
            Rollout(
                token_ids=chance.integers(0, 100, tokens, dtype=np.int32),
                loss_mask=mask,
                logprobs=np.where(mask, -chance.random(tokens), 0).astype(np.float32),
                reward=float(chance.random()),
                finished=bool(chance.random() < 0.5),
            )
        )
    return RolloutGroup(prompt, tuple(rollouts), start_weight=prompt % 3, end_weight=prompt % 3 + 1)


def receipt_of(prompt: int, rewards: tuple[float, ...], tokens: tuple[int, ...], **changes: Any) -> GroupReceipt:
    """A receipt; a reward of 1 is correct, and all rollouts are finished."""
    given: dict[str, Any] = {
        "prompt": prompt,
        "worker": "worker-0",
        "start_weight": 0,
        "end_weight": 0,
        "rewards": rewards,
        "correct": tuple(reward == 1 for reward in rewards),
        "completion_tokens": tokens,
        "finished": (True,) * len(rewards),
        "repetition": (0.0,) * len(rewards),
        "generation_s": 0.1,
        "reward_s": 0.0,
    }
    return GroupReceipt(**given | changes)


def said(*turns: str) -> Completion:
    """A rollout whose policy said this, one turn after another."""
    return Completion(turns, tokens=sum(map(len, turns)), finish_reason="stop")
