"""C1 to C3: what a restored core goes on from, what it generates again, and what it refuses."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsm.config.setup import set_up
from fsm.core import AppliedEvent, Core
from fsm.effects import ClearRows, Completed, Effect, StartRollout, SyncWeights, TrainChunk
from fsm.errors import BelowFloor, BudgetExceeded, ConfigError, IllegalSnapshot
from fsm.events import Begin, FailureKind
from fsm.snapshot import for_other_data, reinstate, restore, snapshot
from fsm.state import charged, is_over
from specs.scenarios.world import World
from tests.fsm.helpers import REPLACE, config_of, go_on, quick_core, run_to_the_end, step_on, world_of

INFRA, DATA = FailureKind.INFRA, FailureKind.DATA


def saved(world: World) -> dict[str, Any]:
    """A checkpoint's control part, as it comes back from the disk."""
    loaded: dict[str, Any] = json.loads(world.snapshot())
    return loaded


def resumed(world: World, prompts: int | None = None, **given: Any) -> tuple[Core, tuple[Effect, ...]]:
    """A new process that goes on from `world` under what may be another configuration, begun."""
    config = config_of(**given) if given else world.config
    core = restore(set_up(config, prompts or world.core.limits.prompts_per_epoch), saved(world))
    return core, core.apply(Begin())


def started(effects: tuple[Effect, ...]) -> list[tuple[int, int, int | None, int]]:
    """Prompt, slot, target step and start weight of each rollout that starts."""
    return [
        (each.attempt.prompt, each.slot, each.target_step, each.start_weight)
        for each in effects
        if isinstance(each, StartRollout)
    ]


def a_step_done(**given: Any) -> World:
    """Version 1, synced."""
    world = world_of(**given)
    world.commit(0)
    world.commit(1)
    world.close()
    return world


# C2


def test_what_was_in_flight_starts_again_in_its_slots_and_order_under_the_restored_weights() -> None:
    world = a_step_done(window=2, prompts=10)
    world.fail(3, DATA)  # a later attempt, so a later place
    _, effects = resumed(world)
    assert started(effects) == [(2, 2, 1, 1), (4, 4, 2, 1), (5, 5, 2, 1), (6, 6, 3, 1), (7, 7, 3, 1), (3, 3, 1, 1)]


def test_retries_that_back_off_and_attempts_that_wait_for_a_sync_start_at_once() -> None:
    world = world_of("ready_first", failure={"backoff_base_s": 9.0}, prompts=6)
    world.commit(0)
    world.commit(1)
    step_on(world)
    step_on(world)
    world.fail(3, INFRA)
    world.fail(2, DATA)
    assert world.status == "syncing"
    core, effects = resumed(world)
    assert [each[0] for each in started(effects)[:2]] == [2, 3]
    assert {each[3] for each in started(effects)} == {1}
    assert not core.book.roster.waiting
    assert not core.book.roster.backing_off


def test_attempts_are_counted_anew_after_a_resume() -> None:
    world = world_of(failure={"max_infra_attempts_per_prompt": 2})
    world.fail(0, INFRA)
    world.checkpoint()
    world.crash()
    world.fail(0, INFRA)
    assert world.running(0)
    world.fail(0, INFRA)
    assert world.status == "stopped"


def test_budgets_of_the_whole_run_are_not_counted_anew() -> None:
    failure = {
        "max_data_attempts_per_prompt": 1, "max_infra_attempts_per_prompt": 1, "max_skipped_prompts": 1,
        "max_consecutive_dropped_prompts": 1, "min_step_batch_fraction": 0.1,
    }  # fmt: skip
    for kind, option in ((DATA, "max_skipped_prompts"), (INFRA, "max_consecutive_dropped_prompts")):
        world = world_of(size=4, failure=failure)
        world.drop(0, kind)
        world.checkpoint()
        world.crash()
        assert not world.over
        world.drop(1, kind)
        assert option in str(world.core.error)


def test_what_was_in_flight_starts_again_whatever_the_limits_are_now() -> None:
    world = world_of("ready_first", 2, prompts=12)
    core, effects = resumed(world, sampler="ready_first", window=2, max_inflight_prompts=1)
    assert core.limits.max_inflight == 1
    assert len(started(effects)) == 6


