"""The table of happenings in docs/architecture.md is the code's, and every scenario agrees with it."""

import json
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fsm.config.parse import parse_config
from fsm.config.setup import set_up
from fsm.core import AppliedEvent, Core
from fsm.events import Begin, DeadEndReached
from fsm.rules.changes import RULES
from fsm.samplers.builtin import ReadyFirst
from fsm.snapshot import for_other_data, restore, snapshot
from runtime.cli.app import app
from runtime.cli.diagram import BEGIN, END
from runtime.trace.kinds import CODES
from runtime.trace.vocabulary import HAPPENINGS, table
from specs.scenarios import run as scenario_run
from specs.scenarios.world import World

ROOT = Path(__file__).parents[2]
BY_CHANGE = {happening.change: happening for happening in HAPPENINGS}


class AbortRaises(ReadyFirst):
    """A custom sampler that fails when a step closes."""

    def should_abort_inflight(self, view: Any, group_class: Any) -> bool:
        raise RuntimeError("no answer")


def world_of(observer: Any, sampler: dict[str, Any], size: int = 2, **async_rl: Any) -> World:
    grpo = {"num_prompts_per_step": size, "num_generations_per_prompt": 2}
    config = parse_config({"grpo": grpo, "async_rl": {"sampler": sampler, **async_rl}}, check=False)
    return World(config, 16, observer=observer, check_setup=False)


@pytest.fixture(scope="module")
def transitions() -> list[AppliedEvent]:
    """All transitions of all scenarios; then resumes under another N and with other data, and two ends."""
    seen: list[AppliedEvent] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scenario_run, "World", partial(World, observer=seen.append))
        for file in scenario_run.find_scenarios([ROOT / "tests/scenarios"]):
            scenario_run.run_file(file)
    saved = json.loads(json.dumps(snapshot(world_of(None, {"name": "in_order"}).core)))
    other_size = set_up(world_of(None, {"name": "in_order"}, size=4).config, 16, check=False)
    same = set_up(world_of(None, {"name": "in_order"}).config, 16, check=False)
    for setup, taken in ((other_size, saved), (same, for_other_data(saved))):
        restore(setup, taken, observer=seen.append).apply(Begin())
    stuck = world_of(seen.append, {"name": "in_order"}, size=4, max_buffered_rollouts=2)
    for prompt in (0, 1):
        stuck.commit(prompt)
    stuck.apply(DeadEndReached())
    raises = world_of(seen.append, {"name": "custom", "target": f"{__name__}:AbortRaises", "options": {}})
    for prompt in (0, 1):
        raises.commit(prompt)
    raises.chunk_trained()
    raises.step_finished()
    return seen


def test_the_table_of_the_document_is_that_of_the_code() -> None:
    document = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    assert CliRunner().invoke(app, ["diagram", "vocabulary"]).output == f"{table()}\n"
    assert f"{BEGIN}\n{table()}\n{END}" in document, "stale: run `make docs`"


def test_every_change_event_and_effect_of_the_core_is_in_the_table() -> None:
    assert list(BY_CHANGE) == [happening.change for happening in HAPPENINGS], "one row per change"
    assert BY_CHANGE.keys() == RULES.keys()
    events = {event for happening in HAPPENINGS for event in happening.events}
    effects = {effect for happening in HAPPENINGS for effect in happening.effects}
    assert events == {kind for kind in CODES if kind.__module__ == "fsm.events"}
    assert effects == {kind for kind in CODES if kind.__module__ == "fsm.effects"}


def test_events_make_the_changes_that_the_table_says(transitions: list[AppliedEvent]) -> None:
    seen: set[tuple[type, type]] = set()
    for applied in transitions:
        own = False
        for change in applied.changes:
            happening = BY_CHANGE[type(change)]
            if type(applied.event) in happening.events and not own:
                seen.add((type(applied.event), type(change)))
            else:
                assert happening.own_move, f"{applied.event} made {change}"
                own = True  # nothing that the event itself makes comes after
                seen.add((Core, type(change)))
    stated = {(event, happening.change) for happening in HAPPENINGS for event in happening.events}
    stated |= {(Core, happening.change) for happening in HAPPENINGS if happening.own_move}
    assert seen == stated


def test_changes_have_the_effects_that_the_table_says(transitions: list[AppliedEvent]) -> None:
    seen: defaultdict[type, set[type]] = defaultdict(set)
    for applied in transitions:
        left = list(applied.effects)
        for change in applied.changes:
            while left and type(left[0]) in BY_CHANGE[type(change)].effects:
                seen[type(change)].add(type(left.pop(0)))
        assert not left, f"{applied.changes} have effects that the table doesn't say: {left}"
    assert seen == {happening.change: set(happening.effects) for happening in HAPPENINGS if happening.effects}
