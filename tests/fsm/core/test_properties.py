"""Random worlds around the core: every rule of section 4 that a run can break, after every single event.

What is checked is in `watching.Watch`, which keeps its own books. EVENSTEP_EXAMPLES=10 tries ten times as many.
"""

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from fsm.config.blocks import RunConfig
from fsm.config.setup import Setup
from fsm.core import Core
from fsm.errors import BelowFloor, BudgetExceeded, SearchExceeded, Stalled
from fsm.events import Begin, FailureKind, GroupRecord
from fsm.machines.trainer import TrainerState
from specs.scenarios.world import World
from tests.fsm.core.watching import Watch
from tests.fsm.helpers import (
    config_of,
    examples,
    go_on,
    is_failing,
    quick_core,
    refused,
    run_to_the_end,
    running_prompts,
    step_on,
)

CUSTOM = "examples.short_first:ShortFirst"
SAMPLERS = ("in_order", "ready_first", "windowed", "weight_fifo", CUSTOM)


@st.composite
def configs(draw: st.DrawFn) -> RunConfig:
    """Any configuration that setup accepts, small."""
    sampler = draw(st.sampled_from(SAMPLERS))
    size, window = draw(st.integers(1, 6)), draw(st.integers(0, 2))
    streaming = draw(st.none() | st.integers(1, size))
    dynamic = sampler != "weight_fifo" and draw(st.booleans())
    replace = sampler != "weight_fifo" and ((dynamic and sampler != "windowed") or draw(st.booleans()))
    required = (streaming or size) if sampler == "windowed" else size * (window + 1)
    budgets = st.just(0) if sampler == "weight_fifo" else st.sampled_from([100, 100, 1, 1, 0])
    failure: dict[str, Any] = {
        "on_dropped_prompt": "replace" if replace else "shrink",
        "max_replacement_attempts": draw(st.integers(1, 2)),
        "replacement_reserve_prompts": draw(st.integers(1, 8)),
        "min_step_batch_fraction": draw(st.sampled_from([0.01, 0.01, 0.5, 1.0])),
        "max_infra_attempts_per_prompt": draw(st.integers(1, 3)),
        "max_data_attempts_per_prompt": draw(st.integers(1, 2)),
        "max_consecutive_dropped_prompts": draw(budgets),
        "max_skipped_prompts": draw(budgets),
        "backoff_base_s": draw(st.sampled_from([0.0, 1.0])),
        "rollout_timeout_s": draw(st.none() | st.just(5.0)),
    }
    grpo: dict[str, Any] = {
        "use_dynamic_sampling": dynamic,
        "dynamic_sampling_max_gen_batches": draw(st.none() | st.integers(1, 2)) if dynamic else None,
        "max_num_epochs": draw(st.integers(1, 2)),
        "max_num_steps": draw(st.none() | st.integers(1, 3)),
    }
    given: dict[str, Any] = {"sample_freshest_first": draw(st.booleans())} if sampler == "windowed" else {}
    if sampler == CUSTOM:
        given["options"] = {"max_staleness_versions": window, "short_tokens": 15}
    return config_of(
        sampler,
        window,
        size=size,
        grpo=grpo,
        failure=failure,
        min_groups_for_streaming_train=streaming,
        max_buffered_rollouts=draw(st.none() | st.integers(required, required + 4)),
        max_inflight_prompts=draw(st.none() | st.integers(1, 8)),
        stall_watchdog={"stall_timeout_s": 60.0, "stall_action": draw(st.sampled_from(["warn", "abort"]))},
        **given,
    )


INDEX = st.integers(0, 40)
"""Picks one of the prompts that the move may name, whatever their number."""

KINDS = st.sampled_from(FailureKind)