def test_a_checkpoint_taken_during_a_sync_resumes_after_it() -> None:
    world = world_of()
    world.commit(0)
    world.commit(1)
    step_on(world)
    step_on(world)
    assert world.status == "syncing"
    core, effects = resumed(world)
    assert core.state.trainer == (0, 1)
    assert not any(isinstance(each, SyncWeights) for each in effects)
    assert {each[3] for each in started(effects)} == {1}


@pytest.mark.parametrize("reports", [0, 1])
def test_groups_of_a_step_that_had_not_finished_are_ready_again_and_taken_again(reports: int) -> None:
    """In training, or with the optimizer step asked for."""
    world = world_of("ready_first", size=3, min_groups_for_streaming_train=1)
    for prompt in (0, 1, 2):
        world.commit(prompt)
    step_on(world)
    for _ in range(reports):
        step_on(world)
    core, effects = resumed(world)
    [chunk] = [each for each in effects if isinstance(each, TrainChunk)]
    assert [group.prompt for group in chunk.groups] == [0, 1, 2]
    assert core.state.sheet.selected == 3


def test_charges_stay_also_those_of_later_steps() -> None:
    failure = {"max_infra_attempts_per_prompt": 1, "max_consecutive_dropped_prompts": 9, "min_step_batch_fraction": 0.1}
    world = world_of(failure=failure)
    world.drop(1, INFRA)
    world.drop(3, INFRA)
    core, _ = resumed(world)
    assert [charged(core.state, step) for step in (0, 1)] == [1, 1]


def test_a_resume_of_a_resume_loses_nothing_and_every_process_has_attempts_of_its_own() -> None:
    world = a_step_done(prompts=8)
    first = saved(world)
    core = restore(world.setup, first)
    before = started(core.apply(Begin()))
    again = restore(world.setup, json.loads(json.dumps(snapshot(core))))
    assert started(again.apply(Begin())) == before
    assert (core.book.incarnation, again.book.incarnation) == (1, 2)


def test_another_window_or_buffer_of_the_same_sampler_is_no_other_sampler() -> None:
    world = a_step_done(window=1, prompts=8)
    core, effects = resumed(world, sampler="in_order", window=2, max_buffered_rollouts=9)
    assert not [each for each in effects if isinstance(each, ClearRows)]
    assert len(started(effects)) == len(world.core.book.roster.in_flight) + 2
    assert core.book.closed == world.core.book.closed


# C3


def test_under_another_sampler_what_is_not_trained_is_generated_again_ahead_of_the_data() -> None:
    world = a_step_done(window=2, prompts=12)
    world.commit(3)
    core, effects = resumed(world, sampler="ready_first", window=0)
    [cleared] = [each for each in effects if isinstance(each, ClearRows)]
    assert cleared == ClearRows((2, 3, 4, 5, 6, 7), "regenerated")
    assert started(effects) == [(2, 8, None, 1), (3, 9, None, 1)]
    assert list(core.book.roster.again) == [4, 5, 6, 7]
    assert core.state.trainer.version == 1
    assert [tuple(each) for each in core.book.closed] == [(0, 2, 0, 0)]


def test_a_change_of_sampler_is_said_with_both_names_and_what_becomes_of_the_work() -> None:
    world = a_step_done(prompts=8)
    core, _ = resumed(world, sampler="windowed")
    [notice] = [each for each in core.notices if "C3" in each]
    assert "sampler in_order, now windowed" in notice
    assert "4 prompts that are not trained yet are generated again" in notice
    assert "charges are dropped" in notice
    assert not [each for each in resumed(world)[0].notices if "C3" in each]


def test_another_n_generates_again_as_well_and_both_changes_are_said() -> None:
    world = a_step_done(prompts=12)
    core, effects = resumed(world, sampler="ready_first", window=0, size=3)
    assert [each[0] for each in started(effects)] == [2, 3, 4]
    assert any("sampler in_order, now ready_first and num_prompts_per_step 2, now 3" in each for each in core.notices)


def test_charges_are_dropped_under_another_n() -> None:
    failure = {"max_infra_attempts_per_prompt": 1, "max_consecutive_dropped_prompts": 9, "min_step_batch_fraction": 0.1}
    world = world_of("ready_first", size=4, failure=failure)
    world.drop(1, INFRA)
    core, effects = resumed(world, sampler="ready_first", size=3, failure=failure)
    assert charged(core.state, 0) == 0
    assert 1 not in [each[0] for each in started(effects)], "a lost prompt stays lost"
    assert core.state.sheet.dropped == 1


