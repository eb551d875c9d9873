"""Corrupt checkpoints by the hundred: each must be torn, refused, or load as it was; never a traceback or a hang.

    python -m tests.runtime.checkpoints.fuzz 500      # seeds 0 to 499, and a table of what became of them

A corruption may be *forged*: the manifest's sizes and checksums are made to agree with it. Then a changed value that
is as plausible as the old one cannot be noticed, and the resume is only required to succeed or to be refused.
"""

import copy
import json
import os
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from fsm.errors import ConfigError
from runtime.checkpoints.checkpoint import (
    CHECKPOINTS,
    CheckpointRefused,
    list_checkpoints,
    looks_whole,
    newest_whole,
    verified_policy,
)
from runtime.checkpoints.resume import ResumeRequest, find_resume_point
from runtime.launch.signals import answering_within
from runtime.settings import load_settings
from specs.scenarios.world import World
from tests.runtime.checkpoints.helpers import ORIGIN, rewrite_manifest, save_world, world_at

DATA = load_settings(None, []).data
"""Of a run that was saved with `ORIGIN`; only refusals for other data name it."""
DEADLINE_S = 60.0
"""Of one corruption on a busy machine; a hang takes longer."""
STRANGE: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2**31, 2**63, 10**400, 1e308, float("nan"), float("inf"), "", "x", "\u0000", "../../x", [],
    {}, [[]], {"": None}, [None] * 5, [-1], [2**70],
)  # fmt: skip
"""What a value of JSON is replaced by."""


class Sound(NamedTuple):
    """A run's directory with two whole checkpoints, to be copied."""

    output: Path
    world: World
    """Of the newest."""


def sound_run(output: Path) -> Sound:
    for step in (0, 1):
        world = world_at(step)
        save_world(output / CHECKPOINTS, world)
    return Sound(output, world)


def fuzzed(sound: Sound, output: Path, seed: int) -> tuple[str, str]:
    """Corrupt a copy in one way. Returns the way, and what became of it: torn, refused, equal or forged.

    Raises whatever the code under test raises that it should not, and AssertionError for a wrong result.
    """
    shutil.copytree(sound.output, output, symlinks=True)
    chance = random.Random(seed)
    way = chance.choice(WAYS)
    path = list_checkpoints(output / CHECKPOINTS)[0]
    way(path, chance)
    is_forged = way in FORGEABLE and chance.random() < 0.5 and _forge(path)
    with answering_within(DEADLINE_S):
        return way.__name__, _result(sound, output, path, is_forged=is_forged)


def _contents(path: Path) -> dict[str, bytes]:
    return {file.relative_to(path).as_posix(): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def _result(sound: Sound, output: Path, path: Path, *, is_forged: bool) -> str:
    contents = _contents(list_checkpoints(sound.output / CHECKPOINTS)[0])
    looks_whole(path)
    with suppress(CheckpointRefused):
        verified_policy(path)
    try:
        point = find_resume_point(output, ResumeRequest(), ORIGIN, sound.world.setup, DATA)
    except ConfigError:
        result = "refused"
    else:
        resumed_newest = point.checkpoint.name == path.name
        assert resumed_newest or any("is skipped" in notice for notice in point.notices)
        result = "equal" if resumed_newest else "torn"
        if resumed_newest and (is_forged or _contents(path) != contents):
            result = "forged"
    try:
        found, torn = newest_whole(output / CHECKPOINTS)
    except CheckpointRefused:
        assert result == "refused"
    else:
        assert found is not None, "the older one is whole"
        assert len(torn) == (found.path != path)
    if not is_forged:
        assert result != "forged", "a change was not noticed"
    return result


def _forge(path: Path) -> bool:
    """Make the manifest agree with what is there; False if it cannot be read itself."""
    try:
        rewrite_manifest(path)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, OSError):
        return False
    return True


# Ways to corrupt a checkpoint; each gets the checkpoint's directory


def _files(path: Path) -> list[Path]:
    return sorted(file for file in path.rglob("*") if file.is_file() and not file.is_symlink())


def flip_bytes(path: Path, chance: random.Random) -> None:
    file = chance.choice(_files(path))
    content = bytearray(file.read_bytes())
    for _ in range(chance.choice((1, 1, 2, 30))):
        content[chance.randrange(len(content))] ^= chance.randrange(1, 256)
    file.write_bytes(content)


def cut(path: Path, chance: random.Random) -> None:
    file = chance.choice(_files(path))
    os.truncate(file, chance.randrange(file.stat().st_size))


def grow(path: Path, chance: random.Random) -> None:
    file = chance.choice(_files(path))
    file.write_bytes(file.read_bytes() + chance.randbytes(chance.choice((1, 8, 5000))))


def fill_with_junk(path: Path, chance: random.Random) -> None:
    file = chance.choice(_files(path))
    nested = chance.choice((b"[", b'{"a":')) * 100_000
    file.write_bytes(chance.choice((b"", b"{}", b"null", b"\xff\xfe", chance.randbytes(200), nested)))


