"""The configuration matrix: every built-in sampler × shrink and replace × dynamic sampling on and off × window 0 to 2
× N 2 to 4 × streaming minimum 1 to N × crash on and off.

What setup refuses is listed as refused, and not gone through. The larger a cell's N and window, the less data it has,
and the less goes wrong in it beside (`_EXTENTS`): its states grow with the number of ways in which the groups of all
open steps can be spread over the places, so one cell of everything at once would outlast all others together.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any, NamedTuple

from fsm.config.parse import parse_config
from fsm.config.setup import set_up
from fsm.errors import ConfigError
from specs.check.cases import Case, ScopeName
from specs.check.scaling import Scaled
from specs.model import CrashFrom, WorldOptions

SAMPLERS: Mapping[str, str] = {
    "in_order": "max_lookahead_versions",
    "ready_first": "max_staleness_versions",
    "windowed": "max_staleness_versions",
    "weight_fifo": "max_staleness_versions",
}
"""The built-in samplers, each with the option that is its window."""

REFUSED_AT_SETUP = "refused"


class Cell(NamedTuple):
    """One configuration of the matrix."""

    name: str
    case: Case
    refused: str | None
    """Why setup refuses it; None where it runs."""
    cost: int
    """Grows with how long it takes, roughly: what takes longest starts first."""


class _Extent(NamedTuple):
    """How much a cell has of data and of what goes wrong."""

    steps: int
    """Steps of data beyond the window."""
    world: WorldOptions


_FULL = WorldOptions()
_AT_ONCE = WorldOptions(backs_off=False)
_CLAIMS = WorldOptions(fails=False)
_TRAINS = WorldOptions(fails=False, claims_fail=False)

_EXTENTS: Mapping[ScopeName, Mapping[tuple[int, int], _Extent]] = {
    ScopeName.QUICK: {
        **{(size, 0): _Extent(2, _AT_ONCE) for size in (2, 3, 4)},
        **{(size, 1): _Extent(1, _AT_ONCE) for size in (2, 3)},
        (2, 2): _Extent(1, _CLAIMS), (4, 1): _Extent(1, _TRAINS),
        (3, 2): _Extent(0, _TRAINS), (4, 2): _Extent(0, _TRAINS),
    },
    ScopeName.DEFAULT: {
        (2, 0): _Extent(3, _FULL), (3, 0): _Extent(3, _FULL), (4, 0): _Extent(3, _FULL),
        (2, 1): _Extent(3, _FULL), (3, 1): _Extent(2, _AT_ONCE), (4, 1): _Extent(1, _AT_ONCE),
        (2, 2): _Extent(2, _AT_ONCE), (3, 2): _Extent(1, _CLAIMS), (4, 2): _Extent(1, _TRAINS),
    },
    ScopeName.DEEP: {
        (2, 0): _Extent(5, _FULL), (3, 0): _Extent(4, _FULL), (4, 0): _Extent(4, _FULL),
        (2, 1): _Extent(5, _FULL), (3, 1): _Extent(3, _FULL), (4, 1): _Extent(2, _FULL),
        (2, 2): _Extent(3, _FULL), (3, 2): _Extent(2, _FULL), (4, 2): _Extent(1, _FULL),
    },
}  # fmt: skip
"""By N and window."""


def matrix(scope: ScopeName) -> list[Cell]:
    """All cells, those that take longest first; refused ones last."""
    cells = [
        _cell(scope, sampler, pool, filters, window, size, minimum, crash)
        for sampler, pool, filters, window, size, crash in product(
            SAMPLERS, ("shrink", "replace"), (False, True), (0, 1, 2), (2, 3, 4), (False, True)
        )
        for minimum in range(1, size + 1)
    ]
    return sorted(cells, key=lambda cell: (cell.refused is not None, -cell.cost))


def smoke(scope: ScopeName = ScopeName.QUICK) -> list[Cell]:
    """A part of the matrix that has every sampler, and runs in about a minute: N 2 and 3, window 0 and 1, crashes."""
    return [
        cell
        for cell in matrix(scope)
        if cell.refused is None
        and cell.case.scaled.config.grpo.num_prompts_per_step < 4
        and cell.case.scaled.window < 2
        and cell.case.world.crash is not CrashFrom.NOTHING
    ]


def _cell(
    scope: ScopeName, sampler: str, pool: str, filters: bool, window: int, size: int, minimum: int, crash: bool
) -> Cell:
    extent = _EXTENTS[scope][size, window]
    config = parse_config(_document(sampler, pool, filters, window, size, minimum), check=False)
    refused: str | None = None
    num_prompts = (window + extent.steps) * size
    try:
        limits = set_up(config, num_prompts).limits
        if not limits.skips_trailing:
            num_prompts += 1
    except ConfigError as refusal:
        refused = str(refusal)
    world = extent.world._replace(crash=CrashFrom.OWN_SNAPSHOT if crash else CrashFrom.NOTHING)
    name = (
        f"{sampler:<11} {pool:<7} {'filters' if filters else 'keeps  '} window {window} N {size} minimum {minimum} "
        f"{'crash   ' if crash else 'no crash'}"
    )
    cost = (num_prompts + (4 if filters else 0) + (4 if world.fails else 0)) * (size + 1 - minimum + size)
    return Cell(name, Case(name, Scaled(config, num_prompts, window, ()), world), refused, cost)


def _document(sampler: str, pool: str, filters: bool, window: int, size: int, minimum: int) -> dict[str, Any]:
    """One configuration. Drops are within the budget wherever the sampler may have one, and floors allow losses."""
    return {
        "grpo": {"num_prompts_per_step": size, "num_generations_per_prompt": 2, "use_dynamic_sampling": filters},
        "async_rl": {
            "sampler": {"name": sampler, SAMPLERS[sampler]: window},
            "min_groups_for_streaming_train": minimum,
            "rollout_failure": {
                "on_dropped_prompt": pool,
                "max_consecutive_dropped_prompts": 0 if sampler == "weight_fifo" else 1,
                "min_step_batch_fraction": 0.5,
            },
        },
    }
