"""The directory of a run while it starts, so that a failed start never blocks the next one.

A run that starts in an empty directory first puts a mark there, locks it as long as its process lives, and removes it
when the run begins. So files next to a mark that nobody locks are left from a failed start, and the next start removes
them. Without a mark nothing is ever removed, nor is a file that no start makes.

`run.json` holds the run's random id, which its checkpoints carry too (C4). A process that runs in the directory locks
it, so that no other process resumes the run at the same time. A resumed run changes nothing before it begins.

That process is another one after a restart. The one that restarts it locks the directory itself, from the first message
of the run to its end.
"""

import fcntl
import json
import os
import secrets
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from fsm.config.strict import dump_yaml
from fsm.errors import ConfigError
from runtime.files import reason_of, refuse_not_plain, write_json_aside, write_text_aside, writing
from runtime.metrics.writers import METRICS_FILE, SAMPLES_FILE
from runtime.output.shared_output import TOKEN_FILE
from runtime.settings import TINY, Settings, load_settings
from runtime.trace.files import trace_path
from runtime.trace.show import printable
from runtime.wording import counted

MARK = "not-begun"
CONFIG, MODEL, RUN = "config.yaml", "model", "run.json"
CLUSTER = "cluster.json"
RESTART = "restart.json"
FINAL_MODEL = f"{MODEL}/final"
"""The last weights of a run, as a Hugging Face directory."""
_CANNOT_START = "the run cannot start: "
_SAYS = "The run in this directory has not begun: the next `evenstep train --output` here removes what this one left.\n"


def _made_at_start(output: Path) -> set[str]:
    """Names of all files that a run makes before it begins."""
    return {
        *(
            MARK,
            CONFIG,
            MODEL,
            RUN,
            CLUSTER,
            RESTART,
            METRICS_FILE,
            SAMPLES_FILE,
            TOKEN_FILE,
            trace_path(output, 0).name,
        ),
        *("tensorboard", "wandb"),
    }


def start_problems(output: Path) -> Iterator[str]:
    """Why a new run cannot start in a directory: it holds other files, or a run is starting there."""
    found = sorted(path.name for path in output.iterdir())
    if MARK not in found:
        if found:
            resume = ""
            if {RUN, METRICS_FILE, "checkpoints"}.intersection(found):
                resume = f", or continue its run: evenstep train CONFIG --output {shlex.quote(str(output))} --resume"
            yield (
                f"{output} is not empty ({_listed(found)}): two runs would be mixed; name another directory or empty "
                f"it{resume}"
            )
        return
    others = [name for name in found if name not in _made_at_start(output)]
    if others:
        yield (
            f"{output} was left by a run that never began, and also holds {_listed(others)}, which that run did not "
            "make and a new one does not remove: move it away, or name another directory"
        )
    try:
        refuse_not_plain(output / MARK)
        with (output / MARK).open("ab") as mark:
            free = _lock(mark)
    except OSError as error:
        yield f"{output / MARK} cannot be opened ({reason_of(error)}): remove it, or name another directory"
        return
    if not free:
        yield (f"{output} is the directory of a run that starts at this moment: wait for it, or name another directory")


def resume_problems(output: Path) -> Iterator[str]:
    """Why the run of a directory cannot be resumed: another process runs it."""
    try:
        with alone_in(output):
            pass
    except ConfigError as error:
        yield str(error).removeprefix(_CANNOT_START)
        return
    except OSError:
        return  # it cannot be read; `run_id_of` says why
    if _is_held(output):
        yield f"the run in {output} is being restarted by another process. Wait for its end, or end it, and resume then"


@contextmanager
def alone_in(output: Path) -> Iterator[None]:
    """Keep other processes from resuming the directory's run meanwhile. Raises ConfigError if another one runs it."""
    if not (output / RUN).is_file():  # `run_id_of` refuses what is none
        yield
        return
    with (output / RUN).open("rb") as file:
        if not _lock(file):
            raise ConfigError(
                f"{_CANNOT_START}the run in {output} is still running: another process has locked its {RUN}. Wait "
                "for its end, or end it, and resume then"
            )
        yield


@contextmanager
def starting_in(output: Path) -> Iterator[list[str]]:
    """The directory of a run from its start to its end, made if it is missing; yields the names of removed files.

    A directory with files and no mark, as of a run that is resumed, is left unchanged. A ConfigError removes the mark,
    the files made at the start, and the directories made here.

    Raises ConfigError if the directory cannot be made, or for a problem of `start_problems`.
    """
    made = [folder for folder in (output, *output.parents) if not folder.exists()]
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--output {output}: the directory cannot be made: {error}; name another one") from error
    if any(output.iterdir()) and not (output / MARK).exists():
        yield []
        return
    problems = list(start_problems(output))
    if problems:
        raise ConfigError("\n  - ".join(["the run cannot start:", *problems]))
    with (output / MARK).open("ab") as mark:
        if not _lock(mark):
            raise ConfigError(f"{_CANNOT_START}another one has just started in {output}; name another directory")
        mark.truncate(0)
        mark.write(_SAYS.encode("ascii"))
        mark.flush()
        try:
            yield _removed(output)
        except ConfigError:
            if (output / MARK).exists():
                _leave_nothing(output, made)
            raise