def lie_about_the_header(path: Path, chance: random.Random) -> None:
    """The first eight bytes of safetensors are the length of its header, which names types, shapes and places."""
    file = path / chance.choice(("groups.safetensors", "trainer/model.safetensors"))
    header = json.dumps({"rewards": {"dtype": chance.choice(("F64", "BOOL", "X")), "shape": [chance.choice((0, 2**62))],
                                     "data_offsets": [0, chance.choice((0, 8, 2**62))]}}).encode()  # fmt: skip
    size = chance.choice((len(header), 0, 2**63, 10**6))
    file.write_bytes(size.to_bytes(8, "little") + header + bytes(8))


def swap_with_the_older(path: Path, chance: random.Random) -> None:
    file = chance.choice(_files(path))
    older = list_checkpoints(path.parent)[1]
    shutil.copy(older / file.relative_to(path), file)


def swap_two_parts(path: Path, chance: random.Random) -> None:
    one, other = chance.sample(_files(path), 2)
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every container below a value, with each of its keys or indices."""
    keys = list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    return [(value, key) for key in keys] + [place for key in keys for place in _places(value[key])]


def replace_a_value(path: Path, chance: random.Random) -> None:
    file = chance.choice([file for file in _files(path) if file.suffix == ".json"])
    document = json.loads(file.read_text())
    for _ in range(chance.choice((1, 1, 1, 3))):
        container, key = chance.choice(_places(document))
        if isinstance(container, dict) and chance.random() < 0.2:
            del container[key]
            break
        container[key] = copy.deepcopy(chance.choice(STRANGE))
    file.write_text(json.dumps(document))


def remove(path: Path, chance: random.Random) -> None:
    chance.choice(_files(path)).unlink()


def add_a_file(path: Path, chance: random.Random) -> None:
    name = chance.choice(("model-2.safetensors", "trainer/x.json", "a b\n", "x" * 200))
    (path / name).write_bytes(chance.randbytes(chance.choice((0, 10))))


def put_a_link(path: Path, chance: random.Random) -> None:
    """To the same content, to nothing, to itself, or to a folder above."""
    file = chance.choice(_files(path))
    target = file.with_name("kept") if chance.random() < 0.3 else path.parent / "elsewhere"
    file.rename(target)
    file.symlink_to(chance.choice((target, Path("/nowhere"), file, path)))


def put_something_else(path: Path, chance: random.Random) -> None:
    """In place of a file a folder, or a FIFO, which would block whoever opens it."""
    file = chance.choice(_files(path))
    file.unlink()
    chance.choice((os.mkdir, os.mkfifo))(file)


def put_a_file_for_the_folder(path: Path, chance: random.Random) -> None:
    place = chance.choice((path, path / "trainer"))
    shutil.rmtree(place)
    match chance.randrange(4):
        case 0:
            place.touch()
        case 1:
            os.mkfifo(place)
        case 2:
            place.symlink_to(place)
        case 3:
            place.symlink_to("/nowhere")


def leave_what_killed_writers_leave(path: Path, chance: random.Random) -> None:
    names = (".tmp-checkpoint-000003", f".old-{path.name}", ".tmp-checkpoint-x", "checkpoint-0000000099-step-1x")
    place = path.with_name(chance.choice(names))
    chance.choice((Path.touch, Path.mkdir))(place)


WAYS: tuple[Callable[[Path, random.Random], None], ...] = (
    flip_bytes, cut, grow, fill_with_junk, lie_about_the_header, swap_with_the_older, swap_two_parts, replace_a_value,
    replace_a_value, replace_a_value, replace_a_value, remove, add_a_file, put_a_link, put_something_else,
    put_a_file_for_the_folder, leave_what_killed_writers_leave,
)  # fmt: skip
FORGEABLE = frozenset(
    (flip_bytes, cut, grow, fill_with_junk, lie_about_the_header, swap_with_the_older, swap_two_parts, replace_a_value)
)
"""Ways that a manifest can be made to agree with."""


def main(count: int) -> int:
    """Print what became of seeds 0 to `count`; 1 if one raised."""
    counted: Counter[tuple[str, str]] = Counter()
    failed: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        sound = sound_run(Path(folder) / "sound")
        for seed in range(count):
            output = Path(folder) / f"{seed}"
            try:
                counted[fuzzed(sound, output, seed)] += 1
            except Exception as error:
                failed.append(f"seed {seed}: {type(error).__name__}: {error}")
            shutil.rmtree(output)
    results = sorted({result for _, result in counted})
    print(f"{'':34}", *(f"{result:>8}" for result in results))
    for way in sorted({way for way, _ in counted}):
        print(f"{way.replace('_', ' '):34}", *(f"{counted[way, result]:8}" for result in results))
    print(f"{count} corruptions, {len(failed)} with an error that is none of ours", *failed, sep="\n")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
