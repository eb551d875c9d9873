"""The files of one trace, oldest first: its rotated parts, then `trace.jsonl`. And their first line, the header.

    trace.jsonl.1.gz  trace.jsonl.2.gz  …  trace.jsonl

Every part begins with the header (`part` is its number). The writer compresses a part into a second file, renames
that, and only then removes the plain part. A process that dies between these leaves both; readers take the plain one.
"""

import gzip
import platform
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

from fsm.config.blocks import CoreLossConfig, CorePolicyConfig, RunConfig
from fsm.config.parse import parse_config
from fsm.config.setup import Setup, set_up
from fsm.core import AppliedEvent, Core
from fsm.errors import ConfigError
from fsm.snapshot import restore
from runtime.files import replacing
from runtime.trace.kinds import GROWN, TABLE, Json

FORMAT = "evenstep trace 1"
PACKAGES = (
    "evenstep", "transitions", "pydantic", "torch", "transformers", "ray", "numpy", "safetensors", "vllm",
    "TransferQueue",
)  # fmt: skip
"""The header has their versions, of those that are installed."""


class TraceUnreadable(Exception):
    """The file is not a trace, has another format, or is damaged before its last line."""


def make_header(
    config: RunConfig,
    *,
    num_prompts: int,
    seeds: Mapping[str, int],
    snapshot: Json | None = None,
    incarnation: int = 0,
    restart: str | None = None,
) -> Json:
    """The first line of a trace; `Trace` fills in `started_unix_s`.

    `config` is resolved, and may be of a subclass with more blocks; `num_prompts` are those of an epoch, as given to
    `set_up`; `snapshot` is what the core was restored from, exactly as given to `restore`; None for a new run.
    `restart` is such as "restart 2 of at most 3", of a process that the run's driver started after it lost another.
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
        "restart": restart,
        "kinds": TABLE,
    }


def package_versions() -> dict[str, str]:
    """Versions of Python and of those PACKAGES that are installed."""
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


_HEADER: Mapping[str, type | tuple[type, ...]] = {
    "part": int, "started_unix_s": (int, float), "num_prompts": int, "seeds": dict, "incarnation": int,
    "packages": dict, "config": dict, "snapshot": (dict, type(None)), "kinds": dict,
    "restart": (str, type(None)),
}  # fmt: skip
_ADDED = ("restart",)
"""Keys that older traces lack."""
_LATEST_UNIX_S = 1e11
"""The year 5138; later times are no dates for Python."""
_BLOCKS = ("grpo", "async_rl", "loss_fn", "policy")
"""Of the configuration, those that the core reads."""


def check_header(header: Json) -> None:
    """Raise TraceUnreadable unless the header has what `make_header` writes, as far as readers rely on it."""
    missing = [key for key in _HEADER if key not in header and key not in _ADDED]
    if missing:
        raise TraceUnreadable(f"the header has no {missing[0]}: evenstep did not write it, or it is damaged")
    wrong = [key for key, kind in _HEADER.items() if not isinstance(header.get(key), kind) or header.get(key) is True]
    if not wrong and not 0 <= header["started_unix_s"] < _LATEST_UNIX_S:
        wrong = ["started_unix_s"]
    if wrong:
        shown = f"{header.get(wrong[0])!r:.60}"
        raise TraceUnreadable(f"the header's {wrong[0]} is {shown}: evenstep did not write it, or it is damaged")
    config = header["config"]
    blocks = [config.get(block) for block in _BLOCKS]
    if not all(isinstance(block, dict) for block in blocks) or not isinstance(config["async_rl"].get("sampler"), dict):
        raise TraceUnreadable(f"the header's config lacks one of {', '.join(_BLOCKS)} and the sampler: it is damaged")


def check_kinds(header: Json) -> None:
    """Raise TraceUnreadable if a kind had other fields when the trace was written. Its name may have changed."""
    written = header["kinds"]

    def _fields(entry: Any) -> Any:
        named = isinstance(entry, list) and len(entry) == 2 and isinstance(entry[1], list)
        return entry[1] if named else entry

    def _same(code: str, entry: Any) -> bool:
        had, has = _fields(written.get(code, entry)), _fields(entry)
        return bool(had == (has[: len(had)] if code in GROWN and isinstance(had, list) else has))

    changed = [code for code, entry in TABLE.items() if not _same(code, entry)]
    if changed or not written.keys() <= TABLE.keys():
        code = changed[0] if changed else min(written.keys() - TABLE.keys())
        raise TraceUnreadable(
            f"the trace was written by evenstep {header['packages'].get('evenstep', '(unknown)')}, where {code} means "
            f"{written[code]}; here it means {TABLE.get(code, 'nothing')}. Read it with the version that wrote it"
        )


def setup_of(header: Json) -> Setup:
    """The setup of a recorded run. Raises ConfigError if its custom sampler cannot be loaded, and TraceUnreadable."""
    with _damaged("configuration"):
        return set_up(core_config(header["config"]), header["num_prompts"], check=False)


def core_of(header: Json, observer: Callable[[AppliedEvent], None] | None = None) -> Core:
    """The core of a recorded run before its first event. Raises the errors of `setup_of`."""
    setup = setup_of(header)
    if header["snapshot"] is not None:
        with _damaged("snapshot"):
            return restore(setup, header["snapshot"], incarnation=header["incarnation"], observer=observer)
    core = Core(setup, observer=observer)
    core.book.incarnation = header["incarnation"]
    return core


@contextmanager
def _damaged(part: str) -> Iterator[None]:
    """What a part of the header raises that no evenstep wrote is TraceUnreadable."""
    try:
        yield
    except ConfigError:
        raise  # it says what is wrong
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise TraceUnreadable(f"the header's {part} is damaged ({type(error).__name__}: {error})") from error


def core_config(config: Mapping[str, Any]) -> RunConfig:
    """The part of a resolved configuration that the core reads, without the runtime's blocks and keys."""
    return parse_config(
        {
            "grpo": config["grpo"],
            "async_rl": config["async_rl"],
            "loss_fn": {key: config["loss_fn"][key] for key in CoreLossConfig.model_fields},
            "policy": {key: config["policy"][key] for key in CorePolicyConfig.model_fields},
        },
        check=False,
    )


