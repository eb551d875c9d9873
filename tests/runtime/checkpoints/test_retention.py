"""Which checkpoints stay: the newest whole ones, and one of every stretch of steps for ever."""

import json
from pathlib import Path

import pytest

from runtime.checkpoints import retention
from runtime.checkpoints.checkpoint import FORMAT, list_checkpoints, step_of
from runtime.checkpoints.retention import Retention, retire


def add(directory: Path, step: int, *, whole: bool = True) -> Path:
    """A checkpoint without files, which is whole if it has a manifest."""
    serial = 1 + max((int(path.name.split("-")[1]) for path in list_checkpoints(directory)), default=0)
    path = directory / f"checkpoint-{serial:06d}-step-{step:08d}"
    path.mkdir()
    if whole:
        (path / "manifest.json").write_text(json.dumps({"format": FORMAT, "step": step, "files": {}}))
    return path


def steps_left(directory: Path, steps: list[int], kept: Retention) -> list[int]:
    """The steps that are there, oldest first, after a checkpoint of each was written."""
    for step in steps:
        add(directory, step)
        assert retire(directory, kept) is None
    return [step_of(path) for path in reversed(list_checkpoints(directory))]


@pytest.mark.parametrize(
    ("steps", "kept", "left"),
    [
        (list(range(5, 65, 5)), Retention(2), [55, 60]),
        (list(range(5, 65, 5)), Retention(2, 20), [20, 40, 55, 60]),
        (list(range(5, 65, 5)), Retention(1, 5), list(range(5, 65, 5))),
        ([3, 9, 14, 19, 23, 27, 31, 38, 52], Retention(2, 10), [14, 23, 31, 38, 52]),  # by minutes: no multiple is hit
        ([10, 15, 20, 12, 17, 20, 25], Retention(1, 10), [10, 20, 25]),  # resumed from step 10 after 20
        ([4, 8], Retention(5, 4), [4, 8]),
        ([20, 30, 40, 40], Retention(2), [30, 40]),  # ended and resumed at step 40: one counts
        ([20, 40, 40, 40], Retention(2, 20), [20, 40]),
    ],
)
def test_the_newest_stay_and_one_of_every_stretch_for_ever(
    steps: list[int], kept: Retention, left: list[int], tmp_path: Path
) -> None:
    assert steps_left(tmp_path, steps, kept) == left


def test_a_torn_checkpoint_is_neither_among_the_newest_nor_kept_for_ever(tmp_path: Path) -> None:
    kept = Retention(1, 10)
    add(tmp_path, 10, whole=False)
    assert retire(tmp_path, kept) is None
    assert len(list_checkpoints(tmp_path)) == 1, "there is no whole one yet"
    assert steps_left(tmp_path, [12, 15], kept) == [12, 15]
    add(tmp_path, 16, whole=False)
    assert retire(tmp_path, kept) is None
    assert [step_of(path) for path in list_checkpoints(tmp_path)] == [16, 15, 12]


def test_a_checkpoint_that_cannot_be_removed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(retention.shutil, "rmtree", refuse)
    first = add(tmp_path, 1)
    add(tmp_path, 2)
    told = retire(tmp_path, Retention(1))
    assert told == f"checkpoint {first.name} is not needed any more and could not be removed: Read-only file system"
