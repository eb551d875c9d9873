"""The directory of a run while it starts, so that a start which came to nothing is in nobody's way.

A run that starts in a directory that holds nothing puts a mark there before anything else, locks it for as long as its
process lives, and takes it away when it begins. So what lies beside a mark that nobody locks was left by a start, and
the next one removes it. Without a mark nothing is ever removed, nor what no start makes.

`run.json` says which run the directory is of, by a random id that its checkpoints carry too (C4). A process that runs
there locks it, so that no other one resumes the run at the same time. A resumed run changes nothing before it begins.
"""

from __future__ import annotations

import fcntl
import json
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import yaml

from fsm.errors import ConfigError
from runtime.files.durable import write_json_aside, write_text_aside
from runtime.files.unwritten import writing
from runtime.metrics.writers import METRICS_FILE
from runtime.output.shared_output import TOKEN_FILE
from runtime.settings import Settings
from runtime.trace.files import trace_path

MARK = "not-begun"
CONFIG, MODEL, RUN = "config.yaml", "model", "run.json"
FINAL_MODEL = f"{MODEL}/final"
"""The last weights of a run, as a Hugging Face directory."""
_SAYS = "The run in this directory has not begun: the next `evenstep train --output` here removes what this one left.\n"


def _made_at_start(output: Path) -> set[str]:
    """Names of all that is made there before a run begins."""
    return {MARK, CONFIG, MODEL, RUN, METRICS_FILE, TOKEN_FILE, trace_path(output, 0).name, "tensorboard", "wandb"}


def start_problems(output: Path) -> Iterator[str]:
    """Why a new run can't start in a directory: what it holds is none of a start's, or of one that is going on."""
    found = sorted(path.name for path in output.iterdir())
    if MARK not in found:
        if found:
            yield (
                f"{output} is not empty ({_listed(found)}): two runs would be mixed; name another directory, empty it, "
                "or resume the run that is in it"
            )
        return
    others = [name for name in found if name not in _made_at_start(output)]
    if others:
        yield (
            f"{output} was left by a run that never began, and holds {_listed(others)} beside, which that run did not "
            "make and a new one does not remove: move it away, or name another directory"
        )
    try:
        with (output / MARK).open("ab") as mark:
            _lock(mark)
    except OSError as error:
        yield (
            f"{output} is the directory of a run that starts at this moment ({error.strerror}): wait for it, name "
            "another, or remove this one if no run is there"
        )


def resume_problems(output: Path) -> Iterator[str]:
    """Why the run of a directory can't be gone on with: a process is at it."""
    if not (output / RUN).exists():
        return
    try:
        with (output / RUN).open("rb") as file:
            _lock(file)
    except BlockingIOError:
        yield _is_going_on(output)
    except OSError:
        pass  # a file system without locks


def _is_going_on(output: Path) -> str:
    return (
        f"the run in {output} is going on: another process has locked its {RUN}. Wait for its end, or end it, and "
        "resume then"
    )


def new_run_id() -> str:
    """For a run that is new."""
    return secrets.token_hex(8)


def run_id_of(output: Path) -> str | None:
    """The id of the run in a directory; None where it was not noted. Raises ConfigError where it can't be read."""
    path = output / RUN
    if not path.exists():
        return None
    try:
        run = json.loads(path.read_text(encoding="utf-8"))["run"]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ConfigError(
            f"the run cannot start: {path} does not say which run is in {output} ({type(error).__name__}: {error}); "
            "remove it, and the run is known by its newest checkpoint"
        ) from None
    return str(run)


def initial_model_of(output: Path) -> Path:
    """Where the model lies, or is made, that a run starts from. It was in MODEL itself before others came to it."""
    return output / MODEL if (output / MODEL / "config.json").exists() else output / MODEL / "initial"


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{more}"


def _lock(mark: IO[bytes]) -> None:
    """Until the file is closed. Raises BlockingIOError where it is locked, and OSError where files can't be."""
    fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextmanager
def starting_in(output: Path) -> Iterator[list[str]]:
    """The directory of a run from its start to its end, made where it is not there; the names of what was removed.

    A directory that holds something and no mark, as of a run that is resumed, is left as it is. A ConfigError leaves
    neither a mark nor a directory that was made here.

    Raises ConfigError where it can't be made, and as `start_problems` tells.
    """
    made = [folder for folder in (output, *output.parents) if not folder.exists()]
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--output {output}: the directory can't be made: {error}; name another one") from error
    if any(output.iterdir()) and not (output / MARK).exists():
        yield []
        return
    problems = list(start_problems(output))
    if problems:
        raise ConfigError("\n  - ".join(["the run cannot start:", *problems]))
    with (output / MARK).open("ab") as mark:
        try:
            _lock(mark)
        except BlockingIOError:
            raise ConfigError(
                f"the run cannot start: another one has just started in {output}; name another directory"
            ) from None
        except OSError:
            pass  # a file system without locks: only the next start would need one, and it is refused
        mark.truncate(0)
        mark.write(_SAYS.encode("ascii"))
        mark.flush()
        try:
            yield _removed(output)
        except ConfigError:
            if (output / MARK).exists():
                _leave_nothing(output, made)
            raise


@contextmanager
def alone_in(output: Path) -> Iterator[None]:
    """Nobody else resumes the run of this directory meanwhile. Raises ConfigError where a process is at it."""
    if not (output / RUN).exists():
        yield
        return
    with (output / RUN).open("rb") as file:
        try:
            _lock(file)
        except BlockingIOError:
            raise ConfigError(f"the run cannot start: {_is_going_on(output)}") from None
        except OSError:
            pass  # a file system without locks
        yield


def _leave_nothing(output: Path, made: list[Path]) -> None:
    """Of a start that was refused; `made` are the directories that it made, the innermost first."""
    _removed(output)
    begun_in(output)
    for folder in made:
        if any(folder.iterdir()):
            return
        folder.rmdir()


def _removed(output: Path) -> list[str]:
    """Remove what a start left beside its mark; its names."""
    left = sorted(path for path in output.iterdir() if path.name in _made_at_start(output) - {MARK})
    for path in left:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    return [path.name for path in left]


def write_config(output: Path, settings: Settings) -> None:
    """The configuration that runs. Raises FileNotWritten."""
    with writing(output / CONFIG, "the run has not begun"):
        write_text_aside(output / CONFIG, yaml.safe_dump(settings.model_dump(mode="json"), sort_keys=False))


def write_run_id(output: Path, run: str) -> None:
    """Say which run the directory is of, unless it does already. Raises FileNotWritten."""
    if not (output / RUN).exists():
        with writing(output / RUN, "the run has not begun"):
            write_json_aside(output / RUN, {"run": run})


def begun_in(output: Path) -> None:
    """Take the mark away: what is there from now on is a run's."""
    with writing(output / MARK, "the run has not begun"):
        (output / MARK).unlink(missing_ok=True)
