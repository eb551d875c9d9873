"""C1, C4: checkpoints hold everything, and a kill at any point never makes a wrong one load."""

import json
import os
import pickle
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fsm.snapshot import restore
from runtime.checkpoints import checkpoint
from runtime.checkpoints.checkpoint import (
    TRAINER,
    CheckpointRefused,
    CheckpointTorn,
    list_checkpoints,
    load,
    newest_whole,
    staging,
)
from runtime.files import FileNotWritten
from runtime.groups import RolloutGroup
from specs.scenarios.world import World
from tests.runtime.bookkeeping import group_of, prompts_with_data, random_moves
from tests.runtime.checkpoints.helpers import ORIGIN, rewrite_manifest, save, save_world, world_at, write_trainer


@pytest.fixture(scope="module")
def worlds() -> dict[int, World]:
    return {step: world_at(step) for step in (0, 1, 2)}


def same_group(one: RolloutGroup, other: RolloutGroup) -> bool:
    return (
        (one.prompt, one.start_weight, one.end_weight) == (other.prompt, other.start_weight, other.end_weight)
        and len(one.rollouts) == len(other.rollouts)
        and all(
            (a.reward, a.finished) == (b.reward, b.finished)
            and all(
                getattr(a, name).dtype == getattr(b, name).dtype and (getattr(a, name) == getattr(b, name)).all()
                for name in ("token_ids", "loss_mask", "logprobs")
            )
            for a, b in zip(one.rollouts, other.rollouts, strict=True)
        )
    )


def newest(directory: Path) -> checkpoint.Checkpoint | None:
    found, torn = newest_whole(directory)
    assert torn == []
    return found


def assert_is(loaded: checkpoint.Checkpoint | None, world: World) -> None:
    """The checkpoint is that of the world, in every part."""
    assert loaded is not None
    step = world.core.state.trainer.version
    assert loaded.step == step
    assert loaded.control == json.loads(world.snapshot())
    assert loaded.task_state == {"position": 7, "seed": 1}
    assert loaded.random_states == {"sampling": [1, 2, [3, None]]}
    assert loaded.origin == ORIGIN
    assert loaded.groups.keys() == set(prompts_with_data(world))
    assert all(same_group(group, group_of(prompt, seed=step)) for prompt, group in loaded.groups.items())
    assert (loaded.path / TRAINER / "model.safetensors").read_bytes() == random.Random(step).randbytes(500)


def test_what_is_saved_comes_back_in_every_part(tmp_path: Path, worlds: dict[int, World]) -> None:
    path = save_world(tmp_path, worlds[1])
    assert_is(load(path), worlds[1])
    assert_is(newest(tmp_path), worlds[1])
    assert_is(load(path, hashed=False), worlds[1])
    arrays = [rollout.logprobs for group in load(path).groups.values() for rollout in group.rollouts]
    assert arrays
    assert not any(array.flags.writeable for array in arrays)


def test_a_checkpoint_is_safetensors_and_json_without_pickle(tmp_path: Path, worlds: dict[int, World]) -> None:
    path = save_world(tmp_path, worlds[1])
    files = [file for file in path.rglob("*") if file.is_file()]
    assert {file.suffix for file in files} == {".safetensors", ".json"}


def test_a_run_goes_on_from_a_checkpoint_and_its_balance_adds_up(tmp_path: Path) -> None:
    world = world_at(2)
    loaded = load(save_world(tmp_path, world))
    world.core = restore(world.setup, loaded.control)
    world._open()
    assert loaded.groups.keys() == set(prompts_with_data(world))
    random_moves(world, 11, 2000)
    assert world.status == "completed"
    assert world.core.state.sheet.balanced


def test_there_is_no_newest_in_an_empty_or_missing_directory(tmp_path: Path) -> None:
    assert newest(tmp_path) is None
    assert newest(tmp_path / "missing") is None


def test_the_newest_is_the_last_written_and_not_that_of_the_largest_step(
    tmp_path: Path, worlds: dict[int, World]
) -> None:
    save_world(tmp_path, worlds[2])
    save_world(tmp_path, worlds[1])
    assert_is(newest(tmp_path), worlds[1])


