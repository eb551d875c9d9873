"""How groups travel from the generation workers to the trainer, without passing through the controller.

A worker puts a group and gets a row, which names it. The row goes through the controller to the trainer, which gets the
group. Rows have no group data. A group must outlive its worker, which may die while its groups are ready.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Protocol

import ray
from ray.actor import ActorHandle
from ray.exceptions import ActorUnavailableError, RayError

from runtime.groups import PackedGroup, RolloutGroup, pack, unpack
from runtime.naming import Names, start_actor
from runtime.settings import DataPlaneConfig, TransferQueuePlaneConfig
from runtime.transport.answers import Row, RowsNotStored

PUT_AGAIN_S = 0.5
"""Between two tries to store groups while the store is restarted."""


class DataPlane(Protocol):
    """A backend. It is created once and pickled to every actor."""

    async def put(self, groups: Sequence[RolloutGroup]) -> list[Row]:
        """Generation worker: store groups; returns their rows, in order. Raises RowsNotStored."""

    def get(self, rows: Sequence[Row], unneeded: Sequence[Row] = ()) -> list[RolloutGroup | str]:
        """Trainer: the groups, in order; for an unreadable one, why (S5). They stay until they are deleted.

        Also deletes `unneeded`, which saves a call.
        """

    def delete(self, rows: Sequence[Row]) -> None:
        """Delete groups. Returns at once."""


class GroupStore:
    """An actor that keeps groups until they are deleted. It runs no model and no verifier, which might kill it.

    If it dies, Ray restarts it, empty. A row names the life of the store that it is of, so that a row of an earlier
    life is never taken for another group's.

    Ray sends small groups inside the calls, and large ones through its object store, with one copy a machine. Keeping
    groups here, rather than a reference to each, saves counting references between four processes, which costs more
    than small groups themselves.
    """

    def __init__(self) -> None:
        self._groups: dict[tuple[int, int], PackedGroup] = {}
        self._life = time.time_ns()
        self._next = 0

    def ping(self) -> int:
        """Show that the store answers, and in which of its lives."""
        return self._life

    def put(self, groups: Sequence[PackedGroup]) -> list[tuple[int, int]]:
        first, self._next = self._next, self._next + len(groups)
        rows = [(self._life, number) for number in range(first, self._next)]
        self._groups.update(zip(rows, groups, strict=True))
        return rows

    def get(self, rows: Sequence[tuple[int, int]], unneeded: Sequence[tuple[int, int]]) -> list[PackedGroup | None]:
        """Groups in order; None for an unknown row. Forgets `unneeded`."""
        self.delete(unneeded)
        return [self._groups.get(row) for row in rows]

    def delete(self, rows: Sequence[tuple[int, int]]) -> None:
        for row in rows:
            self._groups.pop(row, None)


class ObjectStorePlane:
    """The backend with a GroupStore and Ray's object store."""

    def __init__(self, store: ActorHandle[Any], read_timeout_s: float) -> None:
        self._store = store
        self._read_timeout_s = read_timeout_s

    async def put(self, groups: Sequence[RolloutGroup]) -> list[Row]:
        packed = [pack(group) for group in groups]
        try:
            async with asyncio.timeout(self._read_timeout_s):
                while True:
                    try:
                        rows: list[Row] = await self._store.put.remote(packed)
                    except ActorUnavailableError:  # it is being restarted
                        await asyncio.sleep(PUT_AGAIN_S)
                    else:
                        return rows
        except TimeoutError:
            late = f"within {self._read_timeout_s:g} s (data_plane.read_timeout_s)"
            raise RowsNotStored(f"the group store took no groups {late}") from None
        except RayError as error:
            raise RowsNotStored(f"the group store took no groups: {type(error).__name__}: {error}") from error

    def get(self, rows: Sequence[Row], unneeded: Sequence[Row] = ()) -> list[RolloutGroup | str]:
        asked: Any = self._store.get.remote(rows, unneeded)
        try:
            found: list[PackedGroup | None] = ray.get(asked, timeout=self._read_timeout_s)
        except RayError as error:
            return [f"the group store does not answer: {type(error).__name__}: {error}"] * len(rows)
        return [
            f"the group store has no row {row}: it was restarted since" if packed is None else unpack(packed)
            for row, packed in zip(rows, found, strict=True)
        ]

    def delete(self, rows: Sequence[Row]) -> None:
        self._store.delete.remote(rows)


def open_data_plane(config: DataPlaneConfig, names: Names) -> tuple[DataPlane, list[ActorHandle[Any]]]:
    """The backend of the `data_plane:` block, and its actors, which the caller ends.

    Raises TransferQueueMissing if it is named and not installed.
    """
    if isinstance(config, TransferQueuePlaneConfig):
        from runtime.transport.transfer_queue.installed import check_transfer_queue_installed
        from runtime.transport.transfer_queue.plane import open_transfer_queue

        check_transfer_queue_installed()
        return open_transfer_queue(config, names)
    store = start_actor(GroupStore, {**names.options("groups"), "num_cpus": 0, "max_restarts": -1})
    return ObjectStorePlane(store, config.read_timeout_s), [store]