def first_step_of(header: Json) -> int:
    """The step that was open when a trace began: that of the checkpoint that its process resumed from."""
    with _damaged("snapshot"):
        return 0 if header["snapshot"] is None else int(header["snapshot"]["state"]["trainer"][1])


_COMPRESSION_LEVEL = 9
_TRACE_NAME = re.compile(r"(trace(?:-(\d+))?\.jsonl)(?:\.\d+(?:\.gz)?)?")
"""A trace or a rotated part; a process may die after a rotation, with no `trace.jsonl`."""


def trace_path(directory: Path, incarnation: int) -> Path:
    """The trace of one process of a run: trace.jsonl, after the first resume trace-1.jsonl."""
    return directory / ("trace.jsonl" if incarnation == 0 else f"trace-{incarnation}.jsonl")


def _traces_of(directory: Path) -> list[tuple[int, str]]:
    """Incarnation and file name of every trace in a run's directory."""
    matches = (_TRACE_NAME.fullmatch(entry.name) for entry in directory.iterdir())
    return [(int(match[2] or 0), match[1]) for match in matches if match]


def next_incarnation(directory: Path, resumed: int) -> int:
    """The incarnation of a process that resumes a checkpoint of incarnation `resumed`: above every earlier one.

    An earlier process that resumed the same checkpoint may have left only its trace.
    """
    return 1 + max([resumed, *(incarnation for incarnation, _ in _traces_of(directory))])


def has_trace(directory: Path) -> bool:
    """Whether a directory has a trace."""
    return bool(_traces_of(directory))


def older_traces(path: Path) -> list[Path]:
    """The traces of the same run that are older than this one, oldest first."""
    found = sorted(set(_traces_of(path.parent)))
    names = [name for _, name in found]
    return [path.with_name(name) for name in names[: names.index(path.name)]] if path.name in names else []


def find_trace(path: Path) -> Path:
    """`path` itself, or the newest trace in it if it is a run's directory. Raises TraceUnreadable."""
    if not path.is_dir():
        return path
    found = _traces_of(path)
    if not found:
        raise TraceUnreadable(f"{path} has no trace; name the trace.jsonl of a run, or its directory")
    return path / max(found)[1]


def rotated(path: Path) -> dict[int, Path]:
    """The rotated parts of a trace by number, the plain one where both forms exist."""
    found: dict[int, Path] = {}
    pattern = re.compile(re.escape(path.name) + r"\.(\d+)(\.gz)?")
    for entry in sorted(path.parent.iterdir(), reverse=True):  # `.1` comes after `.1.gz` and replaces it
        if match := pattern.fullmatch(entry.name):
            found[int(match[1])] = entry
    return dict(sorted(found.items()))


def parts_of(path: Path) -> tuple[Path, ...]:
    """The files of a trace, oldest first; a rotated part stands for itself alone. Raises TraceUnreadable."""
    before = tuple(rotated(path).values()) if path.parent.is_dir() else ()
    if path.exists():
        return (*before, path)
    if not before:
        raise TraceUnreadable(f"{path} does not exist; name the trace.jsonl of a run, or its directory")
    return before


def rotate(path: Path) -> Path:
    """Rename a full part to the next number. Returns its new path."""
    number = max(rotated(path), default=0) + 1
    part = path.with_name(f"{path.name}.{number}")
    path.rename(part)
    return part


def compress(part: Path) -> None:
    """Replace a plain part by a compressed one."""
    with (
        replacing(part.with_name(f"{part.name}.gz")) as aside,
        part.open("rb") as plain,
        gzip.open(aside, "wb", compresslevel=_COMPRESSION_LEVEL) as packed,
    ):
        shutil.copyfileobj(plain, packed, 1 << 20)
    part.unlink()
