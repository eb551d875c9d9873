"""Which checkpoints stay, and the removal of the others."""

import os
import shutil
from pathlib import Path
from typing import NamedTuple

from runtime.checkpoints.checkpoint import list_checkpoints, looks_whole, serial_of, step_of
from runtime.files import reason_of


class Retention(NamedTuple):
    """The checkpoints that stay: the newest, and one of every stretch of steps for ever."""

    newest: int
    """At least 1. Of checkpoints of one step, only the newest counts and stays."""
    every_steps: int | None = None
    """The first checkpoint at or after each multiple of so many steps stays for ever; None: none does."""


def retire(directory: Path, retention: Retention) -> str | None:
    """Remove the checkpoints that need not stay. Returns why one could not be removed; None if all were.

    Torn checkpoints do not count, and are removed once they are older than those that stay.
    """
    for path in doomed(directory, retention):
        aside = path.with_name(f".old-{path.name}")
        try:
            os.rename(path, aside)
            shutil.rmtree(aside)
        except OSError as error:
            return f"checkpoint {path.name} is not needed any more and could not be removed: {reason_of(error)}"
    return None


def doomed(directory: Path, retention: Retention) -> list[Path]:
    """The checkpoints that need not stay, newest first."""
    found = list_checkpoints(directory)
    whole = [path for path in found if looks_whole(path)]
    newest_of_step = {step_of(path): path for path in reversed(whole)}
    counted = sorted(newest_of_step.values(), key=serial_of, reverse=True)
    stay = {*counted[: retention.newest], *_kept_for_ever(counted, retention.every_steps)}
    oldest = found.index(counted[retention.newest - 1]) if len(counted) > retention.newest else len(found)
    return [path for at, path in enumerate(found) if path not in stay and (path in whole or at > oldest)]


def _kept_for_ever(whole: list[Path], every_steps: int | None) -> list[Path]:
    """The first that was written of each stretch of so many steps, the stretch from step 0 left out."""
    if every_steps is None:
        return []
    first: dict[int, Path] = {}
    for path in reversed(whole):
        first.setdefault(step_of(path) // every_steps, path)
    return [path for stretch, path in first.items() if stretch > 0]
