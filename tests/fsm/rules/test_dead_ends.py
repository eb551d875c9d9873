"""W2: what is proven never to go on, by the counts alone, and whose answer led there."""

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsm.config.parse import parse_config
from fsm.config.setup import set_up
from fsm.errors import Deadlocked, LimitReached, Stalled
from fsm.events import DeadEndReached, FailureKind
from fsm.machines.table import fire
from fsm.rules.changes import RunCompleted, StepClosed
from fsm.rules.laws import Laws
from fsm.rules.outlook import WHAT_LED_HERE, dead_end, deadlocked, livelocked
from fsm.state import State, is_over
from specs.checker.closing import ANY
from specs.model import CORE, after, canonical
from specs.scenarios.world import World
from tests.fsm.helpers import config_of, examples, go_on, quick_core, refused, running_prompts, step_on, world_of

LOSSY = {"max_infra_attempts_per_prompt": 1, "max_consecutive_dropped_prompts": 99, "min_step_batch_fraction": 0.1}


def lossy(sampler: str, window: int = 0, *, prompts: int = 2, **given: Any) -> World:
    """Two groups a step, of which any may be lost."""
    options = {"max_lookahead_versions": window}
    return world_of(f"dead_end_samplers:{sampler}", prompts=prompts, options=options, failure=LOSSY, **given)


def stopped_by(world: World) -> str:
    """Why, when the watchdog says what it saw."""
    assert not world.core.can_go_on
    world.apply(DeadEndReached())
    assert world.status == "stopped"
    assert isinstance(world.core.error, Deadlocked)
    return str(world.core.error)


def test_a_loss_that_no_step_is_charged_for_is_a_deadlock_once_the_data_is_used_up() -> None:
    world = lossy("ChargesNone")
    world.commit(1)
    world.drop(0, FailureKind.INFRA)
    said = stopped_by(world)
    assert "step 0 has 0 selected and 0 charged of 2" in said
    assert "deadlocked, nothing can ever happen" in said
    assert "Sampler custom dead_end_samplers:ChargesNone led here by what it decided in charge_step_for_lost" in said
    assert "resume from a checkpoint before that decision" in said


def test_a_step_that_can_never_close_is_a_livelock_while_its_other_groups_are_in_flight() -> None:
    world = lossy("ChargesNone", 1, prompts=4)
    world.drop(0, FailureKind.INFRA)
    world.commit(2)
    assert world.core.can_go_on, "a sampler from outside may charge step 0 for a group of step 1 that is lost"
    world.commit(3)
    assert world.status == "waiting_for_rollouts"
    said = stopped_by(world)
    assert "livelocked, step 0 can never close: it needs 2 more groups, and at most 0 queued, 1 in flight" in said
    assert "the data is used up" in said
    assert "charge_step_for_lost_group" in said


def test_a_step_limit_ends_admission_as_the_end_of_the_data_does() -> None:
    world = lossy("ChargesNone", prompts=40, grpo={"max_num_steps": 1})
    world.drop(0, FailureKind.INFRA)
    assert world.status == "waiting_for_rollouts"
    assert "no further batch is admitted: max_num_steps is 1 (A6)" in stopped_by(world)


def lose_the_first(world: World) -> None:
    world.drop(0, FailureKind.INFRA)
    go_on_to_the_dead_end(world)


def go_on_to_the_dead_end(world: World) -> None:
    while world.core.can_go_on:
        go_on(world)


def finish_one_ahead(world: World) -> None:
    """One group of the next step is ready, and the other is in flight, when the first step closes."""
    for prompt in (2, 0, 1):
        world.commit(prompt)
    world.close()


@pytest.mark.parametrize(
    ("sampler", "window", "play", "methods"),
    [
        ("ChargesNone", 0, lose_the_first, ("charge_step_for_lost_group",)),
        ("ChargesTheNextStep", 1, lose_the_first, ("charge_step_for_lost_group", "admit")),
        ("SelectsNothing", 0, go_on_to_the_dead_end, ("select",)),
        ("AdmitsNothing", 0, go_on_to_the_dead_end, ("admit",)),
        ("AdmitsOneBatch", 0, go_on_to_the_dead_end, ("admit",)),
        ("StampsTheNextStep", 0, go_on_to_the_dead_end, ("admit",)),
        ("EvictsWhatIsStale", 1, finish_one_ahead, ("evict",)),
        ("AbortsWhatIsStale", 1, finish_one_ahead, ("should_abort_inflight",)),
        ("AsksForASmallBuffer", 3, go_on_to_the_dead_end, ("required_buffer_capacity",)),
    ],
)
def test_the_method_is_named_whose_answer_led_there(sampler: str, window: int, play: Any, methods: Any) -> None:
    given = {"max_buffered_rollouts": 2} if sampler == "AsksForASmallBuffer" else {}
    world = lossy(sampler, window, prompts=4, **given)
    play(world)
    found = dead_end(world.core.state, world.core.limits, "s")
    assert found is not None
    assert found.methods == methods
    said = stopped_by(world)
    for method in methods:
        assert f"{method}: {WHAT_LED_HERE[method]}" in said
    assert f"Sampler custom dead_end_samplers:{sampler} led here" in said


