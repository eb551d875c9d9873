"""A process's connection to the queue of a run.

The client uses TransferQueue's classes and not its `init`, which keeps one queue a Ray cluster under a fixed name and
joins an existing one. Here each run has its own queue, which ends with it.

TransferQueue waits for ever for a controller that does not answer, and up to ten minutes for a storage unit. So every
request has a timeout here, and its own event loop in a thread, where it can be given up while the caller's loop is
busy.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Thread
from typing import Any, TypeVar

import numpy as np
import ray
import torch
from ray.actor import ActorHandle
from tensordict import TensorDict
from transfer_queue.client import AsyncTransferQueueClient
from transfer_queue.controller import TransferQueueController
from transfer_queue.storage import SimpleStorageUnit
from transfer_queue.utils.common import get_node_round_robin_scheduling_strategies
from transfer_queue.utils.zmq_utils import ZMQServerInfo

from runtime.groups import PackedGroup
from runtime.naming import Names

T = TypeVar("T")

_PARTITION = "groups"
"""The one partition that a run uses: keys are unique without partitions."""

_ARRAYS = ("token_ids", "loss_mask", "logprobs")
_FIELDS = ("header", "rewards", "finished", "offsets", *_ARRAYS)


@dataclass(frozen=True, slots=True)
class Address:
    """The addresses of a queue's parts."""

    controller: ZMQServerInfo
    storage_units: dict[str, ZMQServerInfo]


def start_queue(names: Names, num_storage_units: int) -> tuple[Address, list[ActorHandle[Any]]]:
    """Start TransferQueue's controller and its storage units, which end with the process that calls this.

    The units are spread over the nodes of the cluster, and take none of Ray's CPUs, since they only copy bytes.
    """
    controller = TransferQueueController.options(**names.options("queue"), num_cpus=0).remote()
    units = {}
    for number, node in enumerate(get_node_round_robin_scheduling_strategies(num_storage_units)):
        name = f"queue-storage-{number}"
        units[name] = SimpleStorageUnit.options(**names.options(name), num_cpus=0, scheduling_strategy=node).remote(
            config={"num_data_storage_units": num_storage_units}
        )
    addresses = ray.get([actor.get_zmq_server_info.remote() for actor in (controller, *units.values())])
    return Address(addresses[0], dict(zip(units, addresses[1:], strict=True))), [controller, *units.values()]


class QueueClient:
    """Puts, gets and deletes groups by key."""

    def __init__(self, name: str, address: Address, timeout_s: float) -> None:
        """Connect. `timeout_s` limits every request."""
        self._timeout_s = timeout_s
        self._client = AsyncTransferQueueClient(name, address.controller, zmq_io_threads=1)
        self._client.initialize_storage_manager("SimpleStorage", {"zmq_info": address.storage_units})
        self._loop = asyncio.new_event_loop()
        Thread(target=self._loop.run_forever, name="transfer queue", daemon=True).start()

    async def put(self, keys: Sequence[str], groups: Sequence[PackedGroup]) -> None:
        """Store groups under new keys. Raises TransferQueue's errors, or TimeoutError."""
        await asyncio.wrap_future(self._submit(self._limited(self._put(keys, groups))))

    def get(self, keys: Sequence[str]) -> list[PackedGroup | str]:
        """The groups, in order; for an unreadable one, why.

        One request reads all. If it fails, one request each finds the unreadable groups, so this takes at most two
        timeouts.
        """
        together = self._submit(self._get(keys)).result()
        if not isinstance(together, str):
            return [*together]
        if len(keys) == 1:
            return [together]
        alone = [self._submit(self._get([key])) for key in keys]
        return [found if isinstance(found, str) else found[0] for found in (each.result() for each in alone)]

    def delete(self, keys: Sequence[str]) -> None:
        """Delete groups, ignoring unknown keys. Raises TransferQueue's errors."""
        self._submit(self._limited(self._delete(keys))).result()

    def held(self) -> int:
        partitions = self._submit(self._limited(self._client.async_kv_list(_PARTITION))).result()
        return len(partitions.get(_PARTITION, {}))

    def _submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _limited(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await work
        except TimeoutError:
            raise TimeoutError(
                f"TransferQueue did not answer within {self._timeout_s:g} s (data_plane.read_timeout_s)"
            ) from None

    async def _put(self, keys: Sequence[str], groups: Sequence[PackedGroup]) -> None:
        metadata = await self._client.async_kv_retrieve_meta(list(keys), _PARTITION, create=True)
        await self._client.async_put(_fields(groups), metadata)

    async def _get(self, keys: Sequence[str]) -> list[PackedGroup] | str:
        """All groups, or why not: TransferQueue and ZeroMQ raise many kinds of errors for unreadable data."""
        try:
            return await self._limited(self._read(keys))
        except Exception as error:
            asked = f"key {keys[0]}" if len(keys) == 1 else f"{len(keys)} keys"
            return f"TransferQueue cannot give {asked}: {type(error).__name__}: {error}"

    async def _read(self, keys: Sequence[str]) -> list[PackedGroup]:
        metadata = await self._client.async_kv_retrieve_meta(list(keys), _PARTITION)
        if metadata.size < len(keys):
            raise LookupError(f"it has {metadata.size} of {len(keys)} keys")
        absent = set(_FIELDS) - set(metadata.field_names)
        if absent:
            raise LookupError(f"their {', '.join(sorted(absent))} never arrived")
        return _groups(await self._client.async_get_data(metadata))

    async def _delete(self, keys: Sequence[str]) -> None:
        metadata = await self._client.async_kv_retrieve_meta(list(keys), _PARTITION)
        if metadata.size:
            await self._client.async_clear_samples(metadata)


def _fields(groups: Sequence[PackedGroup]) -> TensorDict:
    """Groups as a batch of samples, with a nested tensor per field, since groups differ in length."""
    samples = [
        {
            "header": np.array([group.prompt, group.start_weight, group.end_weight], dtype=np.int64),
            "rewards": np.array(group.rewards, dtype=np.float64),
            "finished": np.array(group.finished, dtype=np.bool_),
            "offsets": np.array(group.offsets, dtype=np.int64),
            **{name: getattr(group, name) for name in _ARRAYS},
        }
        for group in groups
    ]
    columns = {name: [torch.from_numpy(sample[name]) for sample in samples] for name in _FIELDS}
    nested = {name: torch.nested.as_nested_tensor(column, layout=torch.jagged) for name, column in columns.items()}
    return TensorDict(nested, batch_size=len(groups))


def _groups(fields: TensorDict) -> list[PackedGroup]:
    """The groups of a batch of samples. Their arrays are read-only views of the received memory."""
    columns = [[_array(sample) for sample in fields[name].unbind()] for name in _FIELDS]
    groups = []
    for header, rewards, finished, offsets, *arrays in zip(*columns, strict=True):
        small = (tuple(values.tolist()) for values in (rewards, finished, offsets))
        groups.append(PackedGroup(*header.tolist(), *small, *arrays))
    return groups


def _array(tensor: torch.Tensor) -> Any:
    array = tensor.numpy()
    array.flags.writeable = False
    return array