def test_spares_go_back_into_the_data_in_its_order() -> None:
    world = world_of("ready_first", prompts=12, failure=REPLACE)
    assert list(world.core.book.roster.spares) == [0, 1]
    _, effects = resumed(world, sampler="in_order", window=0)
    assert [each[0] for each in started(effects)] == [0, 1]


@pytest.mark.parametrize(("before", "after"), [(4, 8), (8, 4)])
def test_groups_of_another_number_of_generations_are_generated_again_and_it_is_said(before: int, after: int) -> None:
    world = a_step_done(prompts=12, grpo={"num_generations_per_prompt": before})
    world.commit(3)
    core, effects = resumed(world, grpo={"num_generations_per_prompt": after})
    assert ClearRows((2, 3, 4, 5), "regenerated") in effects
    assert [each[0] for each in started(effects)] == [2, 3, 4, 5]
    assert any(f"num_generations_per_prompt {before}, now {after}: weights" in each for each in core.notices)


def test_a_snapshot_that_does_not_say_its_number_of_generations_is_taken_as_of_the_same() -> None:
    world = a_step_done(prompts=12)
    older = {
        key: value for key, value in saved(world).items() if key not in ("num_generations_per_prompt", "first_prompt")
    }
    core = restore(world.setup, older)
    assert started(core.apply(Begin())) == started(resumed(world)[1])
    assert not [each for each in core.notices if "C3" in each]


# C3, other data


def with_other_data(world: World, prompts: int, **given: Any) -> tuple[Core, tuple[Effect, ...]]:
    """A new process that goes on from `world` with other data of so many prompts, begun."""
    config = config_of(**given) if given else world.config
    core = restore(set_up(config, prompts), for_other_data(saved(world)))
    return core, core.apply(Begin())


def test_with_other_data_what_is_trained_stays_and_the_rest_is_read_from_the_new_datas_start() -> None:
    world = a_step_done(window=2, prompts=12)
    world.commit(3)
    core, effects = with_other_data(world, 6)
    assert ClearRows((2, 3, 4, 5, 6, 7), "other data") in effects
    assert started(effects) == [
        (8, 8, 1, 1),
        (9, 9, 1, 1),
        (10, 10, 2, 1),
        (11, 11, 2, 1),
        (12, 12, 3, 1),
        (13, 13, 3, 1),
    ]
    assert core.state.trainer.version == 1
    assert [tuple(each) for each in core.book.closed] == [(0, 2, 0, 0)]
    assert (core.state.sheet.trained, core.state.sheet.pulled) == (2, 8)


def test_other_data_is_said_with_what_is_dropped_and_how_its_prompts_are_numbered() -> None:
    core, _ = with_other_data(a_step_done(prompts=8), 6)
    [notice] = [each for each in core.notices if "C3" in each]
    assert "its 2 trained prompts stay; 4 prompts of the old data that are not trained yet are dropped" in notice
    assert "read from its start, as prompts 6 and up" in notice


def test_prompts_that_were_to_be_generated_again_are_dropped_with_the_old_data() -> None:
    world = a_step_done(window=2, prompts=12)
    world.config = config_of("ready_first", 0)
    world.core, _ = resumed(world, sampler="ready_first", window=0)
    assert list(world.core.book.roster.again) == [4, 5, 6, 7]
    core, effects = with_other_data(world, 4)
    assert [each[0] for each in started(effects)] == [8, 9]
    assert any("6 prompts of the old data that are not trained yet are dropped" in each for each in core.notices)


def test_a_resume_after_other_data_goes_on_in_that_data_and_a_third_data_is_numbered_above_both() -> None:
    world = a_step_done(prompts=8)
    world.core, effects = with_other_data(world, 6)
    numbers = [each[0] for each in started(effects)]
    assert [each[0] for each in started(resumed(world, 6)[1])] == numbers == [6, 7, 8, 9]
    with pytest.raises(ConfigError, match="6 prompts an epoch, the data has 8"):
        resumed(world, 8)
    assert [each[0] for each in started(with_other_data(world, 5)[1])] == [10, 11, 12, 13]


def test_a_reinstated_core_numbers_its_prompts_as_the_recorded_one() -> None:
    world = a_step_done(prompts=8)
    world.core, _ = with_other_data(world, 6)
    assert snapshot(reinstate(world.core.setup, saved(world))) == saved(world)


