"""Groups through TransferQueue, behind the interface of `runtime.transport.data_plane`.

The controller creates the plane and deletes rows, and must not import the package, which imports torch. So an actor,
the keeper, creates the queue and deletes groups.
"""

import asyncio
from collections.abc import Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayError

from runtime.groups import RolloutGroup, pack, unpack
from runtime.naming import Names, start_actor
from runtime.settings import TransferQueuePlaneConfig
from runtime.transport.answers import Row, RowsNotStored

if TYPE_CHECKING:
    from runtime.transport.transfer_queue.client import Address, QueueClient


class QueueKeeper:
    """An actor that owns the queue: TransferQueue's controller and storage units end with it."""

    def __init__(self, names: Names, config: TransferQueuePlaneConfig) -> None:
        from runtime.transport.transfer_queue.client import QueueClient, start_queue

        self._address, self._actors = start_queue(names, config.num_storage_units)
        self._client = QueueClient("keeper", self._address, config.read_timeout_s)

    def address(self) -> "Address":
        return self._address

    def delete(self, rows: Sequence[str]) -> None:
        self._client.delete(rows)

    def held(self) -> int:
        return self._client.held()


class TransferQueuePlane:
    """The backend. A row is the key of a group. Every process connects when it first puts or gets."""

    def __init__(self, keeper: ActorHandle[Any], read_timeout_s: float) -> None:
        self._keeper = keeper
        self._read_timeout_s = read_timeout_s
        self._client: QueueClient | None = None
        self._connecting = Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle everything except the connection, which belongs to this process."""
        return TransferQueuePlane, (self._keeper, self._read_timeout_s)

    async def put(self, groups: Sequence[RolloutGroup]) -> list[Row]:
        try:
            client = await asyncio.to_thread(self._connected) if self._client is None else self._client
        except (RayError, TimeoutError) as error:
            raise RowsNotStored(f"TransferQueue cannot be reached: {type(error).__name__}: {error}") from error
        keys = [f"{group.prompt}-{uuid4().hex}" for group in groups]  # two attempts of a prompt must not share a key
        try:
            await client.put(keys, [pack(group) for group in groups])
        except Exception as error:  # TransferQueue and ZeroMQ raise many kinds
            raise RowsNotStored(f"TransferQueue took no groups: {type(error).__name__}: {error}") from error
        return [*keys]

    def get(self, rows: Sequence[Row], unneeded: Sequence[Row] = ()) -> list[RolloutGroup | str]:
        if unneeded:
            self.delete(unneeded)
        if not rows:
            return []
        try:
            client = self._connected()
        except (RayError, TimeoutError) as error:
            return [f"TransferQueue cannot be reached: {type(error).__name__}: {error}"] * len(rows)
        return [found if isinstance(found, str) else unpack(found) for found in client.get(rows)]

    def delete(self, rows: Sequence[Row]) -> None:
        self._keeper.delete.remote(list(rows))

    def _connected(self) -> "QueueClient":
        """The connection of this process. Several threads may call this at once."""
        with self._connecting:
            if self._client is None:
                from runtime.transport.transfer_queue.client import QueueClient

                asked: Any = self._keeper.address.remote()
                self._client = QueueClient(f"client-{uuid4().hex[:8]}", ray.get(asked), self._read_timeout_s)
            return self._client


def open_transfer_queue(
    config: TransferQueuePlaneConfig, names: Names
) -> tuple[TransferQueuePlane, list[ActorHandle[Any]]]:
    """The plane, and the keeper. The caller ends the keeper, and the queue with it."""
    keeper = start_actor(QueueKeeper, {**names.options("queue-keeper"), "num_cpus": 0}, names, config)
    return TransferQueuePlane(keeper, config.read_timeout_s), [keeper]
