"""A group store that dies: what it held is lost, and never taken for something else."""

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError

from runtime.groups import Rollout, RolloutGroup
from runtime.transport.answers import RowsNotStored
from runtime.transport.data_plane import GroupStore, ObjectStorePlane
from tests.runtime.control.virtual_time import run_virtually


def group(prompt: int) -> RolloutGroup:
    tokens, mask = np.array([prompt, 1], dtype=np.int32), np.array([False, True])
    rollout = Rollout(tokens, mask, np.zeros(2, dtype=np.float32), 1.0, True)
    return RolloutGroup(prompt=prompt, rollouts=(rollout,), start_weight=0, end_weight=0)


class Handle:
    """A handle of the store, whose calls may fail as Ray has them fail."""

    def __init__(self, failing: Callable[[], Exception | None]) -> None:
        self.store = GroupStore()
        self.put = self
        self._failing = failing

    async def _put(self, groups: Any) -> Any:
        error = self._failing()
        if error is None:
            return self.store.put(groups)
        if isinstance(error, TimeoutError):
            await asyncio.get_running_loop().create_future()
        raise error

    def remote(self, groups: Any) -> Any:
        return self._put(groups)


def test_a_row_of_a_store_that_was_restarted_is_lost_and_is_no_other_group_s() -> None:
    rows: list[Any] = GroupStore().put(["a", "b"])  # type: ignore[list-item]
    restarted = GroupStore()
    new: list[Any] = restarted.put(["c", "d"])  # type: ignore[list-item]
    assert restarted.get([*rows, *new], rows) == [None, None, "c", "d"]


def test_groups_that_are_stored_while_the_store_restarts_are_in_the_new_one() -> None:
    failures: list[Exception | None] = [ActorUnavailableError("restarting", None), None]

    async def scenario() -> tuple[Handle, list[Any]]:
        handle = Handle(lambda: failures.pop(0))
        return handle, await ObjectStorePlane(handle, 60.0).put([group(7)])  # type: ignore[arg-type]

    handle, rows = run_virtually(scenario())
    (found,) = handle.store.get(rows, [])
    assert found is not None
    assert found.prompt == 7


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (ActorUnavailableError("restarting", None), r"within 60 s \(data_plane.read_timeout_s\)"),
        (TimeoutError(), r"within 60 s \(data_plane.read_timeout_s\)"),
        (ActorDiedError(), "took no groups: ActorDiedError"),
    ],
    ids=["restarts for ever", "frozen", "gone"],
)
def test_a_store_that_takes_nothing_is_an_infra_failure_of_the_attempt(error: Exception, says: str) -> None:
    async def scenario() -> None:
        await ObjectStorePlane(Handle(lambda: error), 60.0).put([group(7)])  # type: ignore[arg-type]

    with pytest.raises(RowsNotStored, match=says):
        run_virtually(scenario())
