"""C1, C4: a checkpoint is a directory of safetensors and JSON, written aside, checksummed and renamed. No pickle.

    checkpoint-000007-step-00000012/
        manifest.json        written last: format, step, size and SHA-256 of every other file
        control.json         the core's snapshot
        state.json           the task's state (seed of the data), the random states, the origin: run, data and model
        groups.safetensors   data of the groups that are ready or selected (`runtime.checkpoints.group_file`)
        groups.json
        trainer/             model, optimizer and torch's random state (`runtime.training.state`)

Checkpoints are ordered by their serial number, not by step: a run that resumed from an older one writes a newer one
of a lower step. A name that starts with a dot is no checkpoint: one being written, or one being removed. So a
writer that is killed at any point leaves the checkpoints unchanged, or one more.

Each directory has one writer, the first trainer rank, which writes one checkpoint at a time: within `staging` it writes
the trainer's files into TRAINER, and calls `commit`.
"""

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from safetensors import SafetensorError

from runtime.checkpoints.group_file import read_groups, write_groups
from runtime.checkpoints.origin import Origin
from runtime.files import (
    FileNotWritten,
    Json,
    reason_of,
    refuse_not_plain,
    sha256_of,
    sync_path,
    sync_tree,
    write_json,
    writing,
)
from runtime.groups import RolloutGroup

FORMAT = "evenstep checkpoint 1"
CHECKPOINTS = "checkpoints"
"""The folder of a run's checkpoints in its output directory."""
TRAINER = "trainer"
"""The trainer's folder in a checkpoint."""
MANIFEST = "manifest.json"
CONTROL = "control.json"
STATE = "state.json"
_NAME = re.compile(r"checkpoint-(\d+)-step-(\d+)")
NOT_OURS = (LookupError, TypeError, AttributeError, ArithmeticError, RecursionError, SafetensorError)
"""Errors of reading JSON or arrays of another form than what is written here."""
_ASIDE = re.compile(r"\.(tmp|old)-checkpoint-(\d+)(-step-(\d+))?")


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """A verified checkpoint."""

    path: Path
    step: int
    """Optimizer steps done: the snapshot's version."""
    control: Json
    """For `fsm.snapshot.restore`."""
    groups: dict[int, RolloutGroup]
    """Per prompt number the data of the groups that are ready or selected."""
    task_state: Json
    random_states: Json
    origin: Origin | None
    """None in a checkpoint of an evenstep that did not write it yet."""


class CheckpointRefused(Exception):
    """A checkpoint that the run must not resume from, even if there is no other."""

    def __init__(self, path: Path, reason: str):
        self.path = path
        self.reason = reason
        super().__init__(f"checkpoint {path}: {reason}")

    def __reduce__(self) -> "tuple[type[CheckpointRefused], tuple[Path, str]]":
        return type(self), (self.path, self.reason)  # it crosses processes


class CheckpointTorn(CheckpointRefused):
    """A checkpoint with a missing, cut or changed part. The run may resume from the newest whole one."""


def list_checkpoints(directory: Path) -> list[Path]:
    """All checkpoints in a directory, newest first, whole or not. None in a directory that does not exist."""
    if not directory.is_dir():
        return []
    found = (path for path in directory.iterdir() if _NAME.fullmatch(path.name))
    return sorted(found, key=serial_of, reverse=True)


def serial_of(path: Path) -> int:
    """The serial number in a checkpoint's name, by which checkpoints are ordered."""
    return int(path.name.split("-")[1])


def step_of(path: Path) -> int:
    """The number of optimizer steps in a checkpoint's name."""
    return int(path.name.split("-")[3])


def remove_unfinished(directory: Path) -> None:
    """Remove what writers that were killed have left of checkpoints. No writer may be at work."""
    for entry in directory.iterdir() if directory.is_dir() else ():
        if _ASIDE.fullmatch(entry.name):
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()


def stage(directory: Path) -> Path:
    """Make a staging folder in `directory`, which is made if need be, and remove those of killed writers."""
    directory.mkdir(parents=True, exist_ok=True)
    remove_unfinished(directory)
    serial = 1 + max((serial_of(path) for path in list_checkpoints(directory)), default=0)
    staged = directory / f".tmp-checkpoint-{serial:06d}"
    staged.mkdir()
    return staged


