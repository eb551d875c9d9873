"""The world of "two losses during a chunk": ready_first, any order of commits, losses and trainer reports.

`Charging` checks after every event what the review asked for: no step is charged past its selected groups, each
closes with selected + charged = N, and what is charged in all is what was lost in all. `as_it_was` puts the charge
rule back to what the review found.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import fsm.core
from fsm.config.setup import set_up
from fsm.core import Core
from fsm.errors import BelowFloor
from fsm.events import FailureKind
from fsm.groups.invariants import check
from fsm.machines.table import C, Table, V, enabled, fire, with_status
from fsm.machines.trainer import TrainerState
from fsm.rules import changes, losses, on_event
from fsm.rules.laws import Laws, laws_of
from fsm.rules.own_moves import settle
from fsm.state import GroupClass, State, charged, is_over
from fsm.values import pages
from specs.scenarios.world import World
from tests.fsm.helpers import config_of, go_on, is_failing, quick_core, run_to_the_end, running_prompts, step_on

SHAPES = [(size, streaming) for size in range(2, 7) for streaming in range(1, size + 1)]
"""Every N from 2 to 6 with every streaming minimum."""

LOSSES_ARE_NO_END = {
    "max_infra_attempts_per_prompt": 1,
    "max_consecutive_dropped_prompts": 1_000,
    "min_step_batch_fraction": 0.01,
}

tried: set[tuple[int, int]] = set()
"""The shapes that a run was begun with."""


class Charging(RuleBasedStateMachine):
    """One run under ready_first without replacement: a lost group shrinks a step."""

    world: World
    make_core = staticmethod(quick_core)

    @initialize(shape=st.sampled_from(SHAPES), window=st.integers(0, 2), batches=st.integers(1, 3))
    def begin(self, shape: tuple[int, int], window: int, batches: int) -> None:
        size, streaming = shape
        tried.add(shape)
        config = config_of(
            "ready_first",
            window,
            size=size,
            min_groups_for_streaming_train=streaming,
            failure=LOSSES_ARE_NO_END,
        )
        self.world = World(config, batches * size, make_core=self.make_core)

    @rule(what=st.sampled_from(["commit", "lose", "unreadable", "trainer"]), index=st.integers(0, 17))
    def happens(self, what: str, index: int) -> None:
        """One event; where this one cannot be now, the next that goes well."""
        world = self.world
        if world.over:
            return
        running, chunk = running_prompts(world), list(world.core.book.roster.chunk)
        if what == "commit" and running:
            world.commit(running[index % len(running)])
        elif what == "lose" and running:
            world.drop(running[index % len(running)], FailureKind.INFRA)
        elif what == "unreadable" and chunk:
            world.claim_failed(chunk[index % len(chunk)])
        elif what != "trainer" or not step_on(world):
            go_on(world)

    @invariant()
    def every_step_is_even_or_can_be(self) -> None:
        if hasattr(self, "world"):
            check_even(self.world.core)

    def teardown(self) -> None:
        if is_failing() or not hasattr(self, "world"):
            return
        run_to_the_end(self.world, events=1_000)
        check_even(self.world.core)
        if self.world.status == "stopped":
            assert isinstance(self.world.core.error, BelowFloor), "a step that lost every group has nothing to train"
        else:
            sheet = self.world.core.state.sheet
            assert sheet.trained + sheet.dropped == sheet.pulled == self.world.core.limits.prompts_per_epoch


def check_even(core: Core) -> None:
    """What the review asked for, of any state."""
    size, state = core.limits.size, core.state
    for closed in core.book.closed:
        assert closed.selected + closed.charged == size, f"step {closed.step} closed with {closed} of {size}"
        assert closed.short == 0
    version = state.trainer.version
    lost = charged(state, version)
    assert state.step.selected + lost <= size, (
        f"step {version} has selected {state.step.selected} groups and is shrunk to {size - lost}"
    )
    in_all = sum(closed.charged for closed in core.book.closed)
    in_all += sum(ledger.charged for _, ledger in pages.items(state.ledgers))
    assert in_all == state.sheet.dropped, f"{in_all} charged in all, {state.sheet.dropped} lost"


def charge_the_trainer_s_step(state: State, laws: Laws, group_class: GroupClass) -> int:
    """The charge rule as the review found it: the step that the trainer is at, until it moves on."""
    del laws, group_class
    return state.trainer.version


def fire_whatever_the_guards(table: Table[V, C], event: str, value: V, context: C) -> V:
    """The rules without what stands in the way: a refused event takes its event's first rule all the same."""
    rule = enabled(table, event, value, context)
    if rule is not None:
        return fire(table, event, value, context)
    first = next(each for each in table.rules if each.event == event)
    return with_status(first.update(value, context), first.dest)


