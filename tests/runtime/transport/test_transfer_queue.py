"""The data plane through TransferQueue, on a queue of its own. All but the first need the package (an extra)."""

import asyncio
import pickle
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import ray

from fsm.errors import ConfigError
from runtime.groups import Rollout, RolloutGroup
from runtime.launch.ray_session import ray_session
from runtime.launch.run import check_run
from runtime.naming import Names
from runtime.settings import TransferQueuePlaneConfig, load_settings
from runtime.transport.data_plane import DataPlane, open_data_plane
from runtime.transport.transfer_queue import installed

needs_the_package = pytest.mark.skipif(
    find_spec("transfer_queue") is None, reason="TransferQueue is not installed: pip install -e '.[transfer-queue]'"
)
NAMES = Names("queue-test", "evenstep")


def test_a_run_without_the_package_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(installed, "find_spec", lambda name: None)
    settings = load_settings(None, ["data_plane.name=transfer_queue"])
    with pytest.raises(ConfigError, match=r"-e '\.\[train,transfer-queue\]'; or set data_plane\.name"):
        check_run(settings, tmp_path, resume=False)


@pytest.fixture(scope="module")
def plane() -> Iterator[DataPlane]:
    """One queue for all tests, since it takes many seconds to start; each deletes what it has put."""
    with ray_session(load_settings(None)):
        made, actors = open_data_plane(TransferQueuePlaneConfig(read_timeout_s=5.0, num_storage_units=2), NAMES)
        yield made
        for actor in actors:
            ray.kill(actor)
        assert eventually(lambda: not running()), "the queue ends with its keeper"


def running() -> list[str]:
    return [actor["name"] for actor in ray.util.list_named_actors(True) if actor["name"].startswith(NAMES.run)]


def group(prompt: int) -> RolloutGroup:
    def rollout(sibling: int) -> Rollout:
        length = 3 + prompt + 2 * sibling
        return Rollout(
            token_ids=np.arange(length, dtype=np.int32) + prompt,
            loss_mask=np.arange(length) > 1,
            logprobs=-np.arange(length, dtype=np.float32),
            reward=0.1 * sibling,
            finished=sibling % 2 == 0,
        )

    return RolloutGroup(prompt, tuple(rollout(sibling) for sibling in range(3)), start_weight=4, end_weight=5)


def same(one: RolloutGroup | str, other: RolloutGroup) -> bool:
    if isinstance(one, str) or (one.prompt, one.start_weight, one.end_weight) != (other.prompt, 4, 5):
        return False
    return all(
        (mine.reward, mine.finished) == (theirs.reward, theirs.finished)
        and all(
            getattr(mine, name).dtype == getattr(theirs, name).dtype
            and np.array_equal(getattr(mine, name), getattr(theirs, name))
            for name in ("token_ids", "loss_mask", "logprobs")
        )
        for mine, theirs in zip(one.rollouts, other.rollouts, strict=True)
    )


def put(plane: DataPlane, *batches: list[RolloutGroup]) -> list[str]:
    """Batches at the same time, as several submissions of a worker are."""

    async def all_at_once() -> list[list[str]]:
        return await asyncio.gather(*(plane.put(batch) for batch in batches))

    return [row for rows in asyncio.run(all_at_once()) for row in rows]


def eventually(true: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 20
    while not true() and time.monotonic() < deadline:
        time.sleep(0.05)
    return true()


def eventually_held(number: int) -> bool:
    keeper = ray.get_actor(f"{NAMES.run}-queue-keeper", namespace=NAMES.namespace)
    return eventually(lambda: ray.get(keeper.held.remote()) == number)


@needs_the_package
def test_groups_come_back_as_they_were_in_any_order_and_in_any_process(plane: DataPlane) -> None:
    groups = [group(prompt) for prompt in range(5)]
    rows = put(plane, groups[:1], groups[1:4], groups[4:])
    assert len(set(rows)) == 5
    order = [3, 0, 4, 2, 1]
    for reader in (plane, pickle.loads(pickle.dumps(plane))):
        found = reader.get([rows[index] for index in order])
        assert all(same(one, groups[index]) for one, index in zip(found, order, strict=True))
        assert not any(rollout.token_ids.flags.writeable for one in found for rollout in one.rollouts)
    assert plane.get([]) == []
    plane.delete(rows)
    assert eventually_held(0)


@needs_the_package
def test_what_was_deleted_or_never_was_is_unreadable_and_the_rest_is_not(plane: DataPlane) -> None:
    rows = put(plane, [group(prompt) for prompt in range(3)])
    plane.delete([rows[1]])
    assert eventually_held(2)
    first, deleted, unknown, last = plane.get([rows[0], rows[1], "unknown", rows[2]])
    assert same(first, group(0))
    assert same(last, group(2))
    assert isinstance(deleted, str)
    assert rows[1] in deleted
    assert isinstance(unknown, str)
    assert "has 0 of 1 keys" in unknown
    plane.delete([*rows, "unknown"])
    assert eventually_held(0)


@needs_the_package
def test_what_a_dead_storage_unit_held_is_unreadable_in_time_and_the_rest_is_not(plane: DataPlane) -> None:
    groups = [group(prompt) for prompt in range(4)]
    rows = put(plane, groups)
    ray.kill(ray.get_actor(f"{NAMES.run}-queue-storage-1", namespace=NAMES.namespace))
    for _ in range(100):  # the process ends a little later
        began = time.monotonic()
        found = plane.get(rows)
        if any(isinstance(one, str) for one in found):
            break
        time.sleep(0.05)
    assert time.monotonic() - began < 15, "the limit is 5 s, once for all, once for each at the same time"
    lost = [one for one in found if isinstance(one, str)]
    assert len(lost) == 2
    assert all("TransferQueue did not answer within 5 s" in reason for reason in lost)
    assert all(same(one, groups[index]) for index, one in enumerate(found) if not isinstance(one, str))