def _removed(output: Path) -> list[str]:
    """Remove the files that a start left next to its mark; their names."""
    left = sorted(path for path in output.iterdir() if path.name in _made_at_start(output) - {MARK})
    for path in left:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    return [path.name for path in left]


def _leave_nothing(output: Path, made: list[Path]) -> None:
    """Undo a refused start; `made` are the directories that it made, the innermost first."""
    _removed(output)
    begun_in(output)
    for folder in made:
        if any(folder.iterdir()):
            return
        folder.rmdir()


def _lock(mark: IO[bytes]) -> bool:
    """Lock a file until it is closed. False if another process has locked it; True on a file system without locks."""
    try:
        fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return not isinstance(error, BlockingIOError)
    return True


def is_left(output: Path) -> bool:
    """Whether no process runs in a run's directory any more. False where that cannot be told, as without its files."""
    there = _lockable(output)
    return bool(there) and not any(map(_is_locked, there)) and not _is_held(output)


def is_between_processes(output: Path) -> bool:
    """Whether a run is being restarted, or resumed, and the process that will run it has not come to the directory."""
    return _is_held(output) and not any(map(_is_locked, _lockable(output)))


def _lockable(output: Path) -> list[Path]:
    return [path for path in (output / MARK, output / RUN) if path.is_file()]


def hold(output: Path) -> int | None:
    """Lock a directory until the file descriptor is closed, and touch its run.json, which says when that was.

    None if there is no directory yet, another process has locked it, or its file system cannot lock directories.
    """
    try:
        held = os.open(output, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return None
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(held)
        return None
    with suppress(OSError):  # a new run has none yet
        os.utime(output / RUN)
    return held


def _is_held(output: Path) -> bool:
    """Whether a process has locked the directory with `hold`."""
    try:
        looked = os.open(output, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return False
    try:
        fcntl.flock(looked, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system that cannot lock directories
        return False
    finally:
        os.close(looked)
    return False


def _is_locked(path: Path) -> bool:
    """Whether a process has locked a file, or may have: on a file system without locks."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    return False


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{more}"


def begun_in(output: Path) -> None:
    """The run has begun: remove the mark, so that its files stay."""
    with writing(output / MARK, "the run has not begun"):
        (output / MARK).unlink(missing_ok=True)


def write_config(output: Path, settings: Settings) -> None:
    """Write the resolved configuration of the run. Raises FileNotWritten."""
    with writing(output / CONFIG, "the run has not begun"):
        write_text_aside(output / CONFIG, dump_yaml(settings.model_dump(mode="json")))


def config_changes(output: Path, settings: Settings) -> list[str]:
    """Keys whose value differs from the directory's config.yaml, as `loss_fn.ratio_clip_max 0.28 → 0.2`.

    Empty without that file. One line with the reason if it cannot be loaded.
    """
    if not (output / CONFIG).is_file():
        return []
    try:
        before = load_settings(output / CONFIG)
    except ConfigError as error:
        return [f"{CONFIG} cannot be compared: {error}"]
    had, has = (dict(_leaves(each.model_dump(mode="json"))) for each in (before, settings))
    return [
        f"{key} {json.dumps(had.get(key))} → {json.dumps(has.get(key))}"
        for key in sorted(had.keys() | has.keys())
        if had.get(key) != has.get(key)
    ]


def _leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Each value that is not a mapping, with its dotted key. An empty mapping counts as one."""
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from _leaves(inner, f"{key}.{name}" if key else str(name))
    else:
        yield key, value


def new_run_id() -> str:
    """A random id for a new run."""
    return secrets.token_hex(8)


def write_run_id(output: Path, run: str) -> None:
    """Write the run's id and the command that starts it, unless the directory has one. Raises FileNotWritten."""
    if not (output / RUN).exists():
        command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
        with writing(output / RUN, "the run has not begun"):
            write_json_aside(output / RUN, {"run": run, "command": printable(command, widest=len(command))})


def run_id_of(output: Path) -> str | None:
    """The id of the run in a directory; None without a run.json. Raises ConfigError for one that cannot be read."""
    path = output / RUN
    if not path.exists():
        return None
    try:
        refuse_not_plain(path)
        run = json.loads(path.read_text(encoding="utf-8"))["run"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise ConfigError(
            f"{_CANNOT_START}{path} does not say which run is in {output} ({type(error).__name__}: {error}); "
            "remove it, and the run is known by its newest checkpoint"
        ) from None
    return str(run)


def initial_model_of(output: Path) -> Path:
    """Where the initial model is, or will be. Older runs have it in MODEL itself."""
    return output / MODEL if (output / MODEL / "config.json").exists() else output / MODEL / "initial"


def model_said(settings: Settings, output: Path) -> str:
    """The model that a run begins with, in words; a tiny one is warmed up where it is made, unless a run left it."""
    name, steps = settings.policy.model_name, settings.warmup.steps
    is_made = name == TINY and not (initial_model_of(output) / "config.json").exists()
    return f"{name}, warmed up by {counted(steps, 'supervised step')}" if is_made and steps else name