class AnyRun(RuleBasedStateMachine):
    """One run over a random configuration; the rules are what the world may do."""

    world: World

    @initialize(config=configs(), batches=st.integers(0, 4), over=st.integers(0, 5), gentle=st.booleans())
    def begin(self, config: RunConfig, batches: int, over: int, gentle: bool) -> None:
        """Of a gentle world's failures each is retried: without a budget one that is not is the end."""
        self.gentle = gentle
        self.watch = Watch(config)
        prompts = batches * config.grpo.num_prompts_per_step + over
        self.world = World(config, prompts, make_core=self.core)

    def core(self, setup: Setup, observer: object = None) -> Core:
        """A core that the watch sees every transition of."""
        made: list[Core] = []
        made.append(quick_core(setup, lambda transition: self.watch.see(made[0], transition)))
        return made[0]

    def running(self) -> list[int]:
        return running_prompts(self.world) if not self.world.over else []

    def one_running(self, index: int) -> int:
        running = self.running()
        return running[index % len(running)]

    def trainer_is_busy(self) -> bool:
        return not self.world.over and self.world.core.state.trainer.status is not TrainerState.ASSEMBLING

    @precondition(lambda self: self.running())
    @rule(index=INDEX, tokens=st.integers(0, 30))
    def commit(self, index: int, tokens: int) -> None:
        prompt = self.one_running(index)
        self.world.commit(prompt, GroupRecord(prompt, tokens, 0.5, 0.5))

    @precondition(lambda self: not self.world.over)
    @rule(events=st.integers(1, 8), newest=st.booleans(), trainer_first=st.booleans())
    def all_goes_well(self, events: int, newest: bool, trainer_first: bool) -> None:
        for _ in range(events):
            if not self.world.over:
                go_on(self.world, newest=newest, trainer_first=trainer_first)

    @precondition(lambda self: self.running())
    @rule(index=INDEX)
    def filter(self, index: int) -> None:
        self.world.filter(self.one_running(index))

    @precondition(lambda self: self.running())
    @rule(index=INDEX, kind=KINDS)
    def fail(self, index: int, kind: FailureKind) -> None:
        prompt = self.one_running(index)
        if not self.gentle or self.is_retried(prompt, kind):
            self.world.fail(prompt, kind)

    def is_retried(self, prompt: int, kind: FailureKind) -> bool:
        failure = self.world.config.async_rl.rollout_failure
        infra = kind is FailureKind.INFRA
        allowed = failure.max_infra_attempts_per_prompt if infra else failure.max_data_attempts_per_prompt
        return self.world.core.book.roster.in_flight[prompt].failures(kind) + 1 < allowed

    @precondition(lambda self: self.running() and not self.gentle)
    @rule(index=INDEX, kind=KINDS)
    def drop(self, index: int, kind: FailureKind) -> None:
        prompt = self.one_running(index)
        while prompt in self.running():
            self.world.fail(prompt, kind)

    @precondition(lambda self: not self.world.over and self.world.core.book.roster.chunk and not self.gentle)
    @rule(index=INDEX)
    def claim_failed(self, index: int) -> None:
        chunk = list(self.world.core.book.roster.chunk)
        self.world.claim_failed(chunk[index % len(chunk)])

    @precondition(lambda self: self.trainer_is_busy())
    @rule()
    def trainer_reports(self) -> None:
        step_on(self.world)

    @precondition(lambda self: not self.world.over)
    @rule(seconds=st.sampled_from([0.0, 1.0, 5.0, 30.0]))
    def tick(self, seconds: float) -> None:
        self.world.tick(seconds)

    @precondition(lambda self: not self.world.over)
    @rule()
    def checkpoint(self) -> None:
        self.world.checkpoint()
        self.watch.checkpoint()

    @precondition(lambda self: self.world.over)
    @rule()
    def refused_at_the_end(self) -> None:
        refused(self.world.core, Begin())

    @rule(anew=st.integers(0, 3))
    def crash(self, anew: int) -> None:
        """At any point, the end included; now and then with no checkpoint to go on from."""
        if self.world.saved is None and anew:
            return
        self.watch.rollback()
        self.world.crash()

    @precondition(lambda self: not self.world.over and self.answered())
    @rule(index=INDEX)
    def late(self, index: int) -> None:
        answered = self.answered()
        self.world.late(answered[index % len(answered)])

    def answered(self) -> list[int]:
        in_flight = self.world.core.book.roster.in_flight
        return [prompt for prompt in self.world.attempts if prompt not in in_flight]

    def teardown(self) -> None:
        """X1 to X4: whatever happened, a run whose rollouts finish from now on comes to its end."""
        if hasattr(self, "world") and not is_failing():
            run_to_the_end(self.world, events=2_000)
            self.check_end()

    def check_end(self) -> None:
        world, config = self.world, self.world.config
        core, sheet = world.core, world.core.state.sheet
        assert sheet.pulled == sum(sheet[1:11]), "X4"
        assert sheet.trained == sum(closed.selected for closed in core.book.closed)
        if world.status == "stopped":
            stops: tuple[type[Exception], ...] = (BudgetExceeded, BelowFloor, SearchExceeded)
            if config.async_rl.stall_watchdog.stall_action == "abort":
                stops = (*stops, Stalled)
            assert isinstance(core.error, stops), core.error
            return
        assert world.status == "completed"
        assert core.error is None
        limits, closed = core.limits, core.book.closed
        if len(closed) == limits.max_steps:
            return
        trailing = limits.prompts_per_epoch % limits.size if limits.skips_trailing else 0
        assert sheet.pulled == limits.epochs * (limits.prompts_per_epoch - trailing), "A5: the data is used up"
        if limits.closes_short:
            assert all(step.short == 0 for step in closed[:-1]), "X1: the last step only"
            assert sheet.queued == sheet.in_flight == 0
            assert sheet.ready + sheet.selected < limits.floor, "X1: left over below the floor only"
        else:
            assert sheet.leftover == sheet.spare < limits.size, "P2: fewer than N spares are left over"


AnyRun.TestCase.settings = settings(
    max_examples=examples(450),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestAnyRunKeepsEveryRuleAfterEveryEvent = AnyRun.TestCase
