"""Writes a counterexample as files that reproduce it: a scenario, and a pytest test of the property itself."""

from __future__ import annotations

import tempfile
from pathlib import Path
from pprint import pformat
from typing import Any

import yaml

from fsm.config.parse import parse_config
from fsm.effects import StepClosed
from fsm.state import GroupClass
from specs.check.cases import Case, laws_in
from specs.check.concrete import Concrete, Untold, document_of
from specs.check.scaling import Scaled
from specs.check.story import sentence_of
from specs.checker.explore import Result
from specs.counterexample import Unconfirmed, confirm
from specs.model import CORE, Answer, CrashFrom, WorldOptions
from specs.properties.kinds import DEADLOCK, properties_of
from specs.scenarios.run import run_file
from specs.scenarios.world import World as Driven


def breaks(
    config: dict[str, Any],
    num_prompts: int,
    world: WorldOptions,
    answers: list[Answer],
    broken: str,
    cycle_start: int | None = None,
) -> bool:
    """Whether this story breaks the property of that name, in the core as it is now.

    `config` is as a scenario file has it. False also where the story cannot happen any more.
    """
    case = Case("saved", Scaled(parse_config(config, check=False), num_prompts, 0, ()), world)
    laws = laws_in(case)
    try:
        confirm(laws, world, properties_of(laws), CORE, broken, answers, cycle_start)
    except Unconfirmed:
        return False
    return True


def scenario_text(case: Case, result: Result, story: Concrete) -> str:
    """A scenario that holds as long as the counterexample can happen, run to be sure. Raises Untold."""
    sentence = sentence_of(properties_of(laws_in(case)), str(result.broken))
    document = {
        "name": f"counterexample of {result.broken}: {sentence}",
        "source": "evenstep check",
        "config": story.config,
        "data": {"num_prompts": story.num_prompts},
        "moves": [move for told in story.told for move in told.moves],
        "expect": _expectation(result, story.world),
    }
    text = yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "scenario.yaml"
        path.write_text(text, encoding="utf-8")
        problems = run_file(path, check_setup=False).problems
    if problems:
        raise Untold(f"the scenario does not do the same: {'; '.join(problems)}")
    return text


def _expectation(result: Result, world: Driven) -> dict[str, Any]:
    """What the end of the story is known by."""
    if result.broken == DEADLOCK:
        return {"outcome": "deadlocked"}
    if world.core.error is not None:
        return {"outcome": "stopped", "error": str(world.core.error)[:120]}
    roster = world.core.book.roster
    closed = [_closed(step) for step in world.core.book.closed]
    return {
        "status": world.status,
        "version": world.core.state.trainer.version,
        "closed": closed,
        "training": list(roster.chunk),
        "in_flight": sorted(roster.in_flight),
        "ready": sorted(group.prompt for group in roster.ready_groups()),
    }


def _closed(step: StepClosed) -> dict[str, int]:
    return step._asdict()


class _Dumper(yaml.SafeDumper):
    """Lists of prompts in one line, the rest as a person writes it."""

    def ignore_aliases(self, data: object) -> bool:
        """No anchors."""
        return True

    def represent_sequence(self, tag: str, sequence: Any, flow_style: bool | None = None) -> yaml.SequenceNode:
        """In one line where it holds numbers alone."""
        numbers = all(isinstance(item, int) for item in sequence)
        return super().represent_sequence(tag, sequence, flow_style=numbers or flow_style)


def pytest_text(case: Case, result: Result) -> str:
    """A pytest test that passes as long as the counterexample breaks the property."""
    config = pformat(document_of(case.scaled.config), width=110, sort_dicts=False)
    answers = "".join(f"    {_answer(answer)},\n" for answer in result.counterexample)
    sentence = sentence_of(properties_of(laws_in(case)), str(result.broken))
    return f'''"""A counterexample that `evenstep check` found: {sentence}."""

from fsm.state import GroupClass
from specs.model import Answer, CrashFrom, WorldOptions
from specs.check.saved import breaks

CONFIG = {config}
NUM_PROMPTS = {case.scaled.num_prompts}
WORLD = {_world(case.world)}
STORY = [
{answers}]


def test_the_counterexample_breaks_{result.broken}():
    """Once the cause is gone this fails: turn it into `assert not`, and it keeps the cause away."""
    assert breaks(CONFIG, NUM_PROMPTS, WORLD, STORY, {result.broken!r}, {result.cycle_start!r})
'''


def _answer(answer: Answer) -> str:
    parts = [repr(answer.name)]
    if answer.group_class is not None:
        parts.append(_class(answer.group_class))
    if answer.label:
        parts.append(f"label={answer.label}")
    return f"Answer({', '.join(parts)})"


def _class(group_class: GroupClass) -> str:
    defaults = group_class._field_defaults
    given = [f"{name}={value}" for name, value in group_class._asdict().items() if value != defaults[name]]
    return f"GroupClass({', '.join(given)})"


def _world(world: WorldOptions) -> str:
    parts = [f"{name}={value}" for name, value in world._asdict().items() if name != "crash"]
    return f"WorldOptions({', '.join(parts)}, crash=CrashFrom.{CrashFrom(world.crash).name})"