def commit(
    staged: Path,
    *,
    step: int,
    control: Json,
    groups: Mapping[int, RolloutGroup],
    task_state: Json,
    random_states: Json,
    origin: Origin,
) -> Path:
    """Complete a staged checkpoint and rename it. Returns its path.

    `staged` has the trainer's files in its folder TRAINER. `control` is the core's snapshot, `groups` the data of just
    the prompts of `prompts_with_data(control)`. `task_state` and `random_states` (those that are not in the trainer's
    folder) are plain JSON and read back equal.

    Raises ValueError if the parts do not belong together; no checkpoint has been made then. In particular the trainer's
    version must be the snapshot's: a checkpoint between an optimizer step and its StepFinished would train the step's
    groups twice.
    """
    _refuse_mismatch(step, control, groups)
    _refuse_other_version(staged / TRAINER, step)
    write_json(staged / CONTROL, control)
    write_json(staged / STATE, {"task": task_state, "random": random_states, "origin": asdict(origin)})
    write_groups(staged, groups)
    _write_manifest(staged, step)
    sync_tree(staged)
    serial = int(staged.name.rpartition("-")[2])
    path = staged.parent / f"checkpoint-{serial:06d}-step-{step:08d}"
    os.rename(staged, path)
    sync_path(path.parent)
    return path


@contextmanager
def staging(directory: Path) -> Iterator[Path]:
    """Yields a folder to write a checkpoint of `directory` in, which the block commits.

    If the block raises, the folder is removed, since it would fill the disk. Raises FileNotWritten, with the checkpoint
    that stays the newest, if the disk refuses a part.
    """
    staged: Path | None = None
    try:
        with writing(directory, "no checkpoint was added", also=(SafetensorError,)):
            staged = stage(directory)
            yield staged
    except FileNotWritten as error:
        raise FileNotWritten(directory, error.reason, f"{error.kept}, and {_newest_in(directory)}") from error.__cause__
    finally:
        if staged is not None:
            shutil.rmtree(staged, ignore_errors=True)  # committed, it has another name


def _newest_in(directory: Path) -> str:
    """Which checkpoint is the newest, in words; the folder may be gone, or refuse to be read."""
    try:
        newest = next(iter(list_checkpoints(directory)), None)
    except OSError as error:
        return f"the folder cannot be read ({reason_of(error)})"
    return "there is none in it" if newest is None else f"{newest.name} stays the newest"


def prompts_with_data(control: Json) -> list[int]:
    """The prompts of a snapshot whose data a checkpoint holds: ready, in the chunk in training, accumulated."""
    return [group[0] for place in ("ready", "chunk", "accumulated") for group in control[place]]


def newest_whole(directory: Path) -> tuple[Checkpoint | None, list[CheckpointTorn]]:
    """The newest whole checkpoint, verified in full, and the newer ones that are not whole.

    Raises CheckpointRefused for one of another format before a whole one is found.
    """
    torn: list[CheckpointTorn] = []
    for path in list_checkpoints(directory):
        try:
            return load(path), torn
        except CheckpointTorn as error:
            torn.append(error)
    return None, torn


def load(path: Path, *, hashed: bool = True) -> Checkpoint:
    """One checkpoint, verified in full; without `hashed`, all but the checksums, of one that was verified before.

    Raises CheckpointTorn, or CheckpointRefused for one of another format.
    """
    manifest = _read_manifest(path)
    try:
        _refuse_other_files(path, manifest["files"], hashed=hashed)
        control = json.loads((path / CONTROL).read_text(encoding="utf-8"))
        state = json.loads((path / STATE).read_text(encoding="utf-8"))
        groups = read_groups(path)
        _refuse_mismatch(manifest["step"], control, groups)
        _refuse_other_version(path / TRAINER, manifest["step"])
        origin = _origin_of(state)
        return Checkpoint(path, manifest["step"], control, groups, state["task"], state["random"], origin)
    except (ValueError, OSError) as error:
        raise CheckpointTorn(path, str(error)) from error
    except NOT_OURS as error:
        raise CheckpointTorn(
            path, f"its parts are not what this evenstep writes ({type(error).__name__}: {error})"
        ) from error


def verified_policy(path: Path) -> Path:
    """The trainer's folder of a checkpoint, after its configuration and weights were compared with their checksums.

    Raises CheckpointTorn, or CheckpointRefused for another format.
    """
    manifest = _read_manifest(path)
    for name in (f"{TRAINER}/config.json", f"{TRAINER}/model.safetensors"):
        try:
            refuse_not_plain(path / name)
            matches = sha256_of(path / name) == manifest["files"][name]["sha256"]
        except (OSError, LookupError, TypeError) as error:
            raise CheckpointTorn(path, f"{name} cannot be read ({type(error).__name__}: {error})") from error
        if not matches:
            raise CheckpointTorn(path, f"{name} does not match its checksum")
    return path / TRAINER