class Unguarded(Charging):
    """The same property over a core that no guard and no invariant of its own stops."""

    @staticmethod
    def make_core(setup: Any, observer: Any = None) -> Core:
        return Core(setup, observer=observer, fire=fire_whatever_the_guards)


@contextmanager
def as_it_was(*, guarded: bool) -> Iterator[None]:
    """The charge rule put back; not `guarded`: the core's own assertions silenced as well."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(losses, "ask_charge", charge_the_trainer_s_step)
        if not guarded:
            patch.setattr(fsm.core, "check", _silent)
            patch.setattr("specs.scenarios.world.check_deep", _silent)
        yield


def _silent(*_: Any) -> None:
    """Finds nothing."""


def every_order(size: int, streaming: int, window: int, batches: int) -> int:
    """Every order of commits, losses and trainer reports of a small run. Returns how many states there are.

    Groups that no rule can tell apart are one choice, which is what the core's counts are for.
    """
    config = config_of(
        "ready_first", window, size=size, min_groups_for_streaming_train=streaming, failure=LOSSES_ARE_NO_END
    )
    setup = set_up(config, batches * size)
    laws = laws_of(setup.limits, setup.sampler, setup.sampler_name, fire)
    first, _ = settle(on_event.begin(laws), laws)
    seen, todo = {first}, [first]
    while todo:
        state = todo.pop()
        for after, done in _answers(state, laws):
            settled, own = settle(after, laws)
            check(settled, setup.limits)
            _even([*done, *own], state, settled, size)
            if settled not in seen:
                seen.add(settled)
                todo.append(settled)
    return len(seen)


def _answers(state: State, laws: Laws) -> Iterator[on_event.Done]:
    """All that the world can answer: each running class finishes or is lost, the trainer reports, S5."""
    if is_over(state):
        return
    for group_class, _ in pages.items(state.running):
        yield on_event.commit(state, laws, group_class, 0)
        yield on_event.give_up(state, laws, group_class, FailureKind.INFRA, "lost")
    for group_class, _ in pages.items(state.chunk):
        yield on_event.fail_claim(state, laws, group_class, "unreadable")
    match state.trainer.status:
        case TrainerState.TRAINING:
            yield on_event.finish_chunk(state, laws)
        case TrainerState.FINISHING:
            yield on_event.close_step(state, laws)
        case TrainerState.SYNCING:
            yield on_event.finish_sync(state, laws)
        case TrainerState.ASSEMBLING:
            assert state.sheet.in_flight, f"deadlock: {state}"


def _even(done: list[changes.Change], before: State, after: State, size: int) -> None:
    """The property of `Charging`, said of one transition."""
    settled = 0
    for move in done:
        if isinstance(move, changes.StepClosed):
            assert move.selected + move.charged == size, f"{move} of {size}"
            assert move.short == 0
            settled += move.charged
    charges = [sum(ledger.charged for _, ledger in pages.items(state.ledgers)) for state in (before, after)]
    assert charges[1] + settled - charges[0] == after.sheet.dropped - before.sheet.dropped, "charged is what is lost"
