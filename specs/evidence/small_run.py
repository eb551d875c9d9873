"""A small run and its world: what mutants are hunted in, and what the core's twins are compared on."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import yaml

from fsm.config.blocks import RunConfig
from fsm.config.parse import parse_config
from fsm.rules.laws import Laws
from specs.check.cases import laws_under
from specs.model import CORE, CrashFrom, Model, WorldOptions, world_of

CALM = WorldOptions(fails=False, backs_off=False, claims_fail=False, late=False, crash=CrashFrom.NOTHING)
"""Nothing but commits, and filtered groups under dynamic sampling."""

Options = Mapping[str, Any]
_DEFAULTS: Options = MappingProxyType({})


class SmallRun(NamedTuple):
    """One small run and its world."""

    name: str
    sampler: str
    size: int
    window: int
    num_prompts: int
    """Of one epoch."""
    world: WorldOptions = CALM
    grpo: Options = _DEFAULTS
    async_rl: Options = _DEFAULTS
    rollout_failure: Options = _DEFAULTS
    sampler_options: Options = _DEFAULTS
    model: Model = CORE
    is_checked: bool = True
    """Setup refuses what cannot run; False for a configuration that it refuses."""

    def config(self) -> RunConfig:
        """The run's configuration. Raises ConfigError if it is refused."""
        window = "max_lookahead_versions" if self.sampler == "in_order" else "max_staleness_versions"
        document = {
            "grpo": {"num_prompts_per_step": self.size, "num_generations_per_prompt": 2, **self.grpo},
            "async_rl": {
                "sampler": {"name": self.sampler, window: self.window, **self.sampler_options},
                "rollout_failure": {"min_step_batch_fraction": 0.5, **self.rollout_failure},
                **self.async_rl,
            },
        }
        return parse_config(document, check=self.is_checked)

    def laws(self) -> Laws:
        """The laws of the run. Raises ConfigError if setup refuses it."""
        return laws_under(self.config(), self.num_prompts, check=self.is_checked)


def run_of(given: Options) -> SmallRun:
    """A run as a file has it; what its `world` does not name does not happen."""
    return SmallRun(**{**given, "world": world_of(CALM, given.get("world", {}))})


def runs_in(path: Path) -> tuple[SmallRun, ...]:
    """The runs that a file lists."""
    return tuple(map(run_of, yaml.safe_load(path.read_text(encoding="utf-8"))))
