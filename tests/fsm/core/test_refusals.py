"""Events that a state cannot take: refused by name, and nothing changes, byte for byte (D2)."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsm.config.setup import set_up
from fsm.core import AppliedEvent, Core
from fsm.errors import IllegalEvent, LateAnswer
from fsm.events import (
    Attempt,
    BackoffOver,
    Begin,
    ChunkTrained,
    ClaimUnreadable,
    Event,
    FailureKind,
    GroupFailed,
    GroupFinished,
    StallTimeout,
    StepFinished,
    SyncFinished,
)
from specs.scenarios.world import World
from tests.fsm.helpers import REPLACE, all_of, config_of, refused, running_prompts, world_of

INFRA, DATA = FailureKind.INFRA, FailureKind.DATA


def waiting() -> World:
    """Step 0 has one of two; prompts 1, 2, 3 run."""
    world = world_of()
    world.commit(0)
    return world


def training() -> World:
    """Prompts 0 and 1 are in training as chunk 0; 2 and 3 run."""
    world = waiting()
    world.commit(1)
    return world


def finishing() -> World:
    world = training()
    world.chunk_trained()
    return world


def syncing() -> World:
    world = finishing()
    world.step_finished()
    return world


def second_step() -> World:
    """Version 1; prompts 2 and 3, and the next batch, run."""
    world = syncing()
    world.weights_synced()
    return world


def completed() -> World:
    world = world_of(prompts=2)
    world.commit(0)
    world.commit(1)
    world.close()
    assert world.status == "completed"
    return world


def stopped() -> World:
    world = world_of(failure={"max_infra_attempts_per_prompt": 1})
    world.drop(0, INFRA)
    assert world.status == "stopped"
    return world


STATES: dict[str, Callable[[], World]] = {
    state.__name__: state for state in (waiting, training, finishing, syncing, second_step, completed, stopped)
}

GONE = Attempt(0, 0)
"""Prompt 0's attempt, which is over in every one of these states."""

ILLEGAL: dict[str, list[Event]] = {
    "waiting": [ChunkTrained(0), ClaimUnreadable(0, "e"), StepFinished(0), SyncFinished(0), SyncFinished(1)],
    "training": [ChunkTrained(1), ChunkTrained(-1), ClaimUnreadable(2, "e"), StepFinished(0), SyncFinished(1)],
    "finishing": [ChunkTrained(0), ClaimUnreadable(0, "e"), StepFinished(1), StepFinished(-1), SyncFinished(1)],
    "syncing": [ChunkTrained(0), ClaimUnreadable(0, "e"), StepFinished(0), StepFinished(1), SyncFinished(0)],
    "second_step": [ChunkTrained(0), ClaimUnreadable(0, "e"), StepFinished(0), StepFinished(1), SyncFinished(1)],
}
"""Per state what the trainer cannot report."""

CASES = [(state, event) for state, events in ILLEGAL.items() for event in [*events, Begin()]]


@pytest.mark.parametrize(("state", "event"), CASES, ids=[f"{state}-{event}" for state, event in CASES])
def test_what_the_trainer_cannot_report_now_is_refused_and_changes_nothing(state: str, event: Event) -> None:
    assert refused(STATES[state]().core, event)


@pytest.mark.parametrize("state", ["completed", "stopped"])
@pytest.mark.parametrize(
    "event",
    [
        Begin(), GroupFinished(GONE, False), GroupFailed(GONE, INFRA, "e"), BackoffOver(GONE), ChunkTrained(0),
        ClaimUnreadable(0, "e"), StepFinished(0), SyncFinished(1), StallTimeout(1.0),
    ],
    ids=repr,
)  # fmt: skip
def test_a_run_that_is_over_takes_no_event_and_says_so(state: str, event: Event) -> None:
    assert f"the run is {state}" in refused(STATES[state]().core, event)


@pytest.mark.parametrize(
    "event",
    [
        GroupFinished(GONE, False), GroupFailed(GONE, INFRA, "e"), BackoffOver(GONE), ChunkTrained(0),
        ClaimUnreadable(0, "e"), StepFinished(0), SyncFinished(0), StallTimeout(1.0),
    ],
    ids=repr,
)  # fmt: skip
def test_nothing_comes_before_begin(event: Event) -> None:
    core = Core(set_up(config_of(), 8))
    assert "has not begun" in refused(core, event)
    assert core.apply(Begin())


def test_a_run_begins_once() -> None:
    assert "has begun" in refused(world_of().core, Begin())


@pytest.mark.parametrize("state", sorted(ILLEGAL))
@pytest.mark.parametrize(
    "attempt",
    [GONE, Attempt(3, 999), Attempt(3, 2), Attempt(99, 3), Attempt(3, 3, 1), Attempt(3, 3, -1), Attempt(-1, -1)],
    ids=str,
)
@pytest.mark.parametrize("answer", ["finished", "filtered", "infra", "data", "backoff"])
def test_an_answer_for_an_attempt_that_does_not_run_is_late(state: str, attempt: Attempt, answer: str) -> None:
    """D2: over, of another dispatch number, of another process, or never made."""
    events: dict[str, Event] = {
        "finished": GroupFinished(attempt, False),
        "filtered": GroupFinished(attempt, True),
        "infra": GroupFailed(attempt, INFRA, "e"),
        "data": GroupFailed(attempt, DATA, "e"),
        "backoff": BackoffOver(attempt),
    }
    assert str(attempt) in refused(STATES[state]().core, events[answer], LateAnswer)


