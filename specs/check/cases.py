"""The cases that `evenstep check` explores at each scope: small versions of one configuration, all of their states.

One case with every number at its largest would have too many states. So the first case has the whole world at small
numbers, and each further one enlarges something at the cost of something else: three groups a step, a wider window,
a second replacement, a second epoch. A case that adds nothing to the first is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from fsm.config.blocks import CustomConfig
from fsm.config.parse import RunConfig
from fsm.config.setup import set_up
from fsm.machines.table import fire
from fsm.rules.laws import Laws, laws_of
from specs.check.scaling import Scaled, Scope, scale
from specs.check.user_properties import load_properties
from specs.model import CrashFrom, WorldOptions
from specs.properties.catalog import properties_of
from specs.properties.kinds import Properties


class ScopeName(StrEnum):
    """How much is explored."""

    QUICK = "quick"
    DEFAULT = "default"
    DEEP = "deep"


class Case(NamedTuple):
    """One scaled configuration in one world."""

    name: str
    scaled: Scaled
    world: WorldOptions
    properties: tuple[str, ...] = ()
    """The user's own, as `module:name`; explored with the built-in ones."""


class _Plan(NamedTuple):
    """One case of a scope, before a configuration is given."""

    name: str
    scope: Scope
    world: WorldOptions = WorldOptions()


AT_ONCE = WorldOptions(backs_off=False)
"""A retry starts at once, or after the sync: a group never backs off."""

PLANS: Mapping[ScopeName, tuple[_Plan, ...]] = {
    ScopeName.QUICK: (
        _Plan("base", Scope(size=2, window=1, steps=3, attempts=1), AT_ONCE),
        _Plan("window", Scope(size=1, window=2, steps=2, attempts=1), AT_ONCE),
        _Plan("losses", Scope(size=2, window=0, steps=2, attempts=2, epochs=2, skipped=1, search=1), AT_ONCE),
    ),
    ScopeName.DEFAULT: (
        _Plan("base", Scope(size=2, window=1, steps=3, attempts=1)),
        _Plan("three groups", Scope(size=3, window=1, steps=2, attempts=1), AT_ONCE),
        _Plan("three groups in full", Scope(size=3, window=0, steps=3, attempts=2)),
        _Plan("window", Scope(size=2, window=2, steps=2, attempts=1), AT_ONCE),
        _Plan("window in full", Scope(size=1, window=2, steps=3, attempts=1)),
        _Plan("replacements", Scope(size=2, window=0, steps=3, attempts=2)),
        _Plan("epochs", Scope(size=2, window=0, steps=3, attempts=1, epochs=2)),
        _Plan("epochs with lookahead", Scope(size=2, window=1, steps=1, attempts=1, epochs=2), AT_ONCE),
        _Plan("losses", Scope(size=2, window=1, steps=2, attempts=1, skipped=1, search=1), AT_ONCE),
    ),
    ScopeName.DEEP: (
        _Plan("base", Scope(size=2, window=1, steps=3, attempts=2, epochs=2, skipped=1, search=1)),
        _Plan("three groups", Scope(size=3, window=1, steps=3, attempts=2)),
        _Plan("window", Scope(size=2, window=2, steps=3, attempts=2)),
        _Plan("window and three groups", Scope(size=3, window=2, steps=1, attempts=1), AT_ONCE),
        _Plan(
            "any earlier checkpoint",
            Scope(size=1, window=1, steps=3, attempts=1),
            WorldOptions(crash=CrashFrom.LAST_CHECKPOINT),
        ),
    ),
}
"""Per scope the cases; a further case is left out unless it is larger than the first in something."""


def cases_of(
    config: RunConfig, scope: ScopeName, num_prompts: int | None = None, properties: Sequence[str] = ()
) -> list[Case]:
    """The cases of a configuration. `num_prompts` is the length of an epoch where it is known.

    Raises ConfigError for a custom sampler that cannot be loaded.
    """
    cases: list[Case] = []
    for plan in PLANS[scope]:
        case = Case(plan.name, scale(config, plan.scope, num_prompts), plan.world, tuple(properties))
        fits = case.scaled.window <= plan.scope.window  # a custom sampler that hides its window keeps it
        if not cases or (fits and _has_more(case, cases[0])):
            cases.append(case)
    return cases


