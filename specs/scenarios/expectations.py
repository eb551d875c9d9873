"""What a scenario can expect of a run, one function a key (docs/scenarios.md)."""

from collections.abc import Callable, Iterable
from typing import Any

from fsm.samplers.protocol import optional
from fsm.state import State, assembling_step, charged, selected
from specs.scenarios.world import World

Problems = Callable[[World, Any], list[str]]


def _is(what: str, find: Callable[[World], object]) -> Problems:
    def problems(world: World, wanted: object) -> list[str]:
        found = find(world)
        return [] if wanted == found else [f"{what} is {found}, expected {wanted}"]

    return problems


def _are(what: str, find: Callable[[World], Iterable[int]]) -> Problems:
    def problems(world: World, wanted: list[int]) -> list[str]:
        listed, expected = sorted(find(world)), sorted(set(wanted))
        return [] if expected == listed else [f"{what} are {listed}, expected {expected}"]

    return problems


def _per_step(what: str, of_open: Callable[[State, int], int]) -> Problems:
    def problems(world: World, wanted: dict[int, int]) -> list[str]:
        closed = {step.step: step._asdict()[what] for step in world.core.book.closed}
        found = {step: closed[step] if step in closed else of_open(world.core.state, step) for step in wanted}
        return [
            f"{what} of step {step} is {found[step]}, expected {wanted[step]}"
            for step in wanted
            if wanted[step] != found[step]
        ]

    return problems


def _per_prompt(field: str) -> Problems:
    def problems(world: World, wanted: dict[int, int | None]) -> list[str]:
        roster = world.core.book.roster
        classes = {group.prompt: group.group_class for group in [*roster.in_flight.values(), *roster.ready_groups()]}
        lines = []
        for prompt, value in wanted.items():
            if prompt not in classes:
                lines.append(f"prompt {prompt} is neither in flight nor ready, so it has no {field}")
            elif value != (found := optional(classes[prompt]._asdict()[field])):
                lines.append(f"{field} of prompt {prompt} is {found}, expected {value}")
        return lines

    return problems


def _closed(world: World, wanted: list[dict[str, int]]) -> list[str]:
    expected = [{"short": 0, **step} for step in wanted]
    found = [closed._asdict() for closed in world.core.book.closed]
    return [] if expected == found else [f"closed steps are {found}, expected {expected}"]


def _training(world: World, wanted: list[int]) -> list[str]:
    found = list(world.core.book.roster.chunk)
    return [] if wanted == found else [f"training, in order, are {found}, expected {wanted}"]


def _waits_for(world: World, wanted: str) -> list[str]:
    found = world.core.waits_for()
    return [] if wanted in found else [f"waits_for does not contain {wanted!r}: {found}"]


def _error(world: World, wanted: str) -> list[str]:
    if world.core.error is None:
        return [f"the run was not stopped by an error (it is {world.status}), expected one with {wanted!r}"]
    found = str(world.core.error)
    return [] if wanted in found else [f"the error does not contain {wanted!r}: {found}"]


def _balance(world: World, wanted: dict[str, int]) -> list[str]:
    found = world.core.state.sheet.as_counts()
    return [f"balance {key} is {found[key]}, expected {count}" for key, count in wanted.items() if count != found[key]]


EXPECTATIONS: dict[str, Problems] = {
    "version": _is("version", lambda world: world.core.state.trainer.version),
    "assembling": _is(
        "assembling", lambda world: None if world.over else assembling_step(world.core.state, world.core.limits)
    ),
    "selected": _per_step("selected", selected),
    "charged": _per_step("charged", charged),
    "closed": _closed,
    "in_flight": _are("in flight", lambda world: world.core.book.roster.in_flight),
    "ready": _are("ready", lambda world: (group.prompt for group in world.core.book.roster.ready_groups())),
    "training": _training,
    "spares": _are("spares", lambda world: world.core.book.roster.spares),
    "queued": _are("queued", lambda world: world.core.book.roster.queue),
    "target_step": _per_prompt("target_step"),
    "start_weight": _per_prompt("start_weight"),
    "gate": _is("gate", lambda world: world.core.state.gate.status.name.lower()),
    "status": _is("status", lambda world: world.status),
    "waits_for": _waits_for,
    "error": _error,
    "outcome": _is(
        "outcome",
        lambda world: world.status if world.status in ("completed", "stopped", "deadlocked") else "unfinished",
    ),
    "balance": _balance,
}
"""Per key of an `expect` the problems that it finds; none if it holds."""
