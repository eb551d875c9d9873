"""Whether the step that a run is really at can still close."""

from unittest.mock import patch

from fsm.config.parse import parse_config
from fsm.events import FailureKind
from fsm.rules import losses
from fsm.state import GroupClass, is_over
from fsm.values import pages
from specs.checker.closing import outlook
from specs.scenarios.world import World

DROPS = {"max_infra_attempts_per_prompt": 1, "max_consecutive_dropped_prompts": 9, "min_step_batch_fraction": 0.1}


def a_world(sampler: str = "in_order") -> World:
    failure = {} if sampler == "weight_fifo" else DROPS  # which takes no losses
    document = {
        "grpo": {"num_prompts_per_step": 2},
        "async_rl": {"sampler": {"name": sampler}, "rollout_failure": failure},
    }
    return World(parse_config(document), 16)


def test_a_sound_run_closes_its_step_by_what_is_in_flight_alone() -> None:
    for sampler in ("in_order", "ready_first", "weight_fifo", "windowed"):
        world = a_world(sampler)
        while not world.over:
            found = outlook(world.core.state, world.core.laws, {}, 1)
            assert (found.closes, found.dead_end) == (True, None), sampler
            running = list(world.core.book.roster.in_flight)
            if world.status == "waiting_for_rollouts":
                world.commit(running[0])
            else:
                world.close()


def test_rollouts_that_never_answer_hold_up_the_step_that_they_are_stamped_for_and_no_other() -> None:
    """S2."""
    world = a_world()
    state, laws = world.core.state, world.core.laws
    [own, later] = [group_class for group_class, _ in pages.items(state.running)]
    assert (own.target_step, later.target_step) == (0, 1)
    assert outlook(state, laws, {own: 1}, 1).closes is not True
    assert outlook(state, laws, {later: 2}, 1).closes is True


def test_a_step_that_lost_a_group_uncharged_closes_by_no_continuation() -> None:
    """L3."""
    world = a_world()
    with patch.object(losses, "ask_charge", lambda state, laws, group_class: None):
        world.drop(1, FailureKind.INFRA)
    state, laws = world.core.state, world.core.laws
    assert not is_over(state)
    found = outlook(state, laws, {}, 10_000)
    assert found.closes is False
    assert found.dead_end is not None
    assert found.dead_end.sheet.in_flight == 0
    assert pages.get(found.dead_end.ready, GroupClass(target_step=0, start_weight=0), 0) == 1


def test_a_search_that_is_given_up_says_neither() -> None:
    world = a_world()
    with patch.object(losses, "ask_charge", lambda state, laws, group_class: None):
        world.drop(1, FailureKind.INFRA)
    found = outlook(world.core.state, world.core.laws, {}, 3)
    assert (found.closes, found.states) == (None, 3)
    assert found.dead_end is not None
