"""InvariantBroken leaves everything as it was: state, roster, book. The roster is damaged here, one place at a time."""

import json
from collections.abc import Callable
from copy import deepcopy
from typing import NamedTuple

import pytest

from fsm.errors import InvariantBroken
from fsm.events import Attempt, Begin, Event, GroupFinished, StepFinished, SyncFinished
from fsm.groups.invariants import check_deep
from fsm.groups.roster import Roster
from fsm.rules import on_event
from fsm.rules.changes import Done
from fsm.rules.laws import Laws
from fsm.snapshot import restore
from fsm.state import GroupClass, State
from specs.scenarios.world import World
from tests.fsm.helpers import REPLACE, all_of, running_prompts, world_of


def finished(world: World, prompt: int, *, zero_variance: bool = False) -> Event:
    return GroupFinished(attempt_of(world, prompt), zero_variance)


def attempt_of(world: World, prompt: int) -> Attempt:
    book = world.core.book
    return book.attempt(book.roster.in_flight[prompt])


def a_chunk_is_selected() -> tuple[World, Event]:
    world = world_of()
    world.commit(0)
    return world, finished(world, 1)


def the_queue_is_dispatched() -> tuple[World, Event]:
    world = world_of("ready_first", 1, max_inflight_prompts=1)
    return world, finished(world, 0)


def a_spare_replaces() -> tuple[World, Event]:
    world = world_of("ready_first", 1, grpo={"use_dynamic_sampling": True}, failure=REPLACE)
    return world, finished(world, running_prompts(world)[0], zero_variance=True)


def stale(prompts: int) -> World:
    """windowed, no staleness: step 0 is finishing, and prompts 2 and 3 were dispatched under version 0."""
    world = world_of("windowed", 0, prompts=prompts)
    world.commit(0)
    world.commit(1)
    return world


def a_running_group_is_aborted() -> tuple[World, Event]:
    world = stale(8)
    world.chunk_trained()
    return world, StepFinished(0)


def a_ready_group_is_evicted() -> tuple[World, Event]:
    world = stale(8)
    world.commit(2)
    world.chunk_trained()
    world.step_finished()
    return world, SyncFinished(1)


def no_ready_group(roster: Roster) -> None:
    roster.ready.clear()


def nothing_queued(roster: Roster) -> None:
    roster.queue.clear()


def no_spare(roster: Roster) -> None:
    roster.spares.clear()


def one_more_runs(roster: Roster) -> None:
    [group, *_] = roster.in_order()
    roster.running[group.group_class][10_000] = group


DAMAGES: dict[str, tuple[Callable[[], tuple[World, Event]], Callable[[Roster], None], str]] = {
    "selection": (a_chunk_is_selected, no_ready_group, "ChunkSelected.* takes 2 groups of ready .* has 1"),
    "dispatch": (the_queue_is_dispatched, nothing_queued, "QueueDispatched.* takes 1 groups of queue, .* has 0"),
    "replacement": (a_spare_replaces, no_spare, "GroupReplaced.* takes 1 groups of spares, .* has 0"),
    "abort": (a_running_group_is_aborted, one_more_runs, "GroupsAborted.* takes 4 groups of running .* has 5"),
    "eviction": (a_ready_group_is_evicted, no_ready_group, "GroupsEvicted.* takes 1 groups of ready .* has 0"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_roster_that_lacks_what_a_change_takes_is_found_before_anything_changes(damage: str) -> None:
    arrange, harm, told = DAMAGES[damage]
    world, event = arrange()
    core, whole = world.core, deepcopy(world.core.book.roster)
    harm(core.book.roster)
    before = all_of(core), list(core.book.closed)
    with pytest.raises(InvariantBroken, match=told):
        core.apply(event)
    assert (all_of(core), list(core.book.closed)) == before
    core.book.roster = whole
    core.apply(event)
    check_deep(core.state, core.limits, core.book.roster)


commit = on_event.commit


def twice(state: State, laws: Laws, group_class: GroupClass, label: int) -> Done:
    moved, done = commit(state, laws, group_class, label)
    return moved, [*done, *done]


class Unknown(NamedTuple):
    """A change that no one knows."""


def unknown(state: State, laws: Laws, group_class: GroupClass, label: int) -> Done:
    moved, done = commit(state, laws, group_class, label)
    return moved, [*done, Unknown()]  # type: ignore[list-item]


def unknown_alone(state: State, laws: Laws, group_class: GroupClass, label: int) -> Done:
    return state, [Unknown()]  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        (twice, "its group was changed before"),
        (unknown, "nobody carries out"),
        (unknown_alone, "names none|nobody carries out"),
    ],
)
def test_a_rule_that_does_what_cannot_be_is_found_before_anything_changes(
    monkeypatch: pytest.MonkeyPatch, rule: Callable[..., Done], told: str
) -> None:
    world = world_of()
    event = finished(world, 0)
    before = all_of(world.core)
    with monkeypatch.context() as patch:
        patch.setattr(on_event, "commit", rule)
        with pytest.raises(InvariantBroken, match=told):
            world.core.apply(event)
    assert all_of(world.core) == before
    world.core.apply(event)


def test_a_resume_begins_or_leaves_the_core_as_it_was() -> None:
    world, _ = a_chunk_is_selected()
    world.commit(1)
    core = restore(world.core.setup, json.loads(world.snapshot()))
    before = all_of(core)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Roster, "selected", lambda roster: [])
        with pytest.raises(InvariantBroken, match=r"ChunkSelected.* takes 2 groups of ready .* has 0"):
            core.apply(Begin())
    assert all_of(core) == before
    core.apply(Begin())
    check_deep(core.state, core.limits, core.book.roster)
