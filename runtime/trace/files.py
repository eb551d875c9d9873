"""The files of one trace: `trace.jsonl`, and what was rotated away from it, oldest first.

    trace.jsonl.1.gz  trace.jsonl.2.gz  …  trace.jsonl

Every part begins with the header (`part` is its number). A part is compressed aside and renamed, and only then
removed, so that whatever dies in between leaves it readable; where both forms are there, the plain one counts.
"""

from __future__ import annotations

import gzip
import os
import platform
import re
import shutil
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from fsm.config.blocks import CoreLossConfig, CorePolicyConfig
from fsm.config.parse import RunConfig, parse_config
from fsm.config.setup import Setup, set_up
from fsm.core import AppliedEvent, Core
from fsm.snapshot import restore
from runtime.trace.kinds import TABLE, Json

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


def _fields(entry: Any) -> Any:
    """Of an entry in the table of kinds: a kind's name may have changed since, its code and its fields may not."""
    named = isinstance(entry, list) and len(entry) == 2 and isinstance(entry[1], list)
    return entry[1] if named else entry


def check_kinds(header: Json) -> None:
    """Raise TraceUnreadable where a kind had other fields when the trace was written."""
    written = header.get("kinds")
    if not isinstance(written, dict) or not isinstance(header.get("packages"), dict):
        raise TraceUnreadable("the header does not say what its codes mean: it was changed, or is none of evenstep")
    changed = [code for code, entry in TABLE.items() if _fields(written.get(code, entry)) != _fields(entry)]
    if changed or not written.keys() <= TABLE.keys():
        code = changed[0] if changed else min(written.keys() - TABLE.keys())
        raise TraceUnreadable(
            f"the trace was written by evenstep {header['packages'].get('evenstep', '(unknown)')}, where {code} means "
            f"{written[code]}; here it means {TABLE.get(code, 'nothing')}. Read it with the version that wrote it"
        )


def setup_of(header: Json) -> Setup:
    """The setup of a recorded run. Raises ConfigError where a custom sampler cannot be loaded."""
    return set_up(core_config(header["config"]), header["num_prompts"], check=False)


def core_of(header: Json, observer: Callable[[AppliedEvent], None] | None = None) -> Core:
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


_COMPRESSION_LEVEL = 9
_TRACE_NAME = re.compile(r"(trace(?:-(\d+))?\.jsonl)(?:\.\d+(?:\.gz)?)?")
"""Of a trace, or of what was rotated away from it: a process may die before it opens the next part."""


def trace_path(directory: Path, incarnation: int) -> Path:
    """Each process of a run has a trace of its own: trace.jsonl, trace-1.jsonl after the first resume."""
    return directory / ("trace.jsonl" if incarnation == 0 else f"trace-{incarnation}.jsonl")


def _traces_of(directory: Path) -> list[tuple[int, str]]:
    """The incarnation and the name of every trace in a run's directory."""
    matches = (_TRACE_NAME.fullmatch(entry.name) for entry in directory.iterdir())
    return [(int(match[2] or 0), match[1]) for match in matches if match]


def next_incarnation(directory: Path, resumed: int) -> int:
    """That of a process which resumes a checkpoint of incarnation `resumed`: above those of all processes before it.

    Of two that resume the same checkpoint, the first may have left nothing but its trace.
    """
    return 1 + max([resumed, *(incarnation for incarnation, _ in _traces_of(directory))])


def find_trace(path: Path) -> Path:
    """`path` itself, or the newest trace of the run's directory that it is. Raises TraceUnreadable."""
    if not path.is_dir():
        return path
    found = _traces_of(path)
    if not found:
        raise TraceUnreadable(f"{path} has no trace: give the trace.jsonl of a run, or the directory that it is in")
    return path / max(found)[1]


def rotated(path: Path) -> dict[int, Path]:
    """What was rotated away from a trace, by number. Plain parts count before compressed ones."""
    found: dict[int, Path] = {}
    pattern = re.compile(re.escape(path.name) + r"\.(\d+)(\.gz)?")
    for entry in sorted(path.parent.iterdir(), reverse=True):  # a plain part comes after its compressed form
        if match := pattern.fullmatch(entry.name):
            found[int(match[1])] = entry
    return dict(sorted(found.items()))


def parts_of(path: Path) -> tuple[Path, ...]:
    """The files of a trace, oldest first; of a rotated part, that part alone. Raises TraceUnreadable."""
    before = tuple(rotated(path).values()) if path.parent.is_dir() else ()
    if path.exists():
        return (*before, path)
    if not before:
        raise TraceUnreadable(f"{path} does not exist: give the trace.jsonl of a run, or the directory that it is in")
    return before


def rotate(path: Path) -> Path:
    """Move a full part out of the way. Returns where it is now."""
    number = max(rotated(path), default=0) + 1
    part = path.with_name(f"{path.name}.{number}")
    path.rename(part)
    return part


def compress(part: Path) -> None:
    """Put a compressed part in the place of a plain one."""
    aside = part.with_name(f".{part.name}.tmp-{os.getpid()}")
    try:
        with part.open("rb") as plain, gzip.open(aside, "wb", compresslevel=_COMPRESSION_LEVEL) as packed:
            shutil.copyfileobj(plain, packed, 1 << 20)
        aside.replace(part.with_name(f"{part.name}.gz"))
        part.unlink()
    finally:
        aside.unlink(missing_ok=True)