def looks_whole(path: Path) -> bool:
    """All files are there with their sizes; their contents are not read."""
    try:
        _refuse_other_files(path, _read_manifest(path)["files"], hashed=False)
    except (CheckpointRefused, ValueError, OSError, *NOT_OURS):
        return False
    return True


def _origin_of(state: Json) -> Origin | None:
    if "origin" not in state:
        return None
    run, data, model = (state["origin"][key] for key in ("run", "data", "model"))
    if not isinstance(run, str) or not isinstance(data, dict) or not isinstance(model, dict):
        raise TypeError("its origin is not text and two mappings")
    return Origin(run, data, model)


def _refuse_mismatch(step: int, control: Json, groups: Mapping[int, RolloutGroup]) -> None:
    version = control["state"]["trainer"][1]
    if version != step:
        raise ValueError(f"a checkpoint of step {step}, but the snapshot's version is {version}")
    wanted = set(prompts_with_data(control))
    if wanted != groups.keys():
        raise ValueError(
            f"the data of ready or selected prompts {sorted(wanted - groups.keys())} is missing; data of prompts "
            f"{sorted(groups.keys() - wanted)}, which are neither ready nor selected, is given"
        )


def _refuse_other_version(trainer: Path, step: int) -> None:
    try:
        version = json.loads((trainer / "trainer.json").read_text(encoding="utf-8"))["version"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{trainer} holds no trainer state ({type(error).__name__}: {error})") from error
    if version != step:
        raise ValueError(
            f"the trainer saved version {version}, but the snapshot's version is {step}: take both between the "
            "same two optimizer steps"
        )


def _files_of(root: Path) -> dict[str, Path]:
    """All files below `root` but its manifest, by their path in it. Raises ValueError for a link or a device.

    Hidden files are skipped: some file systems put their own there, and nothing here reads them.
    """
    files = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.name.startswith(".") or name == MANIFEST or (path.is_dir() and not path.is_symlink()):
            continue
        if path.is_symlink() or not path.is_file():
            raise ValueError(f"{name} is not a plain file")
        files[name] = path
    return files


def _write_manifest(staged: Path, step: int) -> None:
    files = {
        name: {"bytes": path.stat().st_size, "sha256": sha256_of(path)} for name, path in _files_of(staged).items()
    }
    write_json(staged / MANIFEST, {"format": FORMAT, "step": step, "files": files})


def _read_manifest(path: Path) -> Json:
    """The manifest. Raises CheckpointTorn, or CheckpointRefused for another format."""
    if not path.is_dir():
        if os.path.lexists(path):
            raise CheckpointTorn(path, "it is no directory")
        raise CheckpointRefused(path, "there is no such directory")
    try:
        refuse_not_plain(path / MANIFEST)
        manifest: Json = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointTorn(path, f"it has no {MANIFEST}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointTorn(path, f"its {MANIFEST} cannot be read: {error}") from error
    found = manifest.get("format") if isinstance(manifest, dict) else None
    if not isinstance(found, str):
        raise CheckpointTorn(path, f"its {MANIFEST} does not say its format")
    if found != FORMAT:
        raise CheckpointRefused(
            path, f"it has format {found!r}, and this evenstep reads {FORMAT!r}; resume with the version that wrote it"
        )
    return manifest


def _refuse_other_files(path: Path, listed: Json, *, hashed: bool) -> None:
    """Raise ValueError unless the files, their sizes and, if `hashed`, their checksums are those of the manifest."""
    files = _files_of(path)
    missing, extra = sorted(listed.keys() - files.keys()), sorted(files.keys() - listed.keys())
    if missing:
        raise ValueError(f"{', '.join(missing)} is missing")
    if extra:
        raise ValueError(f"{', '.join(extra)} is not in its {MANIFEST}")
    for name, file in files.items():
        size = file.stat().st_size
        if size != listed[name]["bytes"]:
            raise ValueError(f"{name} has {size} bytes of {listed[name]['bytes']}")
    for name, entry in listed.items():
        if hashed and sha256_of(path / name) != entry["sha256"]:
            raise ValueError(f"{name} does not match its checksum")