def test_only_the_newest_are_kept(tmp_path: Path, worlds: dict[int, World]) -> None:
    paths = [save_world(tmp_path, worlds[step], keep=2) for step in (0, 1, 2, 2)]
    assert list_checkpoints(tmp_path) == [paths[3], paths[1]], "one of each step"
    assert sorted(tmp_path.iterdir()) == [paths[1], paths[3]]


def test_a_torn_checkpoint_does_not_count_among_those_that_are_kept(tmp_path: Path, worlds: dict[int, World]) -> None:
    good, torn = save_world(tmp_path, worlds[0]), save_world(tmp_path, worlds[1])
    (torn / "control.json").unlink()
    newest = save_world(tmp_path, worlds[2], keep=2)
    assert list_checkpoints(tmp_path) == [newest, torn, good]
    one_more = save_world(tmp_path, worlds[1], keep=2)
    assert list_checkpoints(tmp_path) == [one_more, newest]


# Kills and power cuts


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, worlds: dict[int, World]) -> Path:
    """A directory with two checkpoints, to be copied."""
    directory = tmp_path_factory.mktemp("pair")
    save_world(directory, worlds[0])
    save_world(directory, worlds[1])
    return directory


class Killed(BaseException):
    """The process is dead: nothing of it runs any more, no cleanup either."""


