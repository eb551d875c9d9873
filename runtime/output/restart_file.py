"""`restart.json` in a run's directory: what the process that restarts a run knows and no trace does.

While the run is restarted: the number of the restart, for `evenstep status`. After a run that was interrupted when no
process of it could write that to a trace: the interrupt, for `evenstep explain`.
"""

import json
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from runtime.files import FileNotWritten, Json, refuse_not_plain, write_json_aside, writing
from runtime.output.directory import RESTART
from runtime.trace.files import TraceUnreadable, find_trace


class Interrupt(NamedTuple):
    """An interrupt that the newest trace of its run lacks."""

    error: str | None
    """As in the last lines of the run."""


def restart_said(number: int, most: int) -> str:
    """Which restart of a run it is, in words: of at most `cluster.max_run_restarts`."""
    return f"restart {number} of at most {most}"


def note_restart(output: Path, number: int, most: int) -> None:
    """A disk that refuses the note costs the run nothing else."""
    _write(output, {"restart": number, "most": most})


def note_interrupt(output: Path, error: str | None) -> None:
    """Of the run whose trace is the newest. Nothing without a trace, nor on a disk that refuses the note."""
    with suppress(TraceUnreadable):
        _write(output, {"interrupted": find_trace(output).name, "error": error})


def forget_restart(output: Path) -> None:
    """Remove the note of a restart, also one that a killed process left; that of an interrupt stays."""
    if restart_in(output) is not None:
        with suppress(OSError):
            (output / RESTART).unlink()


def restart_in(output: Path) -> str | None:
    """`restart_said` of the restart that is noted in a run's directory; None without one."""
    noted = _read(output)
    return restart_said(noted["restart"], noted["most"]) if {"restart", "most"} <= noted.keys() else None


def interrupt_in(trace: Path) -> Interrupt | None:
    """The interrupt of the run of a trace that the trace itself lacks; None without one."""
    noted = _read(trace.parent)
    return Interrupt(noted.get("error")) if noted.get("interrupted") == trace.name else None


def _write(output: Path, noted: Json) -> None:
    with suppress(FileNotWritten), writing(output / RESTART, "evenstep status and explain lack it"):
        write_json_aside(output / RESTART, noted)


def _read(output: Path) -> Json:
    """Empty where there is none, or it is damaged."""
    try:
        refuse_not_plain(output / RESTART)
        noted = json.loads((output / RESTART).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return noted if isinstance(noted, dict) else {}
