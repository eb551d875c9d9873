"""A counterexample as the text of files that reproduce it: a scenario, and a pytest test of the property itself."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from pprint import pformat
from typing import Any

import yaml

from fsm.config.parse import parse_config
from fsm.state import GroupClass
from specs.check.cases import Case, laws_under, properties_in
from specs.check.concrete import Concrete, Untold, document_of
from specs.check.user_properties import load_properties
from specs.checker.explore import Result
from specs.counterexample import Unconfirmed, confirm
from specs.model import CORE, Answer, CrashFrom, WorldOptions
from specs.properties.catalog import properties_of
from specs.properties.kinds import DEADLOCK, Property
from specs.scenarios.run import run_file
from specs.scenarios.world import World as Driven


def breaks(
    config: dict[str, Any],
    num_prompts: int,
    world: WorldOptions,
    answers: list[Answer],
    broken: str,
    cycle_start: int | None = None,
    properties: Sequence[Property] = (),
) -> bool:
    """Whether this story breaks the property of that name, in the core as it is now.

    `config` is as a scenario file has it; `properties` are further ones. False also if the story cannot happen.
    """
    laws = laws_under(parse_config(config, check=False), num_prompts, check=False)
    try:
        confirm(laws, world, properties_of(laws).and_also(properties), CORE, broken, answers, cycle_start)
    except Unconfirmed:
        return False
    return True


def scenario_text(case: Case, result: Result, story: Concrete) -> str:
    """A scenario that holds as long as the counterexample can happen; it is run to be sure. Raises Untold."""
    sentence = properties_in(case).sentence_of(str(result.broken))
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
    """The end of the story, as a scenario expects it."""
    if result.broken == DEADLOCK:
        return {"outcome": "deadlocked"}
    if world.core.error is not None:
        return {"outcome": "stopped", "error": str(world.core.error)[:120]}
    roster = world.core.book.roster
    return {
        "status": world.status,
        "version": world.core.state.trainer.version,
        "closed": [step._asdict() for step in world.core.book.closed],
        "training": list(roster.chunk),
        "in_flight": sorted(roster.in_flight),
        "ready": sorted(group.prompt for group in roster.ready_groups()),
    }


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
    """A pytest test that passes as long as the counterexample breaks the property; it imports a user's own."""
    config = pformat(document_of(case.scaled.config), width=110, sort_dicts=False)
    answers = "".join(f"    {_answer(answer)},\n" for answer in result.counterexample)
    sentence = properties_in(case).sentence_of(str(result.broken)).replace("\\", "/").replace('"', "'")
    own = [target for target in case.properties if load_properties((target,))[0].name == result.broken]
    module, _, name = own[0].partition(":") if own else ("", "", "")
    imports = f"\nfrom {module} import {name}\n" if own else ""
    given = f", properties=[{name}]" if own else ""
    return f'''"""A counterexample that `evenstep check` found: {sentence}."""

from fsm.state import GroupClass
from specs.model import Answer, CrashFrom, WorldOptions
from specs.check.saved import breaks
{imports}
CONFIG = {config}
NUM_PROMPTS = {case.scaled.num_prompts}
WORLD = {_world(case.world)}
STORY = [
{answers}]


def test_the_counterexample_breaks_{result.broken}():
    """Once the cause is gone this fails: turn it into `assert not`, and it keeps the cause away."""
    assert breaks(CONFIG, NUM_PROMPTS, WORLD, STORY, {result.broken!r}, {result.cycle_start!r}{given})
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
