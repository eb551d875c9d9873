"""Feed a recorded run to the core of today, and compare what it answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fsm.config import RunConfig, parse_config
from fsm.config_blocks import CoreLossConfig, CorePolicyConfig
from fsm.core import Core
from fsm.effects import ClosedStep
from fsm.errors import EvenstepError
from fsm.explain import status
from fsm.setup import set_up
from fsm.snapshot import restore
from runtime.event_log import read_events
from runtime.event_record import Json, effects_to_json, event_from_json
from runtime.summary import balance_sheet


@dataclass(frozen=True, slots=True)
class Difference:
    """The first event that today's core answers otherwise than the recorded one did."""

    seq: int
    event: Json
    recorded: list[Json]
    """The effects then."""
    today: list[Json] | str
    """The effects now, or why the event is refused."""

    def __str__(self) -> str:
        now = self.today if isinstance(self.today, str) else _lines(self.today)
        return (
            f"event {self.seq}, {json.dumps(self.event, ensure_ascii=False)}\n"
            f"  recorded: {_lines(self.recorded)}\n  today:    {now}"
        )


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """The outcome of a replay."""

    events: int
    """Events that were answered as recorded, all before the difference."""
    difference: Difference | None
    torn: bool
    """The log ends in a torn line, which was left out."""
    status: str
    """What the run was doing at the end (`fsm.explain.status`)."""
    waits_for: str
    balance: dict[str, int]
    closed: tuple[ClosedStep, ...]
    """Every closed step, those before a resume included."""


def replay(path: Path) -> ReplayResult:
    """Replay a log from its beginning, or from the snapshot in its header.

    Raises EventLogUnreadable, and ConfigError where the configuration or a custom sampler cannot be loaded.
    """
    recorded = read_events(path)
    core = core_of(recorded.header)
    answered, difference = 0, None
    for line in recorded.events:
        difference = _answer(core, line)
        if difference is not None:
            break
        answered += 1
    return ReplayResult(
        events=answered,
        difference=difference,
        torn=recorded.torn,
        status=status(core.state),
        waits_for=core.waits_for(),
        balance=balance_sheet(core),
        closed=tuple(core.book.closed),
    )


def core_of(header: Json) -> Core:
    """The core of a recorded run, before its first event."""
    setup = set_up(core_config(header["config"]), header["num_prompts"], check=False)
    if header["snapshot"] is not None:
        return restore(setup, header["snapshot"], incarnation=header["incarnation"])
    core = Core(setup)
    core.book.incarnation = header["incarnation"]
    return core


def core_config(config: Mapping[str, Any]) -> RunConfig:
    """What the core reads of a resolved configuration; the runtime's own blocks and keys are left out."""
    return parse_config(
        {
            "grpo": config["grpo"],
            "async_rl": config["async_rl"],
            "loss_fn": {key: config["loss_fn"][key] for key in CoreLossConfig.model_fields},
            "policy": {key: config["policy"][key] for key in CorePolicyConfig.model_fields},
        },
        check=False,
    )


def _answer(core: Core, line: Json) -> Difference | None:
    """Apply one recorded event; None where the answer is the recorded one."""
    try:
        today: list[Json] | str = effects_to_json(core.apply(event_from_json(line["event"])))
    except (EvenstepError, ValueError) as error:
        today = f"refused, {type(error).__name__}: {error}"
    if today == line["effects"]:
        return None
    return Difference(line["seq"], line["event"], line["effects"], today)


def _lines(effects: list[Json]) -> str:
    return "".join(f"\n    {json.dumps(effect, ensure_ascii=False)}" for effect in effects) or "nothing"
