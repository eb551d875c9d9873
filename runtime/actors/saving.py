"""A checkpoint that the disk refuses: what was begun is removed, and those before it stay."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from runtime.checkpoints.names import list_checkpoints
from runtime.files.unwritten import FileNotWritten, writing


@contextmanager
def saving(checkpoints: Path, staged: Path | None) -> Iterator[None]:
    """Raise FileNotWritten where the disk refuses a part of a checkpoint.

    Args:
        checkpoints: The folder of a run's checkpoints.
        staged: The checkpoint that is being written, which is removed then: it would take up what room there is.
    """
    try:
        with writing(checkpoints, "no checkpoint was added", also=(SafetensorError,)):
            yield
    except FileNotWritten as error:
        if staged is not None:
            shutil.rmtree(staged, ignore_errors=True)
        newest = next(iter(list_checkpoints(checkpoints)), None)
        stays = "there is none in it" if newest is None else f"{newest.name} stays the newest"
        raise FileNotWritten(checkpoints, error.reason, f"{error.kept}, and {stays}") from error.__cause__
