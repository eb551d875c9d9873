"""The header: the first line of every part of a trace, and the core of the run that it tells of."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from importlib import metadata
from typing import Any

from fsm.config import RunConfig, parse_config
from fsm.config_blocks import CoreLossConfig, CorePolicyConfig
from fsm.core import Core, Transition
from fsm.setup import Setup, set_up
from fsm.snapshot import restore
from runtime.tracing.kinds import TABLE, Json

FORMAT = "evenstep trace 1"
PACKAGES = (
    "evenstep",
    "transitions",
    "pydantic",
    "torch",
    "transformers",
    "ray",
    "numpy",
    "safetensors",
    "vllm",
    "TransferQueue",
)
"""Their versions are in the header where they are installed."""


class TraceUnreadable(Exception):
    """The file is no trace, is of another format, or is damaged before its last line."""


def make_header(
    config: RunConfig,
    *,
    num_prompts: int,
    seeds: Mapping[str, int],
    snapshot: Json | None = None,
    incarnation: int = 0,
) -> Json:
    """The first line of a trace, but for `started_unix_s`, which is set when it is opened.

    Args:
        config: The resolved configuration; may be a subclass with blocks of its own.
        num_prompts: Prompts of an epoch, as given to `set_up`.
        seeds: By what they seed.
        snapshot: What the core was restored from, exactly as given to `restore`; None for a run that starts afresh.
        incarnation: That of the core (`core.book.incarnation`).
    """
    return {
        "format": FORMAT,
        "part": 0,
        "started_unix_s": 0.0,
        "num_prompts": num_prompts,
        "seeds": dict(seeds),
        "incarnation": incarnation,
        "packages": package_versions(),
        "config": config.model_dump(mode="json"),
        "snapshot": snapshot,
        "kinds": TABLE,
    }


def package_versions() -> dict[str, str]:
    """Versions of Python and of the packages that matter, those that are installed."""
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def check_kinds(header: Json) -> None:
    """Raise TraceUnreadable where a kind had other fields when the trace was written."""
    written = header.get("kinds")
    if not isinstance(written, dict) or not isinstance(header.get("packages"), dict):
        raise TraceUnreadable("the header does not say what its codes mean: it was changed, or is none of evenstep")
    changed = [code for code, fields in TABLE.items() if written.get(code, fields) != fields]
    if changed or not written.keys() <= TABLE.keys():
        code = changed[0] if changed else min(written.keys() - TABLE.keys())
        raise TraceUnreadable(
            f"the trace was written by evenstep {header['packages'].get('evenstep', '(unknown)')}, where {code} means "
            f"{written[code]}; here it means {TABLE.get(code, 'nothing')}. Read it with the version that wrote it"
        )


def setup_of(header: Json) -> Setup:
    """The setup of a recorded run. Raises ConfigError where a custom sampler cannot be loaded."""
    return set_up(core_config(header["config"]), header["num_prompts"], check=False)


def core_of(header: Json, observer: Callable[[Transition], None] | None = None) -> Core:
    """The core of a recorded run, before its first event. Raises ConfigError."""
    setup = setup_of(header)
    if header["snapshot"] is not None:
        return restore(setup, header["snapshot"], incarnation=header["incarnation"], observer=observer)
    core = Core(setup, observer=observer)
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
