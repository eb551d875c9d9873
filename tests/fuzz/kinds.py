"""What is fuzzed: how an input of each kind is made from a seed, and what takes it.

`take` ends with a Refused, or returns: the input was accepted. Anything else that it raises is a defect.
"""

import json
import random
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from typer.testing import CliRunner

from fsm.config.parse import parse_config
from fsm.config.setup import set_up
from fsm.errors import ConfigError, IllegalSnapshot
from fsm.snapshot import restore
from runtime.cli.app import app
from runtime.settings import REFUSED_ACROSS_BLOCKS, Settings, load_settings
from runtime.tasks.base import TaskError
from runtime.tasks.config import DataConfig
from runtime.tasks.data import load_task
from specs.scenarios.run import run_file
from tests.fuzz.mutate import as_json, as_yaml, changed, damaged
from tests.fuzz.places import PLACES

ROOT = Path(__file__).parents[2]


class Refused(Exception):
    """The input was refused, with this message."""


class Kind(NamedTuple):
    """One kind of input."""

    make: Callable[[random.Random, Path], Path]
    """Write an input into an empty folder; returns its path."""
    take: Callable[[Path], None]
    name: str
    """Of the file, for an input that is no mutation."""


def _mutated(files: tuple[Path, ...], chance: random.Random, target: Path, dump: Callable[[Any], bytes]) -> Path:
    """A file of these, damaged as text or as a document."""
    text = chance.choice(files).read_bytes()
    target.write_bytes(damaged(text, chance) if chance.random() < 0.4 else dump(changed(yaml.safe_load(text), chance)))
    return target