def _has_more(case: Case, first: Case) -> bool:
    """Something in `case` is larger than in `first`."""
    if case.world.crash is CrashFrom.LAST_CHECKPOINT:
        return True
    return any(here > there for here, there in zip(_measures(case), _measures(first), strict=True))


def _measures(case: Case) -> tuple[int, ...]:
    config, failure = case.scaled.config, case.scaled.config.async_rl.rollout_failure
    return (
        config.grpo.num_prompts_per_step,
        case.scaled.window,
        failure.max_replacement_attempts if failure.on_dropped_prompt == "replace" else 0,
        config.grpo.max_num_epochs,
        failure.max_skipped_prompts,
        int(config.grpo.dynamic_sampling_max_gen_batches is not None),
    )


def laws_under(config: RunConfig, num_prompts: int, *, check: bool = True) -> Laws:
    """The laws of a run. Raises ConfigError as `set_up` does."""
    setup = set_up(config, num_prompts, check=check)
    return laws_of(setup.limits, setup.sampler, setup.sampler_name, fire)


def laws_in(case: Case) -> Laws:
    """The laws of a case, whether or not setup would refuse it. Raises ConfigError as `scale` does."""
    return laws_under(case.scaled.config, case.scaled.num_prompts, check=False)


def properties_in(case: Case) -> Properties:
    """The built-in properties and the user's own. Raises ConfigError for one that cannot be loaded."""
    return properties_of(laws_in(case)).and_also(load_properties(case.properties))


def outside_code(config: RunConfig, properties: Sequence[str]) -> dict[str, str]:
    """The user's code that an exploration runs, in words: a custom sampler, properties. Empty if there is none."""
    sampler = config.async_rl.sampler
    named = {"sampler": f"sampler {sampler.target}"} if isinstance(sampler, CustomConfig) else {}
    return {**named, "property": f"property {' or '.join(properties)}"} if properties else named


def bounds_of(case: Case) -> dict[str, Any]:
    """The bounds that a case is explored within: plain values, for JSON."""
    limits = laws_in(case).limits
    world = case.world
    own = {"properties": list(case.properties)} if case.properties else {}
    return {
        "case": case.name,
        "sampler": case.scaled.config.async_rl.sampler.model_dump(),
        "window": case.scaled.window,
        "data": {"num_prompts": case.scaled.num_prompts},
        "limits": limits._asdict(),
        "world": {**world._asdict(), "crash": world.crash.value},
        "changed": [kept._asdict() for kept in case.scaled.kept],
        **own,
    }


def say_bounds(case: Case) -> str:
    """The bounds of a case in a sentence."""
    limits, world = laws_in(case).limits, case.world
    parts = [
        f"N {limits.size}",
        f"window {case.scaled.window}",
        f"streaming minimum {limits.min_groups}",
        f"buffer {limits.max_buffered}",
        f"in flight {limits.max_inflight}",
        f"floor {limits.floor}",
        f"{limits.prompts_per_epoch} prompts" + (f" × {limits.epochs} epochs" if limits.epochs > 1 else ""),
    ]
    if limits.max_steps >= 0:
        parts.append(f"at most {limits.max_steps} steps")
    if limits.uses_pool:
        parts.append(f"reserve {limits.reserve}, replacements {limits.max_replacements}")
    if limits.max_filtered >= 0:
        parts.append(f"at most {limits.max_filtered} filtered for a step")
    may = [
        name
        for name, happens in (
            ("groups are filtered", limits.dynamic_sampling),
            ("attempts fail and are dropped", world.fails),
            ("retries back off", world.fails and world.backs_off),
            ("groups are unreadable", world.claims_fail),
            ("answers are late", world.late),
            ("a crash at any time", world.crash is not CrashFrom.NOTHING),
        )
        if happens
    ]
    return f"{', '.join(parts)}; {', '.join(may) or 'nothing goes wrong'}"
