"""Where a run stands, in a few lines: what the train command shows on a terminal, and `evenstep status` once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Group
from rich.text import Text

from fsm.core import Core
from fsm.explain import status, waits_for_briefly
from fsm.state import charged
from runtime.explain.usual import seconds
from runtime.trace.show import printable

Json = Mapping[str, Any]
IDLE_SHOWN_S = 10.0
"""From here on it is said for how long there was no progress."""


@dataclass(frozen=True, slots=True)
class Standing:
    """A run now. What the last closed step said is None before the first has closed."""

    status: str
    """See `fsm.explain.status`."""
    step: int
    max_steps: int | None
    selected: int
    charged: int
    size: int
    in_flight: int
    max_inflight: int
    ready: int
    max_buffered: int
    queued: int
    spares: int | None
    """None where no pool is used."""
    gate: str
    dispatch_index: int
    reward: float | None
    """Of the last closed step, as the next two: mean over all rollouts before filtering."""
    zero_variance_fraction: float | None
    tokens_per_s: float | None
    idle_s: float
    """Since a group last finished or a step closed (W2)."""
    waits_for: str


def standing_of_core(core: Core, last: Json | None, idle_s: float) -> Standing:
    """Of a run's core, and the record of the step that closed last (`StepRecord.as_json`)."""
    state, limits = core.state, core.limits
    tally, step = state.tally, state.trainer.version
    return Standing(
        status=status(state),
        step=step,
        max_steps=None if limits.max_steps < 0 else limits.max_steps,
        selected=state.step.selected,
        charged=charged(state, step),
        size=limits.size,
        in_flight=tally.in_flight,
        max_inflight=limits.max_inflight,
        ready=tally.ready,
        max_buffered=limits.max_buffered,
        queued=tally.queued,
        spares=state.pool.spares if limits.uses_pool else None,
        gate=state.gate.status.name.lower(),
        dispatch_index=state.gate.dispatch_index,
        reward=None if last is None else last["unfiltered_reward"],
        zero_variance_fraction=None if last is None else last["zero_variance_fraction"],
        tokens_per_s=None if last is None else last["generation_tokens_per_s"],
        idle_s=round(idle_s, 3),
        waits_for=waits_for_briefly(state, limits, core.setup.sampler_name),
    )


def live_lines(standing: Standing) -> tuple[str, str, str]:
    """Three lines: the step and how it fills; what is where; what it waits for. Printable."""
    done = "" if standing.max_steps is None else f" ({standing.step} of {standing.max_steps} done)"
    step = [
        f"step {standing.step}{done}  {standing.selected} selected + {standing.charged} charged of {standing.size}",
        standing.status.replace("_", " "),
        f"reward {_number(standing.reward)}",
        f"zero variance {_number(standing.zero_variance_fraction)}",
        f"{_number(standing.tokens_per_s, '.0f')} tokens/s",
    ]
    if standing.idle_s >= IDLE_SHOWN_S:
        step.append(f"no progress for {seconds(standing.idle_s)}")
    places = [
        f"in flight {standing.in_flight} of {standing.max_inflight}",
        f"ready {standing.ready}",
        f"buffer {standing.in_flight + standing.ready} of {standing.max_buffered}",
        f"queued {standing.queued}",
        "no pool" if standing.spares is None else f"pool {standing.spares}",
        f"gate {standing.gate} at {standing.dispatch_index}",
    ]
    return "  ".join(step), "  ".join(places), f"waits for: {printable(standing.waits_for, widest=2_000)}"


def live_view(standing: Standing) -> Group:
    """The same for a terminal: the bar of the step, and one line each that is never wrapped."""
    lines = [Text(line, no_wrap=True, overflow="ellipsis") for line in live_lines(standing)]
    lines[0].stylize("bold", 0, lines[0].plain.find("  "))
    lines[2].stylize("dim")
    return Group(bar(standing), *lines)


BAR_WIDTH = 40


def bar(standing: Standing) -> Text:
    """Selected, charged and what is missing of the step."""
    size = max(1, standing.size)
    chosen = BAR_WIDTH * standing.selected // size
    lost = BAR_WIDTH * (standing.selected + standing.charged) // size - chosen
    text = Text("█" * chosen, "green", no_wrap=True)
    return text.append("▒" * lost, "yellow").append("░" * (BAR_WIDTH - chosen - lost), "dim")


def _number(value: float | None, form: str = ".2f") -> str:
    return "–" if value is None else format(value, form)
