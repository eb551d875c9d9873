"""C4: kill -9 of a process that writes a checkpoint in the background leaves the checkpoints, or one more."""

import subprocess
import sys
from pathlib import Path

from runtime.checkpoints.checkpoint import list_checkpoints, load, newest_whole
from tests.runtime.checkpoints.helpers import save_world, world_at


def test_a_kill_at_any_point_of_a_write_in_the_background_leaves_the_checkpoints_or_one_more(tmp_path: Path) -> None:
    directory, world = tmp_path / "checkpoints", world_at(2)
    for step in (0, 1):
        save_world(directory, world_at(step))
    command = [sys.executable, "-m", "tests.runtime.checkpoints.killed", str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    killed = [Path(line) for line in done.stdout.splitlines()]
    assert len(killed) >= 10
    left = set()
    for copy in killed:
        left.add(tuple(load(path).step for path in list_checkpoints(copy)))
        save_world(copy, world, keep=1)
        newest, torn = newest_whole(copy)
        assert newest is not None
        assert (newest.step, torn) == (2, [])
        assert list(copy.iterdir()) == [newest.path], "what the killed process left is removed"
    assert left == {(1, 0), (2, 1, 0), (2, 1)}