class Disk:
    """Counts what reaches the disk, kills at the n-th, and then loses what was not flushed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kill_at: int) -> None:
        self.operations = 0
        self.kill_at = kill_at
        self.dead = False
        self.flushed: set[int] = set()
        for module, name in ((os, "fsync"), (os, "rename"), (os, "mkdir"), (Path, "write_text"), (shutil, "rmtree")):
            monkeypatch.setattr(module, name, self._counted(name, getattr(module, name)))
        monkeypatch.setattr("runtime.checkpoints.group_file.save_file", self._counted("write", checkpoint_save_file()))

    def _counted(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def operation(*given: Any, **named: Any) -> Any:
            if self.dead or self.operations == self.kill_at:
                if name == "rmtree" and not self.dead:
                    some = sorted(path for path in Path(given[0]).rglob("*") if path.is_file())[::2]
                    for path in some:
                        path.unlink()
                self.dead = True
                raise Killed
            self.operations += 1
            if name == "fsync":
                self.flushed.add(os.fstat(given[0]).st_ino)
                return None
            return real(*given, **named)

        return operation

    def lose_what_was_not_flushed(self, root: Path, chance: random.Random) -> None:
        """Files that were not flushed are cut or gone; what a later write changed was not flushed either."""
        for file in [path for path in root.rglob("*") if path.is_file()]:
            if file.stat().st_ino not in self.flushed:
                if chance.random() < 0.3:
                    file.unlink()
                else:
                    with file.open("r+b") as opened:
                        opened.truncate(chance.randrange(file.stat().st_size + 1))


def checkpoint_save_file() -> Callable[..., Any]:
    from safetensors.numpy import save_file

    return save_file


def operations_of_a_save(directory: Path, worlds: dict[int, World]) -> int:
    save_world(directory, worlds[0])
    save_world(directory, worlds[1])
    with pytest.MonkeyPatch.context() as monkeypatch:
        disk = Disk(monkeypatch, kill_at=10**9)
        save_world(directory, worlds[2], keep=2)
    return disk.operations


def test_a_kill_or_power_cut_at_any_point_leaves_the_old_checkpoint_or_the_new_one(
    tmp_path: Path, pair: Path, worlds: dict[int, World]
) -> None:
    total = operations_of_a_save(tmp_path / "counted", worlds)
    assert total > 20
    outcomes = set()
    for kill_at in range(total):
        for seed in range(3):
            directory = tmp_path / f"{kill_at}-{seed}"
            shutil.copytree(pair, directory)
            with pytest.MonkeyPatch.context() as monkeypatch:
                disk = Disk(monkeypatch, kill_at)
                disk.flushed = {path.stat().st_ino for path in directory.rglob("*")}
                with pytest.raises(Killed):
                    save_world(directory, worlds[2], keep=2)
            disk.lose_what_was_not_flushed(directory, random.Random(seed))
            steps = [load(path).step for path in list_checkpoints(directory)]
            assert steps in ([1, 0], [2, 1, 0], [2, 1])
            loaded = newest(directory)
            assert loaded is not None
            assert_is(loaded, worlds[loaded.step])
            outcomes.add(tuple(steps))
    assert outcomes == {(1, 0), (2, 1, 0), (2, 1)}


def test_what_killed_writers_left_is_removed_by_the_next_save(tmp_path: Path, worlds: dict[int, World]) -> None:
    for name in (".tmp-checkpoint-000007", ".old-checkpoint-000001-step-00000004"):
        (tmp_path / name / "trainer").mkdir(parents=True)
    (tmp_path / ".mine").mkdir()
    path = save_world(tmp_path, worlds[0], keep=1)
    assert sorted(tmp_path.iterdir()) == [tmp_path / ".mine", path]


def test_a_save_that_fails_leaves_nothing_behind(
    tmp_path: Path, worlds: dict[int, World], monkeypatch: pytest.MonkeyPatch
) -> None:
    old = save_world(tmp_path, worlds[0])

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("runtime.checkpoints.group_file.save_file", full)
    with pytest.raises(OSError, match="No space left"):
        save_world(tmp_path, worlds[1])
    assert list(tmp_path.iterdir()) == [old]


@pytest.mark.parametrize("fault", ["is gone", "is a file", "vanishes while it is written to"])
def test_a_folder_that_is_gone_costs_one_checkpoint_at_most(
    tmp_path: Path, worlds: dict[int, World], fault: str
) -> None:
    directory = tmp_path / "checkpoints"
    if fault == "is a file":
        directory.touch()

    def write() -> None:
        with staging(directory) as staged:
            shutil.rmtree(directory)
            write_trainer(1)(staged / TRAINER)

    if fault != "is gone":
        with pytest.raises(FileNotWritten, match="no checkpoint was added, and there is none in it"):
            write()
        directory.unlink(missing_ok=True)
    with staging(directory) as staged:
        assert list(directory.iterdir()) == [staged]
    assert list(directory.iterdir()) == [], "a block that commits nothing leaves nothing"
    assert_is(load(save_world(directory, worlds[1])), worlds[1])


# Torn and foreign


@given(data=st.data())
@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)
def test_damage_of_any_file_is_told_by_name_and_the_one_before_is_the_newest_whole_one(
    data: st.DataObject, pair: Path, worlds: dict[int, World], tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("damaged") / "checkpoints"
    shutil.copytree(pair, directory)
    damaged, older = list_checkpoints(directory)
    file = data.draw(st.sampled_from(sorted(path for path in damaged.rglob("*") if path.is_file())))
    content = bytearray(file.read_bytes())
    match data.draw(st.sampled_from(["cut", "flip", "remove", "grow", "add", "swap"])):
        case "cut":
            file.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
        case "flip":
            content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
            file.write_bytes(content)
        case "remove":
            file.unlink()
        case "grow":
            file.write_bytes(content + b"x")
        case "add":
            (file.parent / "model-00002.safetensors").write_bytes(b"x")
        case "swap":
            other = older / file.relative_to(damaged)
            if other.read_bytes() == content:
                return
            shutil.copy(other, file)
    with pytest.raises(CheckpointTorn) as refused:
        load(damaged)
    assert refused.value.path == damaged
    assert str(damaged) in str(refused.value)
    found, torn = newest_whole(directory)
    assert_is(found, worlds[0])
    assert [(error.path, error.reason) for error in torn] == [(damaged, refused.value.reason)]


@pytest.mark.parametrize("file", ["manifest.json", "control.json", "state.json", "groups.json", "trainer/trainer.json"])
@pytest.mark.parametrize("content", [None, b"", b"{}", b"null", b"[1]", b'{"format": null}', b"\xff\xfe", b"{"])
def test_any_part_that_is_gone_empty_or_nonsense_makes_a_torn_checkpoint(
    tmp_path: Path, worlds: dict[int, World], file: str, content: bytes | None
) -> None:
    """Also where the manifest agrees with it: its parts are not what is written."""
    path = save_world(tmp_path, worlds[1])
    if content is None:
        (path / file).unlink()
    else:
        (path / file).write_bytes(content)
        if file != "manifest.json":
            rewrite_manifest(path)
    with pytest.raises(CheckpointTorn) as torn:
        load(path)
    assert path.name in str(torn.value)


def test_the_newest_whole_one_is_found_behind_torn_ones(tmp_path: Path, worlds: dict[int, World]) -> None:
    paths = [save_world(tmp_path, worlds[step]) for step in (0, 1, 2)]
    for path in paths[1:]:
        (path / "groups.safetensors").unlink()
    found, torn = newest_whole(tmp_path)
    assert_is(found, worlds[0])
    assert [(error.path, error.reason) for error in torn] == [
        (paths[2], "groups.safetensors is missing"), (paths[1], "groups.safetensors is missing"),
    ]  # fmt: skip


def test_a_checkpoint_of_an_evenstep_that_noted_no_origin_has_none(tmp_path: Path, worlds: dict[int, World]) -> None:
    path = save_world(tmp_path, worlds[0])
    state = json.loads((path / "state.json").read_text())
    del state["origin"]
    (path / "state.json").write_text(json.dumps(state))
    rewrite_manifest(path)
    assert load(path).origin is None


def test_a_refusal_crosses_processes(tmp_path: Path) -> None:
    for refused in (CheckpointRefused(tmp_path / "b", "of another format"), CheckpointTorn(tmp_path / "b", "torn")):
        back = pickle.loads(pickle.dumps(refused))
        assert (type(back), back.path, back.reason) == (type(refused), refused.path, refused.reason)
        assert str(back) == str(refused)


def test_a_directory_of_another_format_is_refused_with_both_formats(tmp_path: Path, worlds: dict[int, World]) -> None:
    path = save_world(tmp_path, worlds[0])
    (path / "manifest.json").write_text('{"format": "torchtune 3"}')
    with pytest.raises(
        CheckpointRefused, match="format 'torchtune 3', and this evenstep reads 'evenstep checkpoint 1'"
    ):
        load(path)
    with pytest.raises(CheckpointRefused, match="torchtune 3"):
        newest_whole(tmp_path)
    with pytest.raises(CheckpointRefused, match="no such directory"):
        load(tmp_path / "checkpoint-000009-step-00000009")


# What does not belong together


def test_a_trainer_of_another_version_makes_no_checkpoint(tmp_path: Path, worlds: dict[int, World]) -> None:
    with pytest.raises(ValueError, match="the trainer saved version 2, but the snapshot's version is 1"):
        save_world(tmp_path, worlds[1], version=2)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("change", ["missing", "surplus", "renamed"])
def test_the_groups_must_be_just_those_ready_or_selected(tmp_path: Path, worlds: dict[int, World], change: str) -> None:
    world = worlds[1]
    groups = {prompt: group_of(prompt) for prompt in prompts_with_data(world)}
    first = next(iter(groups))
    if change == "missing":
        del groups[first]
    else:
        groups[999 if change == "surplus" else first] = group_of(999)
    with pytest.raises(ValueError, match=f"{first if change == 'missing' else 999}"):
        save(
            tmp_path,
            step=1,
            control=json.loads(world.snapshot()),
            groups=groups,
            write_trainer=write_trainer(1),
            task_state={},
            random_states={},
            origin=ORIGIN,
            keep=1,
        )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("state", [{"state": (1, 2)}, {"rows": {1: 2}}, {"loss": float("nan")}, {"set": {1}}])
def test_a_state_that_would_come_back_as_another_is_refused(
    tmp_path: Path, worlds: dict[int, World], state: dict[str, Any]
) -> None:
    world = worlds[0]
    with pytest.raises(ValueError, match="JSON"):
        save(
            tmp_path,
            step=0,
            control=json.loads(world.snapshot()),
            groups={prompt: group_of(prompt) for prompt in prompts_with_data(world)},
            write_trainer=write_trainer(0),
            task_state=state,
            random_states={},
            origin=ORIGIN,
            keep=1,
        )


def test_arrays_of_another_type_are_refused_and_not_converted(tmp_path: Path) -> None:
    from dataclasses import replace

    from runtime.checkpoints.group_file import read_groups, write_groups

    group = group_of(3)
    wide = replace(group.rollouts[0], token_ids=group.rollouts[0].token_ids.astype(np.int64))
    with pytest.raises(ValueError, match="int64, where int32 is kept"):
        write_groups(tmp_path, {3: replace(group, rollouts=(wide,))})
    write_groups(tmp_path, {})
    assert read_groups(tmp_path) == {}
