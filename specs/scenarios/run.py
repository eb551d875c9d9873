"""Runs scenario files against the real core, without Ray, torch and a clock."""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fsm.config.parse import parse_config
from fsm.errors import ConfigError, EvenstepError
from fsm.events import FailureKind
from specs.scenarios.expectations import EXPECTATIONS
from specs.scenarios.file import Expectation, Move, Scenario, ScenarioMistake, load_scenario
from specs.scenarios.world import World, WorldMistake

Report = Callable[[str], None]


class ScenarioVerdict(NamedTuple):
    """The result of one file."""

    path: Path
    name: str
    problems: tuple[str, ...]
    """Empty if the scenario holds."""

    @property
    def holds(self) -> bool:
        """All that is expected is true."""
        return not self.problems


def find_scenarios(paths: Iterable[Path]) -> list[Path]:
    """The files themselves, and every .yaml or .yml below a directory, in order of their paths.

    Raises FileNotFoundError for a path that does not exist, and for a directory without scenarios.
    """
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            below = sorted(file for pattern in ("*.yaml", "*.yml") for file in path.rglob(pattern) if not file.is_dir())
            if not below:
                raise FileNotFoundError(f"{path} holds no .yaml file")
            found += below
        elif path.exists():
            found.append(path)
        else:
            raise FileNotFoundError(f"{path} does not exist")
    return list(dict.fromkeys(found))


def scenario_config(raw: dict[str, Any]) -> dict[str, Any]:
    """The configuration of a scenario: missing keys keep their defaults, except backoff_base_s, which is 0."""
    config = copy.deepcopy(raw)
    if isinstance(config.get("async_rl", {}), dict):
        failure = config.setdefault("async_rl", {}).setdefault("rollout_failure", {})
        if isinstance(failure, dict):
            failure.setdefault("backoff_base_s", 0.0)
    return config


def run_file(path: Path, report: Report | None = None, *, check_setup: bool = True) -> ScenarioVerdict:
    """Run one file. `report` is told the state after every move; `check_setup=False` refuses no configuration."""
    try:
        scenario = load_scenario(path)
    except ScenarioMistake as mistake:
        return ScenarioVerdict(path, "", (str(mistake),))
    return ScenarioVerdict(path, scenario.name, tuple(_problems(scenario, report, check_setup)))


def _problems(scenario: Scenario, report: Report | None, check_setup: bool) -> Iterator[str]:
    """The first problem, or none: what follows a failed move means nothing."""
    try:
        config = parse_config(scenario_config(scenario.config), check=check_setup)
        world = World(config, scenario.num_prompts, check_setup=check_setup)
    except ConfigError as refused:
        if scenario.config_error is None:
            yield f"the configuration is refused: {refused}"
        elif scenario.config_error not in str(refused):
            yield f"the refusal does not contain {scenario.config_error!r}: {refused}"
        return
    if scenario.config_error is not None:
        yield f"the configuration is accepted, expected a refusal with {scenario.config_error!r}"
        return
    tell = report or (lambda _: None)
    tell(f"start: {world.core.waits_for()}")
    for move in scenario.moves:
        try:
            problems = make_move(world, move)
        except (WorldMistake, EvenstepError) as error:
            yield f"move {move.number} ({move.text}): {error}"
            return
        if problems:
            yield f"move {move.number} ({move.text}): {'; '.join(problems)}"
            return
        tell(f"{move.number}. {move.text}: {world.core.waits_for()}")
    if scenario.expect is not None:
        problems = unmet(world, scenario.expect)
        if problems:
            yield f"at the end: {'; '.join(problems)}"


def unmet(world: World, expectation: Expectation) -> list[str]:
    """The problems of an expectation that does not hold."""
    given = expectation.given()
    return [problem for key, value in given.items() for problem in EXPECTATIONS[key](world, value)]


_FOR_EACH_PROMPT: Mapping[str, Callable[[World, int], object]] = {
    "commit": World.commit,
    "filter": World.filter,
    "drop": lambda world, prompt: world.drop(prompt, FailureKind.INFRA),
    "drop_data": lambda world, prompt: world.drop(prompt, FailureKind.DATA),
    "hang": World.running,
    "late": World.late,
    "claim_failed": World.claim_failed,
}
_WITHOUT_VALUE: Mapping[str, Callable[[World], None]] = {
    "chunk_trained": World.chunk_trained,
    "step_finished": World.step_finished,
    "weights_synced": World.weights_synced,
    "close": World.close,
    "checkpoint": World.checkpoint,
    "crash": World.crash,
}


def make_move(world: World, move: Move) -> list[str]:
    """Make one move. Returns what an `expect` finds wrong; raises WorldMistake if the move cannot be made."""
    name, argument = move.name, move.argument
    if name in _FOR_EACH_PROMPT:
        for prompt in argument:
            _FOR_EACH_PROMPT[name](world, prompt)
    elif name in _WITHOUT_VALUE:
        _WITHOUT_VALUE[name](world)
    elif name == "fail":
        world.fail(argument.prompt, FailureKind(argument.kind))
    elif name == "tick":
        world.tick(argument)
    elif name == "expect":
        return unmet(world, argument)
    else:
        raise WorldMistake(f"{name} is no move")
    return []
