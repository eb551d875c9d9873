"""Scenario files: their format, checked before anything runs."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from fsm.config.strict import load_yaml
from fsm.config.wording import nearest

Prompts = list[int]
Status = Literal["waiting_for_rollouts", "training", "finishing", "syncing", "completed", "stopped", "deadlocked"]


_ABSENT: Any = Field(default=None)
"""A key that may be left out, and is not null where it is given."""


class _Part(BaseModel):
    """A part of a scenario file; an unknown key is a mistake."""

    model_config = ConfigDict(extra="forbid", strict=True)


class ClosedStepExpectation(_Part):
    """One closed step."""

    step: int
    selected: int
    charged: int
    short: int = 0


class BalanceExpectation(_Part):
    """The balance sheet so far; every key is optional."""

    pulled: int = _ABSENT
    trained: int = _ABSENT
    filtered: int = _ABSENT
    dropped: int = _ABSENT
    evicted: int = _ABSENT
    aborted: int = _ABSENT
    replaced: int = _ABSENT
    spare: int = _ABSENT
    queued: int = _ABSENT
    in_flight: int = _ABSENT
    ready: int = _ABSENT
    selected: int = _ABSENT
    leftover: int = _ABSENT


class Expectation(_Part):
    """What must be true. Every key is optional; those that are given are checked."""

    version: int = _ABSENT
    assembling: int | None = None
    selected: dict[int, int] = _ABSENT
    charged: dict[int, int] = _ABSENT
    closed: list[ClosedStepExpectation] = _ABSENT
    in_flight: Prompts = _ABSENT
    ready: Prompts = _ABSENT
    training: Prompts = _ABSENT
    spares: Prompts = _ABSENT
    queued: Prompts = _ABSENT
    target_step: dict[int, int | None] = _ABSENT
    start_weight: dict[int, int | None] = _ABSENT
    gate: Literal["open", "closed"] = _ABSENT
    status: Status = _ABSENT
    waits_for: str = _ABSENT
    error: str = _ABSENT
    outcome: Literal["completed", "stopped", "deadlocked", "unfinished"] = _ABSENT
    balance: BalanceExpectation = _ABSENT

    def given(self) -> dict[str, Any]:
        """The keys that the file gives, as plain values."""
        return self.model_dump(exclude_unset=True)


class FailedAttempt(_Part):
    """One failed attempt."""

    prompt: int
    kind: Literal["infra", "data"]


class Data(_Part):
    """The dataloader."""

    num_prompts: int = Field(ge=0)


class _Scenario(_Part):
    name: str
    source: str | None = None
    config: dict[str, Any] = Field(default_factory=dict)
    data: Data | None = None
    moves: list[Any] = Field(default_factory=list)
    expect: Expectation | None = None
    config_error: str | None = None


_MOVE_ARGUMENTS: dict[str, Any] = {
    "commit": Prompts,
    "filter": Prompts,
    "fail": FailedAttempt,
    "drop": Prompts,
    "drop_data": Prompts,
    "hang": Prompts,
    "late": Prompts,
    "chunk_trained": None,
    "claim_failed": Prompts,
    "step_finished": None,
    "weights_synced": None,
    "close": None,
    "tick": Annotated[float, Field(ge=0, allow_inf_nan=False)],
    "checkpoint": None,
    "crash": None,
    "expect": Expectation,
}
_ARGUMENTS = {name: TypeAdapter(kind) for name, kind in _MOVE_ARGUMENTS.items() if kind is not None}


class Move(NamedTuple):
    """One move of the world, or a check."""

    number: int
    """From 1, as a reader counts."""
    name: str
    argument: Any
    """The prompts of a list, a FailedAttempt, seconds, an Expectation; None for a move without a value."""
    text: str
    """As in the file."""


class Scenario(NamedTuple):
    """A scenario file that is well formed."""

    name: str
    config: dict[str, Any]
    num_prompts: int
    moves: tuple[Move, ...]
    expect: Expectation | None
    config_error: str | None


class ScenarioMistake(Exception):
    """The file is not a scenario, or its moves cannot be made. The message says where and why."""


def _nearest(key: str, known: Iterable[str]) -> str:
    names = list(known)
    return nearest(key, names, f"known are {', '.join(names)}")


def _keys_at(place: tuple[int | str, ...], model: type[BaseModel]) -> Iterable[str]:
    """The known keys at a place of the file."""
    if "balance" in place:
        return BalanceExpectation.model_fields
    if "closed" in place:
        return ClosedStepExpectation.model_fields
    if "data" in place:
        return Data.model_fields
    return Expectation.model_fields if "expect" in place else model.model_fields


def _problems(error: ValidationError, model: type[BaseModel]) -> str:
    lines = []
    for problem in error.errors():
        where = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "extra_forbidden":
            known = _keys_at(problem["loc"][:-1], model)
            lines.append(f"{where} is not a known key; {_nearest(str(problem['loc'][-1]), known)}")
        else:
            said = problem["msg"].split(" or instance of ")[0]
            lines.append(f"{where + ': ' if where else ''}{said} (given: {problem['input']!r})")
    return "; ".join(lines)


def parse_move(number: int, raw: Any) -> Move:
    """One move as a file has it. Raises ScenarioMistake."""
    where = f"move {number}"
    if isinstance(raw, str):
        name, value, has_value = raw, None, False
    elif isinstance(raw, dict) and len(raw) == 1:
        [(name, value)] = raw.items()
        has_value = value is not None
    else:
        raise ScenarioMistake(f"{where} is {raw!r}; a move is a name, or one name with its value")
    text = f"{name}: {value}" if has_value else str(name)
    if name not in _MOVE_ARGUMENTS:
        raise ScenarioMistake(f"{where} ({text}): {name} is not a move; {_nearest(str(name), _MOVE_ARGUMENTS)}")
    if _MOVE_ARGUMENTS[name] is None:
        if has_value:
            raise ScenarioMistake(f"{where} ({text}): {name} takes no value")
        return Move(number, name, None, text)
    try:
        argument = _ARGUMENTS[name].validate_python(value, strict=True)
    except ValidationError as error:
        raise ScenarioMistake(
            f"{where} ({text}): {_problems(error, FailedAttempt if name == 'fail' else Expectation)}"
        ) from None
    return Move(number, name, argument, text)


def load_scenario(path: Path) -> Scenario:
    """Read and check one file. Raises ScenarioMistake."""
    if path.exists() and not path.is_file():
        kind = "a directory" if path.is_dir() else "no plain file"  # a FIFO would be waited for
        raise ScenarioMistake(f"cannot be read: a file is expected, but it is {kind}")
    try:
        raw = load_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ScenarioMistake(f"cannot be read: {error.strerror or error}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ScenarioMistake(f"not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(raw, dict):
        raise ScenarioMistake("a scenario is a mapping with name, config, data, moves and expect")
    try:
        parsed = _Scenario.model_validate(raw)
    except ValidationError as error:
        raise ScenarioMistake(_problems(error, _Scenario)) from None
    if parsed.config_error is not None:
        if parsed.moves or parsed.expect is not None:
            raise ScenarioMistake("config_error stands instead of moves and expect")
    elif parsed.data is None:
        raise ScenarioMistake("data is missing: give data: {num_prompts: n}")
    elif parsed.expect is None and not parsed.moves:
        raise ScenarioMistake("nothing is expected: give moves and expect, or config_error")
    moves = tuple(parse_move(number, move) for number, move in enumerate(parsed.moves, start=1))
    num_prompts = parsed.data.num_prompts if parsed.data is not None else 0
    return Scenario(parsed.name, parsed.config, num_prompts, moves, parsed.expect, parsed.config_error)
