"""The production core at the sizes of a real run: N up to 64, thousands of groups, losses and crashes at any time.

Small worlds are gone through by the checker and by `test_core_properties`; here it is about what only shows with many:
pages that split, blocks of dispatch numbers, ledgers of several open steps. EVENSTEP_EXAMPLES tries more.
"""

import json
import random
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fsm.config.setup import set_up
from fsm.core import Core
from fsm.effects import AbortRollout, ClearRows, Effect, StartRollout
from fsm.errors import BelowFloor
from fsm.events import (
    Attempt,
    Begin,
    ChunkTrained,
    ClaimUnreadable,
    Event,
    FailureKind,
    GroupFailed,
    GroupFinished,
    StepFinished,
    SyncFinished,
)
from fsm.groups.invariants import check_deep
from fsm.machines.trainer import TrainerState
from fsm.snapshot import restore, snapshot
from fsm.state import is_over
from tests.fsm.helpers import config_of, examples

BATCHES = 40


class Fleet:
    """Workers and trainer of one run: it answers for the attempts that the core has started."""

    def __init__(self, config: Any, num_prompts: int) -> None:
        self.setup = set_up(config, num_prompts)
        self.core = Core(self.setup)
        self.running: dict[int, Attempt] = {}
        self.trained: list[int] = []
        self.crashes = 0
        self.apply(Begin())

    def apply(self, event: Event) -> None:
        """One event, and what its effects mean to the fleet."""
        self._carry_out(self.core.apply(event))

    def _carry_out(self, effects: tuple[Effect, ...]) -> None:
        for effect in effects:
            if isinstance(effect, StartRollout):
                self.running[effect.attempt.prompt] = effect.attempt
            elif isinstance(effect, AbortRollout):
                del self.running[effect.attempt.prompt]
            elif isinstance(effect, ClearRows) and effect.why == "trained":
                self.trained += effect.prompts

    def answer(self, what: str, prompt: int) -> None:
        """The attempt of a prompt ends."""
        attempt = self.running.pop(prompt)
        if what == "fail":
            self.apply(GroupFailed(attempt, FailureKind.INFRA, "lost contact"))
        else:
            self.apply(GroupFinished(attempt, zero_variance=what == "filter"))

    def train(self) -> bool:
        """The trainer reports; False where it is not busy."""
        core, version = self.core, self.core.state.trainer.version
        match core.state.trainer.status:
            case TrainerState.TRAINING:
                self.apply(ChunkTrained(core.book.next_chunk - 1))
            case TrainerState.FINISHING:
                self.apply(StepFinished(version))
            case TrainerState.SYNCING:
                self.apply(SyncFinished(version))
            case TrainerState.ASSEMBLING:
                return False
        return True

    def crash(self) -> None:
        """The process dies and resumes from a checkpoint of that moment (C2)."""
        self.crashes += 1
        saved = json.loads(json.dumps(snapshot(self.core)))
        self.core = restore(self.setup, saved, incarnation=self.crashes)
        self.running = {}
        self.apply(Begin())


@st.composite
def runs(draw: st.DrawFn) -> tuple[Any, int]:
    """A configuration of a real size, and the prompts of its data."""
    sampler = draw(st.sampled_from(["in_order", "ready_first", "windowed", "weight_fifo"]))
    size = draw(st.sampled_from([16, 33, 64]))
    loses = sampler != "weight_fifo"
    filters = loses and draw(st.booleans())
    failure = {
        "on_dropped_prompt": "replace" if filters or (loses and draw(st.booleans())) else "shrink",
        "max_replacement_attempts": draw(st.integers(1, 16)),
        "replacement_reserve_prompts": draw(st.integers(1, 2 * size)),
        "min_step_batch_fraction": 0.01,
        "max_infra_attempts_per_prompt": draw(st.integers(1, 3)) if loses else 1_000,
        "max_consecutive_dropped_prompts": 100_000 if loses else 0,
    }
    config = config_of(
        sampler,
        draw(st.integers(0, 3)),
        size=size,
        grpo={"use_dynamic_sampling": filters},
        failure=failure,
        min_groups_for_streaming_train=draw(st.sampled_from([1, 7, size])),
        max_inflight_prompts=draw(st.sampled_from([None, size // 2, 3 * size])),
    )
    return config, BATCHES * size + draw(st.integers(0, size - 1))


ANSWERS = ("commit", "commit", "commit", "commit", "filter", "fail", "unreadable", "train", "train", "crash")


def live(fleet: Fleet, chance: random.Random, turns: int) -> None:
    """That many turns of the world, several answers each."""
    for _ in range(turns):
        what = chance.choice(ANSWERS)
        if is_over(fleet.core.state):
            return
        if what == "crash" and chance.random() < 0.1:
            fleet.crash()
        elif what == "train":
            fleet.train()
        elif what == "unreadable" and fleet.core.book.roster.chunk and fleet.core.limits.max_consecutive_dropped:
            fleet.apply(ClaimUnreadable(chance.choice(list(fleet.core.book.roster.chunk)), "torn"))
        elif what in ("commit", "filter", "fail"):
            for _ in range(chance.randint(1, 40)):
                if fleet.running and not is_over(fleet.core.state):
                    fleet.answer(what, chance.choice(list(fleet.running)))


def end_well(fleet: Fleet, chance: random.Random) -> None:
    """All goes well from here on."""
    for _ in range(100_000):
        if is_over(fleet.core.state):
            return
        if fleet.running and (chance.random() < 0.9 or not fleet.train()):
            fleet.answer("commit", chance.choice(list(fleet.running)))
        elif not fleet.running and not fleet.train():
            raise AssertionError(f"nothing can happen any more: {fleet.core.waits_for()}")
    raise AssertionError(f"the run does not end: {fleet.core.waits_for()}")


@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(runs(), st.integers(0, 1_000_000))
def test_x1_l5_x4_c2_a_run_of_thousands_of_groups_ends_even_with_every_prompt_in_one_place(run, seed):
    config, num_prompts = run
    fleet, chance = Fleet(config, num_prompts), random.Random(seed)
    for _ in range(6):
        live(fleet, chance, turns=40)
        check_deep(fleet.core.state, fleet.core.limits, fleet.core.book.roster)
    end_well(fleet, chance)

    core = fleet.core
    check_deep(core.state, core.limits, core.book.roster)
    size, sheet = core.limits.size, core.state.sheet
    assert all(step.selected + step.charged + step.short == size for step in core.book.closed)
    assert [step.step for step in core.book.closed] == list(range(len(core.book.closed)))
    assert core.limits.closes_short or not any(step.short for step in core.book.closed)
    assert len(fleet.trained) == len(set(fleet.trained)) == sheet.trained
    assert sheet.trained == sum(step.selected for step in core.book.closed)
    if core.error is not None:
        assert isinstance(core.error, BelowFloor), core.error
    else:
        assert sheet.pulled >= num_prompts - size, "the data is used up, but for a trailing batch"
