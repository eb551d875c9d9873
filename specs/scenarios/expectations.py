"""What a scenario can expect of a run, one function a key (shared format: the README of the scenarios)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from fsm.effects import StepClosed
from fsm.samplers.protocol import optional
from fsm.state import assembling_step, charged, selected
from specs.scenarios.world import World


def balance(world: World) -> dict[str, int]:
    """The balance sheet by the names of the format."""
    tally = world.core.state.tally
    return {**tally._asdict(), "leftover": tally.leftover}


def _number(wanted: int | None, found: int | None, what: str) -> list[str]:
    return [] if wanted == found else [f"{what} is {found}, expected {wanted}"]


def _set(wanted: list[int], found: Iterable[int], what: str) -> list[str]:
    listed = sorted(found)
    return [] if sorted(set(wanted)) == listed else [f"{what} are {listed}, expected {sorted(set(wanted))}"]


def _version(world: World, wanted: int) -> list[str]:
    return _number(wanted, world.core.state.trainer.version, "version")


def _assembling(world: World, wanted: int | None) -> list[str]:
    found = None if world.over else assembling_step(world.core.state, world.core.limits)
    return _number(wanted, found, "assembling")


def _closed_steps(world: World) -> dict[int, StepClosed]:
    return {closed.step: closed for closed in world.core.book.closed}


def _selected(world: World, wanted: dict[int, int]) -> list[str]:
    closed = _closed_steps(world)
    found = {s: closed[s].selected if s in closed else selected(world.core.state, s) for s in wanted}
    return [line for s in wanted for line in _number(wanted[s], found[s], f"selected of step {s}")]


def _charged(world: World, wanted: dict[int, int]) -> list[str]:
    closed = _closed_steps(world)
    found = {s: closed[s].charged if s in closed else charged(world.core.state, s) for s in wanted}
    return [line for s in wanted for line in _number(wanted[s], found[s], f"charged of step {s}")]


def _closed(world: World, wanted: list[dict[str, int]]) -> list[str]:
    expected = [{"short": 0, **step} for step in wanted]
    found = [closed._asdict() for closed in world.core.book.closed]
    return [] if expected == found else [f"closed steps are {found}, expected {expected}"]


def _in_flight(world: World, wanted: list[int]) -> list[str]:
    return _set(wanted, world.core.book.roster.in_flight, "in flight")


def _ready(world: World, wanted: list[int]) -> list[str]:
    return _set(wanted, (group.prompt for group in world.core.book.roster.ready_groups()), "ready")


def _training(world: World, wanted: list[int]) -> list[str]:
    found = list(world.core.book.roster.chunk)
    return [] if wanted == found else [f"training, in order, are {found}, expected {wanted}"]


def _spares(world: World, wanted: list[int]) -> list[str]:
    return _set(wanted, world.core.book.roster.spares, "spares")


def _queued(world: World, wanted: list[int]) -> list[str]:
    return _set(wanted, world.core.book.roster.queue, "queued")


def _by_prompt(world: World, wanted: dict[int, int | None], field: str) -> list[str]:
    roster = world.core.book.roster
    classes = {group.prompt: group.group_class for group in [*roster.in_flight.values(), *roster.ready_groups()]}
    problems = []
    for prompt, value in wanted.items():
        if prompt not in classes:
            problems.append(f"prompt {prompt} is neither in flight nor ready, so it has no {field}")
        else:
            found = optional(classes[prompt][classes[prompt]._fields.index(field)])
            problems += _number(value, found, f"{field} of prompt {prompt}")
    return problems


def _target_step(world: World, wanted: dict[int, int | None]) -> list[str]:
    return _by_prompt(world, wanted, "target_step")


def _start_weight(world: World, wanted: dict[int, int | None]) -> list[str]:
    return _by_prompt(world, wanted, "start_weight")


def _text(wanted: str, found: str, what: str) -> list[str]:
    return [] if wanted == found else [f"{what} is {found}, expected {wanted}"]


def _gate(world: World, wanted: str) -> list[str]:
    return _text(wanted, world.core.state.gate.status.name.lower(), "gate")


def _status(world: World, wanted: str) -> list[str]:
    return _text(wanted, world.status, "status")


def _waits_for(world: World, wanted: str) -> list[str]:
    found = world.core.waits_for()
    return [] if wanted in found else [f"waits_for does not contain {wanted!r}: {found}"]


def _error(world: World, wanted: str) -> list[str]:
    if world.core.error is None:
        return [f"the run was not stopped by an error (it is {world.status}), expected one with {wanted!r}"]
    found = str(world.core.error)
    return [] if wanted in found else [f"the error does not contain {wanted!r}: {found}"]


def _outcome(world: World, wanted: str) -> list[str]:
    found = world.status if world.status in ("completed", "stopped", "deadlocked") else "unfinished"
    return _text(wanted, found, "outcome")


def _balance(world: World, wanted: dict[str, int]) -> list[str]:
    found = balance(world)
    return [line for key, count in wanted.items() for line in _number(count, found[key], f"balance {key}")]


EXPECTATIONS: dict[str, Callable[[World, Any], list[str]]] = {
    "version": _version,
    "assembling": _assembling,
    "selected": _selected,
    "charged": _charged,
    "closed": _closed,
    "in_flight": _in_flight,
    "ready": _ready,
    "training": _training,
    "spares": _spares,
    "queued": _queued,
    "target_step": _target_step,
    "start_weight": _start_weight,
    "gate": _gate,
    "status": _status,
    "waits_for": _waits_for,
    "error": _error,
    "outcome": _outcome,
    "balance": _balance,
}
"""Per key of an `expect` the problems that it finds; none where it holds."""