def test_a_rollout_that_runs_has_no_backoff_to_end() -> None:
    world = waiting()
    refused(world.core, BackoffOver(world.running(1)), LateAnswer)


def _twice(world: World, event: Event, kind: type[IllegalEvent]) -> None:
    world.apply(event)
    refused(world.core, event, kind)


def test_no_report_of_the_trainer_counts_twice() -> None:
    world = training()
    _twice(world, ChunkTrained(0), IllegalEvent)
    _twice(world, StepFinished(0), IllegalEvent)
    _twice(world, SyncFinished(1), IllegalEvent)


@pytest.mark.parametrize("zero_variance", [False, True])
def test_no_answer_counts_twice(zero_variance: bool) -> None:
    """D2, for a group that is kept and for one that is filtered and replaced."""
    world = world_of(failure=REPLACE, grpo={"use_dynamic_sampling": True})
    prompt = running_prompts(world)[0]
    attempt = world.running(prompt)
    _twice(world, GroupFinished(attempt, zero_variance), LateAnswer)
    for late in (GroupFailed(attempt, INFRA, "e"), GroupFailed(attempt, DATA, "e"), BackoffOver(attempt)):
        refused(world.core, late, LateAnswer)


def test_a_failure_counts_once_whether_it_is_retried_backs_off_or_is_given_up_on() -> None:
    """D2, L7."""
    backing_off = world_of(failure={"backoff_base_s": 4.0})
    first = backing_off.running(0)
    _twice(backing_off, GroupFailed(first, INFRA, "e"), LateAnswer)
    refused(backing_off.core, GroupFinished(first, False), LateAnswer)
    _twice(backing_off, BackoffOver(first), LateAnswer)
    at_once = world_of()
    _twice(at_once, GroupFailed(at_once.running(0), DATA, "e"), LateAnswer)
    given_up = world_of(
        failure={"max_data_attempts_per_prompt": 1, "max_skipped_prompts": 1, "min_step_batch_fraction": 0.5}
    )
    _twice(given_up, GroupFailed(given_up.running(0), DATA, "e"), LateAnswer)


def test_an_attempt_that_waits_for_a_sync_gives_no_answer() -> None:
    """D2: the retry of a group that failed during a sync has not started; the failed attempt is over."""
    world = syncing()
    attempt = world.running(2)
    world.apply(GroupFailed(attempt, DATA, "e"))
    for late in (GroupFinished(attempt, False), GroupFailed(attempt, DATA, "e"), BackoffOver(attempt)):
        refused(world.core, late, LateAnswer)


def test_an_unreadable_group_leaves_its_chunk_once_and_only_its_own() -> None:
    """S5."""
    world = world_of("ready_first", failure={"max_consecutive_dropped_prompts": 3, "min_step_batch_fraction": 0.5})
    world.commit(0)
    world.commit(1)
    world.commit(2)
    assert "not in the chunk" in refused(world.core, ClaimUnreadable(2, "ready, not in training"))
    assert "not in the chunk" in refused(world.core, ClaimUnreadable(3, "in flight"))
    _twice(world, ClaimUnreadable(1, "e"), IllegalEvent)


def test_answers_to_the_process_before_a_crash_are_late() -> None:
    """C2, D2: the same prompt, slot and order, and yet another attempt."""
    world = waiting()
    world.checkpoint()
    before = world.running(1)
    world.crash()
    after = world.running(1)
    assert before != after
    for late in (GroupFinished(before, False), GroupFailed(before, INFRA, "e"), BackoffOver(before)):
        refused(world.core, late, LateAnswer)
    fresh = world_of()
    from_before = fresh.running(0)
    fresh.crash()
    refused(fresh.core, GroupFinished(from_before, False), LateAnswer)


@pytest.mark.parametrize("what", [None, "commit", 3, (), ("commit", 0), Attempt(0, 0)], ids=repr)
def test_what_is_no_event_is_refused_by_name(what: Any) -> None:
    assert "no event" in refused(waiting().core, what)


def test_the_observer_hears_of_applied_events_only() -> None:
    heard: list[AppliedEvent] = []
    world = World(config_of(), 8, observer=heard.append)
    refused(world.core, Begin())
    refused(world.core, ChunkTrained(0))
    refused(world.core, GroupFinished(Attempt(7, 7), False), LateAnswer)
    assert [type(each.event) for each in heard] == [Begin]


NUMBERS = st.integers(-2, 9)
ATTEMPTS = st.builds(Attempt, NUMBERS, NUMBERS, st.integers(-1, 2))
ANY_EVENT = st.one_of(
    st.builds(GroupFinished, ATTEMPTS, st.booleans()),
    st.builds(GroupFailed, ATTEMPTS, st.sampled_from(FailureKind), st.just("e")),
    st.builds(BackoffOver, ATTEMPTS),
    st.builds(ChunkTrained, NUMBERS),
    st.builds(ClaimUnreadable, NUMBERS, st.just("e")),
    st.builds(StepFinished, NUMBERS),
    st.builds(SyncFinished, NUMBERS),
    st.just(Begin()),
)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(sorted(STATES)), st.lists(ANY_EVENT, max_size=12))
def test_whatever_event_comes_is_applied_or_refused_and_a_refusal_changes_nothing(
    state: str, events: list[Event]
) -> None:
    world = STATES[state]()
    for event in events:
        before = all_of(world.core)
        try:
            world.apply(event)
        except IllegalEvent:
            assert all_of(world.core) == before