# Refused


def test_a_snapshot_of_another_format_is_refused_by_its_number() -> None:
    world = world_of()
    for foreign in ({**saved(world), "format": 99}, {"weights": []}):
        with pytest.raises(ConfigError, match=r"has format (99|None); this evenstep reads format"):
            restore(world.setup, foreign)


def test_other_data_is_refused_with_both_sizes() -> None:
    with pytest.raises(ConfigError, match="8 prompts an epoch, the data has 10"):
        resumed(world_of(prompts=8), prompts=10)


def test_a_run_that_completed_ends_again_or_goes_on_as_far_as_todays_limits_allow() -> None:
    completed = a_step_done(prompts=8, grpo={"max_num_steps": 1})
    assert completed.over
    again, effects = resumed(completed)
    assert [type(effect) for effect in effects] == [Completed]
    assert any("completed after 1 step:" in notice for notice in again.notices)
    further, effects = resumed(completed, grpo={"max_num_steps": 2})
    assert [prompt for prompt, *_ in started(effects)] == [2, 3]
    assert not is_over(further.state)


def test_a_run_that_a_budget_stopped_tries_the_prompt_again_which_was_dropped_and_not_charged() -> None:
    stopped = world_of(failure={"max_data_attempts_per_prompt": 1})
    before: list[dict[str, Any]] = []
    stopped.core.before_stop = lambda: before.append(saved(stopped))
    stopped.fail(0, DATA)
    assert isinstance(stopped.core.error, BudgetExceeded)
    with pytest.raises(IllegalSnapshot, match="taken after the prompt was dropped"):
        restore(stopped.setup, saved(stopped))
    [snapshot_before] = before
    core = restore(stopped.setup, snapshot_before)
    assert [prompt for prompt, *_ in started(core.apply(Begin()))] == [0, 1, 2, 3]
    assert core.state.sheet.dropped == 0


def test_a_run_below_its_floor_stops_again_until_the_floor_is_lower_or_the_step_another() -> None:
    allowed = {"max_data_attempts_per_prompt": 1, "max_skipped_prompts": 8}
    stopped = world_of(failure={**allowed, "min_step_batch_fraction": 1.0})
    stopped.fail(0, DATA)
    assert isinstance(stopped.core.error, BelowFloor)
    again, _ = resumed(stopped)
    assert isinstance(again.error, BelowFloor)
    lower, _ = resumed(stopped, failure={**allowed, "min_step_batch_fraction": 0.5})
    assert lower.error is None
    other, effects = resumed(stopped, size=3, failure={**allowed, "min_step_batch_fraction": 1.0})
    assert other.error is None, "charges are dropped under another N (C3)"
    assert len(started(effects)) >= 3


def test_slots_that_differ_in_their_replacements_alone_are_one_class_under_a_lower_limit() -> None:
    failure = {"on_dropped_prompt": "replace", "replacement_reserve_prompts": 4}
    grpo = {"use_dynamic_sampling": True}
    world = world_of(prompts=16, grpo=grpo, failure={**failure, "max_replacement_attempts": 8})
    first, second = (group.prompt for group in list(world.core.book.roster.in_order())[:2])
    for prompt, times in ((first, 1), (second, 2)):
        slot = world.core.book.roster.in_flight[prompt].slot
        for _ in range(times):
            [now] = [group.prompt for group in world.core.book.roster.in_order() if group.slot == slot]
            world.filter(now)
    core, effects = resumed(world, grpo=grpo, failure={**failure, "max_replacement_attempts": 1})
    assert len(started(effects)) == 4
    assert any("more replacements" in notice for notice in core.notices)


# Anything to anything

SAMPLERS = ("in_order", "ready_first", "windowed", "weight_fifo")
ENDS = st.tuples(st.sampled_from(SAMPLERS), st.integers(1, 4), st.integers(0, 2), st.booleans())


def _world(end: tuple[str, int, int, bool], prompts: int, trained: list[int]) -> World:
    sampler, size, window, replace = end
    failure = REPLACE if replace and sampler != "weight_fifo" else {}
    config = config_of(sampler, window, size=size, failure=failure, grpo={"max_num_epochs": 2})

    def heard(transition: AppliedEvent) -> None:
        for effect in transition.effects:
            if isinstance(effect, ClearRows) and effect.why == "trained":
                trained.extend(effect.prompts)

    return World(config, prompts, observer=heard, make_core=quick_core)


