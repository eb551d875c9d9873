"""The cases that `evenstep check` explores at each scope: small versions of one configuration, all of their states.

One case with every number at its largest would have too many states. So the first case has the whole world at small
numbers, and each further one enlarges something at the cost of something else: three groups a step, a wider window,
a second replacement, a second epoch (scopes.yaml). A case that adds nothing to the first is left out.
"""

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from fsm.config.blocks import CustomConfig, RunConfig
from fsm.config.setup import set_up
from fsm.machines.table import fire
from fsm.rules.laws import Laws, laws_of
from fsm.wording import counted
from specs.check.scaling import Scaled, Scope, scale
from specs.check.user_properties import load_properties
from specs.model import CrashFrom, WorldOptions, world_of
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


_SCOPES = yaml.safe_load(Path(__file__).with_name("scopes.yaml").read_text(encoding="utf-8"))
"""Per scope the cases by name, before a configuration is given."""


def cases_of(
    config: RunConfig, scope: ScopeName, num_prompts: int | None = None, properties: Sequence[str] = ()
) -> list[Case]:
    """The cases of a configuration. `num_prompts` is the length of an epoch where it is known.

    Raises ConfigError for a custom sampler that cannot be loaded.
    """
    cases: list[Case] = []
    for name, plan in _SCOPES[scope].items():
        numbers = Scope(**{key: number for key, number in plan.items() if key != "world"})
        world = world_of(WorldOptions(), plan.get("world", {}))
        case = Case(name, scale(config, numbers, num_prompts), world, tuple(properties))
        fits = case.scaled.window <= numbers.window  # a custom sampler that hides its window keeps it
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
        config.grpo.max_num_epochs or 1,
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
        counted(limits.prompts_per_epoch, "prompt") + (f" × {limits.epochs} epochs" if limits.epochs > 1 else ""),
    ]
    if limits.max_steps >= 0:
        parts.append(f"at most {counted(limits.max_steps, 'step')}")
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
