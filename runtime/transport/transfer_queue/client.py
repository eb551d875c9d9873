"""A process's connection to the queue of a run.

The client is made of TransferQueue's classes and not by its `init`: that keeps one queue a Ray cluster, under a fixed
name, and joins it where there is one already, whereas each run here has a queue of its own that ends with it.

TransferQueue waits without any limit for a controller that does not answer, and up to ten minutes for a storage unit.
Hence a limit of ours around every request, and an event loop of its own in a thread, so that a request can be given up
whatever the caller's loop is doing.
"""

from __future__ import annotations

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

from runtime.naming import Names
from runtime.transport.packing import PackedGroup

T = TypeVar("T")

_PARTITION = "groups"
"""Of TransferQueue's partitions a run uses one: keys are unique without them."""

_FIELDS = ("header", "rewards", "finished", "offsets", "token_ids", "loss_mask", "logprobs")


@dataclass(frozen=True, slots=True)
class Address:
    """Where the parts of a queue listen."""

    controller: ZMQServerInfo
    storage_units: dict[str, ZMQServerInfo]


def start_queue(names: Names, num_storage_units: int) -> tuple[Address, list[ActorHandle[Any]]]:
    """TransferQueue's controller and its storage units, which end with the process that calls this.

    The units are spread over the nodes of the cluster, and take no CPU of Ray's: they copy bytes.
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
        """Connect. `timeout_s` is the limit of every request."""
        self._timeout_s = timeout_s
        self._client = AsyncTransferQueueClient(name, address.controller, zmq_io_threads=1)
        self._client.initialize_storage_manager("SimpleStorage", {"zmq_info": address.storage_units})
        self._loop = asyncio.new_event_loop()
        Thread(target=self._loop.run_forever, name="transfer queue", daemon=True).start()

    async def put(self, keys: Sequence[str], groups: Sequence[PackedGroup]) -> None:
        """Keep groups under new keys. Raises what TransferQueue raises, or TimeoutError."""
        await asyncio.wrap_future(self._submit(self._limited(self._put(keys, groups))))

    def get(self, keys: Sequence[str]) -> list[PackedGroup | str]:
        """The groups, in order; for one that cannot be read, why.

        All in one request, as long as all can be read; where one cannot, each by itself, to tell which. So this takes
        two limits at most.
        """
        together = self._submit(self._get(keys)).result()
        if not isinstance(together, str):
            return [*together]
        if len(keys) == 1:
            return [together]
        alone = self._submit(self._get_each(keys)).result()
        return [found if isinstance(found, str) else found[0] for found in alone]

    def delete(self, keys: Sequence[str]) -> None:
        """Forget groups; keys that are not there are passed over. Raises what TransferQueue raises."""
        self._submit(self._limited(self._delete(keys))).result()

    def held(self) -> int:
        """How many groups the queue keeps."""
        partitions = self._submit(self._limited(self._client.async_kv_list(_PARTITION))).result()
        return len(partitions.get(_PARTITION, {}))

    def _submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start it on the client's own loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _limited(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await work
        except TimeoutError:
            raise TimeoutError(
                f"TransferQueue does not answer within {self._timeout_s:g} s (data_plane.read_timeout_s)"
            ) from None

    async def _put(self, keys: Sequence[str], groups: Sequence[PackedGroup]) -> None:
        metadata = await self._client.async_kv_retrieve_meta(list(keys), _PARTITION, create=True)
        await self._client.async_put(_fields(groups), metadata)

    async def _get(self, keys: Sequence[str]) -> list[PackedGroup] | str:
        """All of them, or why not: TransferQueue and ZeroMQ raise all kinds of errors for data that cannot be had."""
        try:
            return await self._limited(self._read(keys))
        except Exception as error:
            return f"TransferQueue cannot give {_some(keys)}: {type(error).__name__}: {error}"

    async def _get_each(self, keys: Sequence[str]) -> list[list[PackedGroup] | str]:
        return await asyncio.gather(*(self._get([key]) for key in keys))

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
    """Groups as a batch of samples: per field a nested tensor, since groups differ in length."""
    samples = [
        {
            "header": np.array([group.prompt, group.start_weight, group.end_weight], dtype=np.int64),
            "rewards": np.array(group.rewards, dtype=np.float64),
            "finished": np.array(group.finished, dtype=np.bool_),
            "offsets": np.array(group.offsets, dtype=np.int64),
            "token_ids": group.token_ids,
            "loss_mask": group.loss_mask,
            "logprobs": group.logprobs,
        }
        for group in groups
    ]
    return TensorDict(
        {
            name: torch.nested.as_nested_tensor(
                [torch.from_numpy(sample[name]) for sample in samples], layout=torch.jagged
            )
            for name in _FIELDS
        },
        batch_size=len(groups),
    )


def _groups(fields: TensorDict) -> list[PackedGroup]:
    """The groups out of a batch of samples; the arrays are read-only, over the memory that they came in."""
    columns = {name: [_array(sample) for sample in fields[name].unbind()] for name in _FIELDS}
    groups = []
    for sample in range(len(fields)):
        arrays = {name: column[sample] for name, column in columns.items()}
        prompt, start_weight, end_weight = arrays["header"].tolist()
        groups.append(
            PackedGroup(
                prompt=prompt,
                start_weight=start_weight,
                end_weight=end_weight,
                rewards=tuple(arrays["rewards"].tolist()),
                finished=tuple(arrays["finished"].tolist()),
                offsets=tuple(arrays["offsets"].tolist()),
                token_ids=arrays["token_ids"],
                loss_mask=arrays["loss_mask"],
                logprobs=arrays["logprobs"],
            )
        )
    return groups


def _array(tensor: torch.Tensor) -> Any:
    """Any: one of the field's own type."""
    array = tensor.numpy()
    array.flags.writeable = False
    return array


def _some(keys: Sequence[str]) -> str:
    return f"key {keys[0]}" if len(keys) == 1 else f"{len(keys)} keys"