@settings(max_examples=150, deadline=None)
@given(ENDS, ENDS, st.integers(0, 14), st.integers(0, 60))
def test_from_any_sampler_and_n_to_any_other_no_prompt_is_lost_or_trained_twice(
    before: tuple[str, int, int, bool], after: tuple[str, int, int, bool], prompts: int, moves: int
) -> None:
    """C2, C3, X4."""
    trained: list[int] = []
    first = _world(before, prompts, trained)
    for _ in range(moves):
        if not first.over:
            go_on(first)
    if first.over:
        return
    world = _world(after, prompts, trained)
    world.saved = first.snapshot()
    world.crash()
    run_to_the_end(world, events=2_000)
    assert world.status == "completed"
    assert len(set(trained)) == len(trained), "trained twice"
    sheet = world.core.state.sheet
    assert sheet.trained == len(trained)
    never, skips = 2 * prompts - sheet.pulled, (first.core.limits.skips_trailing, world.core.limits.skips_trailing)
    passed_over = 2 * (skips[0] * (before[1] - 1) + skips[1] * (after[1] - 1))
    assert never <= passed_over, "A5: what is never pulled was the trailing batch of an epoch, then or now"


@pytest.mark.parametrize(("mode", "attempts"), [("shrink", 2), ("replace", 1)])
def test_l2_slots_that_had_more_replacements_than_now_allowed_get_no_further_one_and_the_start_says_so(mode, attempts):
    lossy = {
        "on_dropped_prompt": "replace",
        "max_replacement_attempts": 2,
        "replacement_reserve_prompts": 2,
        "max_infra_attempts_per_prompt": 1,
        "max_consecutive_dropped_prompts": 9,
        "min_step_batch_fraction": 0.1,
    }
    world = world_of(window=0, size=1, prompts=6, failure=lossy)
    for _ in range(2):
        [prompt] = world.core.book.roster.in_flight
        world.drop(prompt, INFRA)
    world.checkpoint()
    fewer = {**lossy, "on_dropped_prompt": mode, "max_replacement_attempts": attempts}
    world.setup = set_up(config_of(window=0, size=1, failure=fewer), 6)
    world.crash()

    assert "1 slot in flight had more than now allowed" in world.core.notices[-1]
    [prompt] = world.core.book.roster.in_flight
    world.drop(prompt, INFRA)
    assert isinstance(world.core.error, BelowFloor)


@settings(max_examples=100, deadline=None)
@given(ENDS, ENDS, st.integers(0, 14), st.integers(0, 14), st.integers(0, 60), st.integers(0, 20))
def test_from_any_data_to_any_other_no_number_is_trained_twice_and_all_of_the_new_data_is_read(
    before: tuple[str, int, int, bool], after: tuple[str, int, int, bool], old: int, new: int, moves: int, more: int
) -> None:
    """C3, X4: also where the run crashes once more in the new data."""
    trained: list[int] = []
    first = _world(before, old, trained)
    for _ in range(moves):
        if not first.over:
            go_on(first)
    if first.over:
        return
    pulled = first.core.state.sheet.pulled
    world = _world(after, new, trained)
    world.saved = json.dumps(for_other_data(saved(first)))
    world.crash()
    start = world.core.limits.first_prompt
    assert all(prompt < start for prompt in trained), "the old data's numbers are below the new data's"
    assert start >= pulled
    for _ in range(more):
        if not world.over:
            go_on(world)
    if not world.over:
        world.checkpoint()
        world.crash()
    run_to_the_end(world, events=2_000)
    assert world.status == "completed"
    assert len(set(trained)) == len(trained), "trained twice"
    sheet = world.core.state.sheet
    assert sheet.balanced
    assert sheet.trained == len(trained)
    of_old = sum(prompt < start for prompt in trained)
    assert all(prompt < start + 2 * new for prompt in trained)
    gone = first.core.state.sheet.leftover
    of_new = sheet.pulled - (pulled - gone)
    passed_over = 2 * (after[1] - 1) * world.core.limits.skips_trailing
    assert 2 * new - passed_over <= of_new <= 2 * new, "A5: all of the new data is pulled but trailing batches"
    assert of_old == first.core.state.sheet.trained