def test_without_a_sampler_from_outside_none_is_blamed() -> None:
    world = world_of("windowed", size=3, max_buffered_rollouts=2, check=False, prompts=9)
    world.commit(0)
    world.commit(1)
    assert "No sampler from outside is to blame" in stopped_by(world)


def test_the_event_is_refused_while_the_run_can_go_on_and_once_it_is_over() -> None:
    world = world_of(prompts=2)
    assert "the run can go on: step 0 has 0 selected" in refused(world.core, DeadEndReached())
    world.commit(0)
    world.commit(1)
    assert "the run can go on" in refused(world.core, DeadEndReached())
    world.close()
    assert "it takes no" in refused(world.core, DeadEndReached())
    core = quick_core(set_up(config_of(), 4))
    assert "has not begun" in refused(core, DeadEndReached())


def test_a_run_stopped_at_a_dead_end_is_one_that_the_watchdog_stopped() -> None:
    assert issubclass(Deadlocked, Stalled)
    assert issubclass(Deadlocked, LimitReached)


def test_it_is_stop_unless_it_is_set_to_warn() -> None:
    assert parse_config({}).async_rl.stall_watchdog.on_deadlock == "stop"


def random_move(world: World, chance: random.Random) -> None:
    """One thing that the world may do; the trainer reports where nothing is in flight."""
    running = running_prompts(world)
    if (not running or chance.random() < 0.3) and (step_on(world) or not running):
        return
    prompt = chance.choice(running)
    if chance.random() < 0.3:
        world.drop(prompt, FailureKind.INFRA)
    else:
        world.commit(prompt)


def closes_somewhere(state: State, laws: Laws, states_max: int = 3_000) -> bool:
    """Whether any continuation closes the step or completes the run, among the first so many states."""
    seen, pending = {canonical(state)}, [state]
    while pending and len(seen) < states_max:
        here = pending.pop()
        for answer in CORE.possible(here, laws, ANY):
            there, done = after(here, laws, answer)
            if any(isinstance(move, StepClosed | RunCompleted) for move in done):
                return True
            there = canonical(there)
            if there not in seen and not is_over(there):
                seen.add(there)
                pending.append(there)
    return False


SAMPLERS = (
    "ChargesNone", "ChargesTheNextStep", "SelectsNothing", "AdmitsNothing", "AdmitsOneBatch", "StampsTheNextStep",
    "EvictsWhatIsStale", "AbortsWhatIsStale",
)  # fmt: skip


@settings(max_examples=examples(300), deadline=None)
@given(
    st.sampled_from(SAMPLERS),
    st.integers(0, 2),
    st.integers(1, 3),
    st.integers(0, 13),
    st.none() | st.integers(1, 3),
    st.integers(0, 2**32),
)
def test_a_dead_end_is_told_of_every_deadlock_and_of_no_state_from_which_the_step_still_closes(
    sampler: str, window: int, size: int, prompts: int, max_steps: int | None, seed: int
) -> None:
    """However the run goes on: the checker's search over all continuations finds none that closes the step."""
    chance = random.Random(seed)
    world = lossy(sampler, window, size=size, prompts=prompts, grpo={"max_num_steps": max_steps})
    doomed: int | None = None
    for _ in range(60):
        if world.over:
            break
        core = world.core
        state, stuck = core.state, not core.can_go_on
        assert stuck or not deadlocked(state)
        assert deadlocked(state) == (world.status == "deadlocked")
        if doomed is not None:
            assert stuck, "a dead end stays one"
            assert state.trainer.version == doomed
        if stuck:
            doomed = state.trainer.version
            if livelocked(state, core.limits):
                assert not closes_somewhere(state, core.laws._replace(fire=fire))
        if deadlocked(state):
            return
        random_move(world, chance)
    assert doomed is None or world.status != "completed"


@pytest.mark.parametrize("sampler", ["in_order", "ready_first", "windowed", "weight_fifo"])
def test_no_sound_run_is_ever_at_a_dead_end(sampler: str) -> None:
    """Whatever is lost, at whatever time; the properties of the core try more (`test_core_properties`)."""
    for seed in range(30):
        chance = random.Random(seed)
        failure = {} if sampler == "weight_fifo" else LOSSY
        world = world_of(sampler, seed % 3, prompts=seed % 11, failure=failure)
        for _ in range(80):
            if world.over:
                break
            assert not livelocked(world.core.state, world.core.limits)
            assert world.core.can_go_on
            if sampler == "weight_fifo":
                go_on(world)
            else:
                random_move(world, chance)


def test_the_watchdog_may_stop_a_run_at_its_very_first_event() -> None:
    world = lossy("AdmitsNothing", prompts=4)
    assert "admit: the step being trained needs a batch" in stopped_by(world)