def _command(*arguments: str, refused: tuple[int, ...] = (1, 2), accepted: tuple[int, ...] = (0,)) -> None:
    """Run the command line here. Raises Refused for the exit code of a refusal that says something."""
    result = CliRunner().invoke(app, arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    said = result.output
    if "Traceback (most recent call last)" in said or "a defect" in said:
        raise AssertionError(f"{arguments} shows a traceback, or calls itself defective:\n{said[-2000:]}")
    if result.exit_code in refused:
        if not said.strip():
            raise AssertionError(f"{arguments} exits with {result.exit_code} and says nothing")
        raise Refused(said)
    if result.exit_code not in accepted:
        raise AssertionError(f"{arguments} exits with {result.exit_code}:\n{said[-2000:]}")


# Configurations


@cache
def _examples() -> tuple[Path, ...]:
    return tuple(sorted((ROOT / "examples").glob("*.yaml")))


def _make_configuration(chance: random.Random, folder: Path) -> Path:
    return _mutated(_examples(), chance, folder / "run.yaml", as_yaml)


def _take_configuration(path: Path) -> None:
    """As far as a run reads it before it looks at data and machine; an accepted one must survive its own file."""
    try:
        settings = load_settings(path)
        set_up(parse_config(settings.model_dump(mode="json"), model=Settings), 64)
    except ConfigError as error:
        raise Refused(str(error)) from None
    assert not [problem for refusal in REFUSED_ACROSS_BLOCKS for problem in refusal(settings)]
    written = path.with_name("config.yaml")
    written.write_text(yaml.safe_dump(settings.model_dump(mode="json"), sort_keys=False), encoding="utf-8")
    assert load_settings(written) == settings


# Scenario files


@cache
def _scenarios() -> tuple[Path, ...]:
    return tuple(sorted((ROOT / "tests" / "scenarios").rglob("*.yaml")))


def _make_scenario(chance: random.Random, folder: Path) -> Path:
    return _mutated(_scenarios(), chance, folder / "scenario.yaml", as_yaml)


def _take_scenario(path: Path) -> None:
    verdict = run_file(path)
    if not verdict.holds:
        raise Refused("\n".join(verdict.problems))


# Configurations of other frameworks


@cache
def _theirs() -> tuple[Path, ...]:
    data = ROOT / "tests" / "runtime" / "migrate" / "data"
    return tuple(sorted(file for file in data.rglob("*.yaml") if b"defaults" not in file.read_bytes()))


def _make_theirs(chance: random.Random, folder: Path) -> Path:
    return _mutated(_theirs(), chance, folder / "theirs.yaml", as_yaml)


def _take_theirs(path: Path) -> None:
    origin = {"nemo_rl": "nemo-rl", "trl": "trl", "verl": "verl"}
    text = path.read_bytes() if path.is_file() and path.stat().st_size < 1_000_000 else b""
    framework = "verl" if b"actor_rollout_ref" in text else "nemo_rl" if b"grpo" in text else "trl"
    _command("migrate", str(path), "--from", origin[framework], refused=(1, 2, 3))


# Snapshots of the core


@cache
def _snapshots() -> tuple[tuple[str, str], ...]:
    """Sampler and snapshot."""
    from tests.fsm.snapshot.test_form import a_world, saved

    return tuple(
        (sampler, json.dumps(saved(a_world(sampler, seed, 12))))
        for sampler in ("in_order", "ready_first", "windowed", "weight_fifo")
        for seed in range(3)
    )


def _make_snapshot(chance: random.Random, folder: Path) -> Path:
    sampler, text = chance.choice(_snapshots())
    target = folder / f"{sampler}.json"
    target.write_bytes(
        damaged(text.encode(), chance) if chance.random() < 0.2 else as_json(changed(json.loads(text), chance))
    )
    return target


def _take_snapshot(path: Path) -> None:
    """What reads the file of a checkpoint is `runtime.checkpoints`; here the core gets any JSON."""
    from tests.fsm.snapshot.test_form import a_world

    if not path.is_file():
        raise Refused("no file")
    try:
        saved = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        raise Refused("no JSON") from None
    stem = path.stem if path.stem in ("in_order", "ready_first", "windowed", "weight_fifo") else "in_order"
    try:
        restore(a_world(stem, 0, 0).core.setup, saved)
    except (IllegalSnapshot, ConfigError) as error:
        raise Refused(str(error)) from None


# Traces, and the directory of a run


@cache
def _trace() -> bytes:
    import tempfile

    from tests.runtime.report.helpers import wandered

    with tempfile.TemporaryDirectory() as folder:
        wandered(Path(folder) / "trace.jsonl", seed=3, num_prompts=16)
        return (Path(folder) / "trace.jsonl").read_bytes()


def _damaged_lines(text: bytes, chance: random.Random) -> bytes:
    """Lines of JSON: bytes are damaged, or values of one line changed."""
    if chance.random() < 0.3:
        return damaged(text, chance)
    lines = text.splitlines()
    for _ in range(chance.randint(1, 2)):
        number = 0 if chance.random() < 0.3 else chance.randrange(len(lines))
        try:
            lines[number] = as_json(changed(json.loads(lines[number]), chance))
        except (ValueError, RecursionError):
            continue  # it was damaged before
    return b"\n".join(lines) + b"\n"


def _make_trace(chance: random.Random, folder: Path) -> Path:
    target = folder / "trace.jsonl"
    target.write_bytes(_damaged_lines(_trace(), chance))
    return target


VERDICTS = (0, 4, 5, 6, 7, 130)


def _take_trace(path: Path) -> None:
    """Every command that reads one. The first refusal counts; all must end well."""
    refusals = []
    page = str(path.with_name("page.html"))
    for arguments, accepted in (
        (("explain", str(path)), VERDICTS),
        (("replay", str(path)), (0,)),
        (("report", str(path), "-o", page), (0,)),
        (("trace", str(path)), (0,)),
    ):
        try:
            _command(*arguments, accepted=accepted)
        except Refused as refused:
            refusals.append(str(refused))
    if refusals:
        raise Refused(refusals[0])


@cache
def _run_directory() -> dict[str, bytes]:
    """The files of a run's directory, made without one: what the commands read that look at it."""
    from tests.runtime.samples.helpers import line_of

    settings = load_settings(None)
    figures = {"time_s": 1.0, "unfiltered_reward": 0.5, "zero_variance_fraction": 0.1}
    steps = [{"kind": "step", "step": step, **figures} for step in range(6)]
    lines = "\n".join(json.dumps(line) for line in [*steps, {"kind": "validation", "step": 0, "accuracy": 0.5}])
    return {
        "trace.jsonl": _trace(),
        "config.yaml": yaml.safe_dump(settings.model_dump(mode="json"), sort_keys=False).encode(),
        "run.json": json.dumps({"run": "20260131-140320-abcdef"}).encode(),
        "metrics.jsonl": (lines + "\n").encode(),
        "samples.jsonl": b"".join(json.dumps(line_of(step)).encode() + b"\n" for step in range(6)),
    }


def _make_run(chance: random.Random, folder: Path) -> Path:
    run = folder / "run"
    run.mkdir()
    for name, text in _run_directory().items():
        (run / name).write_bytes(text)
    victim = chance.choice(list(_run_directory()))
    text = _run_directory()[victim]
    if victim.endswith(".jsonl"):
        (run / victim).write_bytes(_damaged_lines(text, chance))
    else:
        dump = as_yaml if victim.endswith("yaml") else as_json
        (run / f"old-{victim}").write_bytes(text)
        _mutated((run / f"old-{victim}",), chance, run / victim, dump)
        (run / f"old-{victim}").unlink()
    if chance.random() < 0.3:
        (run / victim).unlink()
        PLACES[chance.choice(list(PLACES))](run / victim)
    return run


def _take_run(path: Path) -> None:
    refusals = []
    run = path
    outside = path.parent / "outside"
    outside.mkdir(exist_ok=True)
    starts = path.exists() and (not path.is_dir() or any(path.iterdir()))  # in any other place a run would begin
    for arguments, accepted in (
        (("explain", str(run)), VERDICTS),
        (("replay", str(run)), (0,)),
        (("report", str(run), "-o", str(outside / "page.html")), (0,)),
        (("samples", str(run)), (0,)),
        (("train", "--output", str(run), "--resume"), ()),
        *([(("train", "--output", str(run)), ())] if starts else []),
    ):
        try:
            _command(*arguments, accepted=accepted)
        except Refused as refused:
            refusals.append(str(refused))
    raise Refused(refusals[0])


# Data


_ROWS: dict[str, list[Any]] = {
    "texts": [{"prompt": f"{number} + 1 =", "answer": str(number + 1), "level": number} for number in range(30)],
    "chat": [
        {
            "messages": [{"role": "system", "content": "Count."}, {"role": "user", "content": f"{number} + 1"}],
            "answer": [number, {"also": None}],
            "tools": [{"type": "function", "function": {"name": "add", "parameters": {}}}],
        }
        for number in range(30)
    ],
}  # fmt: skip


def _make_lines(chance: random.Random, folder: Path) -> Path:
    rows = _ROWS[chance.choice(list(_ROWS))]
    target = folder / "data.jsonl"
    target.write_bytes(_damaged_lines("\n".join(map(json.dumps, rows)).encode(), chance))
    return target


def _take_data(path: Path, **task: Any) -> None:
    """Load both sides, and read every row of the training side, as a run does."""
    try:
        config = DataConfig.model_validate({"task": {"path": str(path), **task}, "held_out_fraction": 0.3})
        training = load_task(config, "training")
        load_task(config, "validation")
        for index in range(min(training.num_prompts, 50)):
            training.opening(index)
            training.reference(index)  # type: ignore[union-attr]
    except TaskError as error:
        raise Refused(str(error)) from None


def _take_lines(path: Path) -> None:
    if path.suffix != ".jsonl" and path.is_file():
        path = path.rename(path.with_suffix(".jsonl"))
    _take_data(path, name="jsonl")


def _make_table(chance: random.Random, folder: Path) -> Path:
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    target = folder / chance.choice(["data.csv", "data.csv", "data.parquet", "data.json"])
    table = pa.table({name: [row[name] for row in _ROWS["texts"]] for name in ("prompt", "answer", "level")})
    if target.suffix == ".json":
        target.write_bytes(as_json(changed(_ROWS["texts"], chance)))
        return target
    write = pyarrow.csv.write_csv if target.suffix == ".csv" else pyarrow.parquet.write_table
    write(table, target)
    target.write_bytes(damaged(target.read_bytes(), chance))
    return target


def _take_table(path: Path) -> None:
    _take_data(path, name="dataset")


KINDS: dict[str, Kind] = {
    "configuration": Kind(_make_configuration, _take_configuration, "run.yaml"),
    "scenario": Kind(_make_scenario, _take_scenario, "scenario.yaml"),
    "migrate": Kind(_make_theirs, _take_theirs, "theirs.yaml"),
    "snapshot": Kind(_make_snapshot, _take_snapshot, "in_order.json"),
    "trace": Kind(_make_trace, _take_trace, "trace.jsonl"),
    "run directory": Kind(_make_run, _take_run, "run"),
    "JSON lines": Kind(_make_lines, _take_lines, "data.jsonl"),
    "table": Kind(_make_table, _take_table, "data.csv"),
}


def empty(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
