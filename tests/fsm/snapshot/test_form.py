"""C1: a snapshot that no core wrote is refused by the part, the value and what is expected, and nothing else."""

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsm.core import Core
from fsm.errors import ConfigError, IllegalSnapshot
from fsm.events import Begin, FailureKind
from fsm.groups.invariants import check_deep
from fsm.snapshot import reinstate, restore, snapshot
from specs.scenarios.world import World
from tests.fsm.helpers import examples, go_on, quick_core, running_prompts, step_on, world_of

BUILTIN = ("in_order", "ready_first", "windowed", "weight_fifo")
CUSTOM = ("examples.short_first:ShortFirst", "dead_end_samplers:ChargesNone", "dead_end_samplers:ChargesTheNextStep",
          "dead_end_samplers:StampsTheNextStep", "dead_end_samplers:AbortsWhatIsStale")  # fmt: skip
Path = tuple[Any, ...]


def a_world(sampler: str, seed: int, moves: int) -> World:
    """A random run of two groups a step, with losses, replacements and retries wherever the sampler may have them."""
    chance = random.Random(seed)
    lossy = {"max_infra_attempts_per_prompt": 2, "max_consecutive_dropped_prompts": 99, "min_step_batch_fraction": 0.1}
    pool = {"on_dropped_prompt": "replace", "max_replacement_attempts": 2, "replacement_reserve_prompts": 2}
    failure: dict[str, Any] = {"backoff_base_s": chance.choice([0.0, 9.0])}
    if sampler != "weight_fifo":
        failure |= lossy
    if sampler in ("in_order", "ready_first"):
        failure |= pool
    options = {"short_tokens": 5} if "ShortFirst" in sampler else {} if ":" in sampler else None
    grpo = {"max_num_epochs": 2, "use_dynamic_sampling": "replace" in failure.get("on_dropped_prompt", "")}
    world = world_of(
        sampler, 1, prompts=9, failure=failure, options=options, grpo=grpo, min_groups_for_streaming_train=1
    )
    for _ in range(moves):
        if world.over or (world.status == "deadlocked"):
            break
        running = running_prompts(world)
        if not running or chance.random() < 0.3:
            if not step_on(world):
                go_on(world)
        elif chance.random() < 0.4 and sampler != "weight_fifo":
            world.fail(chance.choice(running), chance.choice(list(FailureKind)))
        else:
            world.commit(chance.choice(running))
    return world


def saved(world: World) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(world.snapshot())
    return loaded


def a_snapshot(sampler: str = "in_order", seed: int = 1, moves: int = 9) -> tuple[World, dict[str, Any]]:
    world = a_world(sampler, seed, moves)
    while world.over:
        moves -= 1
        world = a_world(sampler, seed, moves)
    return world, saved(world)


def live(core: Core) -> None:
    """Begin, and let all go well for a while; what holds of every state holds all the time."""
    world = World(core.setup.config, core.limits.prompts_per_epoch)
    world.core = core
    world._open()
    check_deep(core.state, core.limits, core.book.roster)
    for _ in range(40):
        if world.over or world.status == "deadlocked":
            return
        go_on(world)
        check_deep(core.state, core.limits, core.book.roster)


@settings(max_examples=examples(200), deadline=None)
@given(st.sampled_from(BUILTIN + CUSTOM), st.integers(0, 2**32), st.integers(0, 40))
def test_what_a_core_wrote_is_never_refused(sampler: str, seed: int, moves: int) -> None:
    world, written = a_snapshot(sampler, seed, moves)
    for optional in ({}, {"num_generations_per_prompt": 2, "first_prompt": 0}):
        live(restore(world.setup, {**written, **optional}, make_core=quick_core))
        reinstate(world.setup, {**written, **optional})


