"""`waits_for`: what the step waits for, in one sentence, and whether it still can (W2)."""

import pytest

from fsm.events import FailureKind, GroupRecord
from fsm.explain import SHOWN_CLASSES, status, waits_for, why_groups_are_lost
from specs.scenarios.world import World
from tests.fsm.helpers import REPLACE, step_on, world_of

INFRA, DATA = FailureKind.INFRA, FailureKind.DATA


def says(world: World, *parts: str) -> str:
    found = world.core.waits_for()
    assert found == waits_for(world.core.state, world.core.limits, world.core.setup.sampler_name)
    assert "\n" not in found, "one sentence"
    for part in parts:
        assert part in found, f"{part!r} is missing: {found}"
    return found


def test_a_step_that_waits_for_rollouts_names_its_counts_what_is_missing_and_what_must_happen() -> None:
    world = world_of(size=3)
    world.commit(0)
    assert world.status == "waiting_for_rollouts"
    says(
        world,
        "step 0 has 0 selected and 0 charged of 3 and waits for 3 more, at least 3 of them eligible at once",
        "under in_order",
        "in flight 5 of 6 (running 2 for step 0, start weight 0; 3 for step 1, start weight 0)",
        "ready 1 (1 for step 0, start weight 0)",
        "buffer 6 of 6",
        "queued 0",
        "gate closed at dispatch index 1",
        "spares 0",
        "next, one of 5 running rollouts must finish or fail",
    )


def test_the_streaming_minimum_is_named_where_fewer_are_enough() -> None:
    world = world_of("ready_first", size=4, min_groups_for_streaming_train=2)
    world.commit(3)
    says(world, "waits for 4 more, at least 2 of them eligible at once under ready_first")


def test_a_chunk_in_training_an_optimizer_step_and_a_sync_each_name_who_must_report() -> None:
    world = world_of("ready_first", min_groups_for_streaming_train=1)
    world.commit(0)
    assert world.status == "training"
    says(world, "step 0 has 1 selected and 0 charged of 2", "the trainer must report the chunk of 1 groups trained")
    step_on(world)
    world.commit(1)
    step_on(world)
    assert world.status == "finishing"
    says(world, "step 0 has 2 selected", "the trainer must report its optimizer step done")
    step_on(world)
    assert world.status == "syncing"
    says(world, "step 0 is closed", "must load the weights of version 1")


def test_a_run_that_is_over_waits_for_nothing() -> None:
    completed = world_of(prompts=2)
    completed.commit(0)
    completed.commit(1)
    completed.close()
    assert completed.status == "completed"
    says(completed, "the run is completed after 1 step and waits for nothing")
    stopped = world_of(failure={"max_data_attempts_per_prompt": 1})
    stopped.fail(0, DATA)
    assert stopped.status == "stopped"
    says(stopped, "the run is stopped after 0 steps")


def test_backoffs_attempts_that_wait_and_replacements_are_told_apart() -> None:
    world = world_of("ready_first", failure={**REPLACE, "backoff_base_s": 5.0, "max_infra_attempts_per_prompt": 2,
                                             "max_data_attempts_per_prompt": 1, "max_skipped_prompts": 9})  # fmt: skip
    [first, second, *_] = sorted(world.core.book.roster.in_flight)
    world.fail(first, INFRA)
    world.fail(second, DATA)
    says(world, "backing off 1 no stamp", "replacement 1", "spares 1")
    world = world_of("in_order", 0, failure={"max_data_attempts_per_prompt": 3, "backoff_base_s": 5.0})
    world.fail(0, INFRA)
    world.fail(1, INFRA)
    says(world, "next, one of 2 backoffs must end")


def test_attempts_that_wait_for_a_sync_are_told_in_it() -> None:
    world = world_of("ready_first")
    world.commit(0)
    world.commit(1)
    step_on(world)
    step_on(world)
    world.fail(2, DATA)
    assert world.status == "syncing"
    says(world, "waiting to start 1 no stamp")


def test_a_bucket_and_a_label_are_named() -> None:
    fifo = world_of("weight_fifo")
    says(fifo, "4 bucket 0, start weight 0")
    labelled = world_of("examples.short_first:ShortFirst", options={"short_tokens": 0})
    labelled.commit(0, GroupRecord(0, 5, 0.5, 0.5))
    says(labelled, "1 start weight 0, label 1")


def test_no_more_than_a_few_classes_are_listed_and_the_rest_is_counted() -> None:
    world = world_of("in_order", 9, size=2, prompts=20)
    found = says(world, f"{2 * (10 - SHOWN_CLASSES)} in other classes")
    assert found.count("for step") == SHOWN_CLASSES


def test_a_sampler_that_never_selects_is_a_deadlock_that_names_it() -> None:
    world = world_of("custom_samplers:NeverSelects", prompts=4)
    for prompt in range(4):
        world.commit(prompt)
    assert world.status == status(world.core.state) == "deadlocked"
    says(
        world,
        "deadlocked, nothing can ever happen",
        "custom custom_samplers:NeverSelects selects none of the 4 ready groups",
        "the data is used up",
    )


def test_a_deadlock_behind_a_closed_gate_names_what_would_open_it() -> None:
    world = world_of("custom_samplers:NeverSelects", prompts=40)
    for prompt in range(4):
        world.commit(prompt)
    assert world.status == "deadlocked"
    says(world, "the gate is closed at dispatch index 1 and opens when the version, now 0, moves")


def test_a_buffer_below_the_streaming_minimum_is_a_deadlock_that_names_the_buffer() -> None:
    """A4 refuses this at setup; without the check it is what the explanation is for."""
    world = world_of("windowed", size=3, max_buffered_rollouts=2, check=False, prompts=9)
    world.commit(0)
    assert world.status == "waiting_for_rollouts"
    world.commit(1)
    assert world.status == "deadlocked"
    says(world, "windowed selects none of the 2 ready groups", "the buffer is full: max_buffered_rollouts is 2")


@pytest.mark.parametrize("sampler", ["in_order", "ready_first", "weight_fifo"])
def test_a_buffer_of_too_few_batches_is_explained_under_a_gated_sampler_as_well(sampler: str) -> None:
    world = world_of(sampler, size=3, max_buffered_rollouts=2, check=False, prompts=9)
    world.commit(0)
    world.commit(1)
    assert world.status == "deadlocked"
    says(world, f"{sampler} selects none of the 2 ready groups", "max_buffered_rollouts is 2")


def test_a_stall_stops_the_run_with_the_explanation_of_the_wait() -> None:
    """W2."""
    world = world_of(stall_watchdog={"stall_timeout_s": 5.0, "stall_action": "abort"})
    world.commit(0)
    explained = world.core.waits_for()
    world.tick(6.0)
    assert world.status == "stopped"
    assert explained in str(world.core.error)
    assert "6 s" in str(world.core.error)


def test_why_groups_are_lost_names_the_keys_of_replacement_and_what_used_it_up() -> None:
    world = world_of(failure=REPLACE, grpo={"use_dynamic_sampling": True})
    world.filter(2)
    world.filter(3)
    said = why_groups_are_lost(world.core.state, world.core.limits)
    assert "max_replacement_attempts = " in said
    assert "replacement_reserve_prompts = " in said
    assert "all rewards equal: 2 groups" in said
    without = world_of()
    assert why_groups_are_lost(without.core.state, without.core.limits) == ""