def paths(value: Any, path: Path = ()) -> Iterator[Path]:
    """Every place in a snapshot."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in items:
        yield from paths(each, (*path, key))


def at(value: Any, path: Path) -> Any:
    for key in path:
        value = value[key]
    return value


OTHER_TYPES = st.sampled_from([None, True, 1.0, 1.5, "1", "", [], {}, [1], {"a": 1}, float("nan"), -1, 10**30])


@st.composite
def damages(draw: st.DrawFn, written: dict[str, Any]) -> Any:
    """A snapshot with one part of it deleted, doubled, moved, or given another value or type."""
    damaged = copy.deepcopy(written)
    places = [path for path in paths(damaged) if path]
    path = draw(st.sampled_from(places))
    parent, key = at(damaged, path[:-1]), path[-1]
    match draw(st.sampled_from(["delete", "double", "type", "number", "key", "move", "swap"])):
        case "delete":
            del parent[key]
        case "double" if isinstance(parent, list):
            parent.insert(draw(st.integers(0, len(parent))), copy.deepcopy(parent[key]))
        case "number" if type(parent[key]) is int:
            parent[key] += draw(st.sampled_from([-1000, -2, -1, 1, 2, 1000]))
        case "key" if isinstance(parent, dict):
            parent[draw(st.sampled_from(["extra", "State", "", 3]))] = parent[key]
        case "move" if isinstance(parent, list):
            other = at(damaged, draw(st.sampled_from([each for each in places if isinstance(at(damaged, each), list)])))
            other.append(copy.deepcopy(parent.pop(key)))
        case "swap" if isinstance(parent, list):
            other_key = draw(st.integers(0, len(parent) - 1))
            parent[key], parent[other_key] = parent[other_key], parent[key]
        case _:
            parent[key] = draw(OTHER_TYPES)
    return damaged


@settings(max_examples=examples(1_500), deadline=None)
@given(st.data(), st.sampled_from(BUILTIN), st.integers(0, 50), st.integers(0, 30))
def test_a_damaged_snapshot_is_refused_or_is_one_that_a_core_can_go_on_from(
    data: st.DataObject, sampler: str, seed: int, moves: int
) -> None:
    world, written = a_snapshot(sampler, seed, moves)
    damaged = data.draw(damages(written))
    try:
        core = restore(world.setup, damaged, make_core=quick_core)
    except ConfigError:
        return
    live(core)


@pytest.mark.parametrize("given", [None, [], "x", 3, {}, {"format": 1}])
def test_what_is_no_snapshot_at_all_is_refused(given: Any) -> None:
    world, _ = a_snapshot()
    for take_up in (restore, reinstate):
        with pytest.raises(IllegalSnapshot):
            take_up(world.setup, given)


def damaged_at(path: Path, value: Any) -> str:
    """Why a snapshot with that value is refused."""
    world, written = a_snapshot()
    at(written, path[:-1])[path[-1]] = value
    with pytest.raises(IllegalSnapshot) as refused:
        restore(world.setup, written)
    return str(refused.value)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("state", "trainer", 1), -1, "state.trainer.version is -1; expected: a whole number of at least 0"),
        (("state", "trainer", 0), 9, "state.trainer.status is 9; expected: 0 (assembling), 1 (training), 2 (finish"),
        (("state", "tally"), [1, 2], "state.tally is a list of 2; expected: a list of 12: pulled, spare, queued"),
        (("state", "gate", 1), "0", 'state.gate.dispatch_index is the text "0"; expected: a whole number of at least'),
        (("state", "gate", 1), True, "state.gate.dispatch_index is true; expected: a whole number of at least -1"),
        (("incarnation",), 0.0, "incarnation is 0.0; expected: a whole number of at least 0"),
        (("sampler",), None, "sampler is null; expected: text"),
        (("sampler_stamps_target_steps",), 1, "sampler_stamps_target_steps is 1; expected: true or false"),
        (("queue",), {}, "queue is a mapping; expected: a list"),
        (("more",), 1, "more is no part of a snapshot; expected: format, sampler"),
        (("state", "more"), 1, "state.more is no part of a snapshot; expected: run, source"),
        (("ready", 0, 5), [0, -1, 0, 0], "ready[0].group_class is a list of 4; expected: a list of 5: target_step"),
        (("closed",), [[5, 2, 0, 0]], "closed has 1 step, [5] at its end; expected: steps 0 to"),
        (("next_slot",), 0, "with slot"),
        (("next_dispatch",), 1, "with dispatch"),
    ],
)
def test_the_part_the_value_and_what_is_expected_are_named(path: Path, value: Any, said: str) -> None:
    refused = damaged_at(path, value)
    assert said in refused
    assert "resume from another checkpoint" in refused


def test_missing_and_doubled_parts_are_named() -> None:
    world, written = a_snapshot()
    assert written["ready"]
    for key in written.keys() - {"num_generations_per_prompt", "first_prompt", "sampler_keeps_every_slot"}:  # new ones
        without = {name: value for name, value in written.items() if name != key}
        with pytest.raises(IllegalSnapshot, match=f"{key} is missing|has format None"):
            restore(world.setup, without)
    for key in written["state"]:
        state = {name: value for name, value in written["state"].items() if name != key}
        with pytest.raises(IllegalSnapshot, match=f"state.{key} is missing"):
            restore(world.setup, {**written, "state": state})
    first = written["ready"][0]
    with pytest.raises(IllegalSnapshot, match=f"ready has prompt {first[0]}, as has ready; .* in one place"):
        restore(world.setup, {**written, "ready": [first, *written["ready"]]})
    with pytest.raises(IllegalSnapshot, match=f"ready has prompt {first[0]}, as has queue"):
        restore(world.setup, {**written, "queue": [first[0]]})


def test_a_roster_without_one_of_the_groups_that_are_counted_is_refused_with_both_counts() -> None:
    world, written = a_snapshot()
    ready = written["ready"]
    with pytest.raises(IllegalSnapshot, match=rf"the roster has {len(ready) - 1} groups ready, .* counted \["):
        restore(world.setup, {**written, "ready": ready[1:]})


def test_a_refused_snapshot_is_left_as_it_was() -> None:
    world, written = a_snapshot()
    written["next_chunk"] = -1
    before = copy.deepcopy(written)
    with pytest.raises(IllegalSnapshot):
        restore(world.setup, written)
    assert written == before


def test_a_restored_core_begins_as_any_does() -> None:
    world, written = a_snapshot()
    core = restore(world.setup, written)
    assert core.apply(Begin())


@pytest.mark.parametrize("sampler", ["in_order", "ready_first", "windowed", "dead_end_samplers:ChargesNone"])
@pytest.mark.parametrize("ending", ["completed", "budget", "floor", "stall"])
def test_a_run_that_is_over_is_reinstated_whatever_ended_it(sampler: str, ending: str) -> None:
    """Its last loss may have stopped it before a step was charged for it."""
    budget = {"budget": 0, "floor": 9}.get(ending, 9)
    failure = {"max_infra_attempts_per_prompt": 1, "max_consecutive_dropped_prompts": budget}
    watchdog = {"stall_timeout_s": 5.0, "stall_action": "abort"}
    options = {} if ":" in sampler else None
    world = world_of(sampler, 1, prompts=6, failure=failure, stall_watchdog=watchdog, options=options)
    world.commit(0)
    if ending == "stall":
        world.tick(6.0)
    while ending == "completed" and not world.over:
        go_on(world)
    for prompt in running_prompts(world) if ending in ("budget", "floor") else ():
        if not world.over:
            world.fail(prompt, FailureKind.INFRA)
    if not world.over:
        return
    written = saved(world)
    assert json.loads(json.dumps(snapshot(reinstate(world.setup, written)))) == written


def test_a_snapshot_with_its_last_steps_alone_as_a_trace_has_it_is_reinstated_and_not_resumed() -> None:
    world, written = a_snapshot(moves=30)
    assert len(written["closed"]) >= 2
    last = {**written, "closed": written["closed"][1:]}
    assert reinstate(world.setup, last, closed_before=1).state == world.core.state
    with pytest.raises(IllegalSnapshot, match=f"closed has {len(last['closed'])} steps.*expected: steps 0 to"):
        restore(world.setup, last)
