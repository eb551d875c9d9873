"""The store where processes meet, and the process group of one set of workers, the trainer first.

A group is created by its class, not by `init_process_group`: FSDP has the default group of a trainer rank, and a group
must be closed alone when one of its workers dies.
"""

import socket
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]  # torch's own omission

from runtime.transport.collective.meeting import Backend, Letter, MeetingPoint, WeightSyncFailed, read, write

_PIECE_BYTES = 256 * 2**20
"""Bytes sent at a time, and GPU memory needed for it."""


def open_store(host: str) -> TCPStore:
    """A store that listens on this address only, on a free port. It lives as long as the object."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as listening:
        port = listening.getsockname()[1]
        return TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach())


def visited(place: MeetingPoint, timeout_s: float = 300.0) -> TCPStore:
    """The store that another process opened."""
    timeout = timedelta(seconds=timeout_s)
    return TCPStore(place.host, place.port, is_master=False, wait_for_workers=False, timeout=timeout)


class PostBox:
    """One process's connection to the store, for one thread: a connection waits for one answer at a time."""

    def __init__(self, place: MeetingPoint, timeout_s: float) -> None:
        try:
            self.store = visited(place, timeout_s)
        except dist.DistError as error:
            raise WeightSyncFailed(
                f"the trainer's store at {place.host}:{place.port} cannot be reached within {timeout_s:g} s: {error}"
            ) from error

    def send(self, queue: str, letter: Letter) -> None:
        self.store.queue_push(queue, write(letter))

    def take(self, queue: str, timeout_s: float) -> Letter | None:
        """The next letter of a queue; None if none arrives in time."""
        self.store.set_timeout(timedelta(seconds=timeout_s))
        try:
            return read(self.store.queue_pop(queue))
        except dist.DistStoreError:
            return None


class Link(NamedTuple):
    """How a process connects."""

    backend: Backend
    host: str
    """This machine's address, where gloo listens."""
    timeout_s: float
    """For connecting, and for one broadcast."""


class ProcessGroup:
    """Connected processes, of which rank 0 sends."""

    def __init__(self, store: Store, number: int, rank: int, members: Sequence[str], link: Link) -> None:
        """Connect. Every member must do so within the timeout.

        All members first wait for each other in the store. So WeightSyncFailed names a member that died after it
        joined, for which the backends would only hang (NCCL without a timeout).
        """
        self._rank = rank
        self._backend = link.backend
        self._timeout = timedelta(seconds=link.timeout_s)
        meeting = PrefixStore(f"group/{number}", store)
        keys = [f"here/{place}" for place in range(len(members))]
        meeting.set(keys[rank], "")
        try:
            meeting.wait(keys, self._timeout)
        except dist.DistStoreError as error:
            absent = [member for member, key in zip(members, keys, strict=True) if not meeting.check([key])]
            raise WeightSyncFailed(
                f"{', '.join(absent) or 'a member'} joined and did not connect to "
                f"{', '.join(members)} within {link.timeout_s:g} s (weight_sync.transfer_timeout_s)"
            ) from error
        self._processes = _processes(meeting, rank, len(members), link, self._timeout)

    def broadcast(self, buffer: Tensor) -> None:
        """Send the bytes, or receive them. Raises RuntimeError if a member is lost or the timeout expires."""
        for piece in torch.split(buffer, _PIECE_BYTES):
            if self._backend == "nccl":
                on_gpu = piece.cuda() if self._rank == 0 else torch.empty_like(piece, device="cuda")
                self._processes.broadcast(on_gpu, 0).wait(self._timeout)
                if self._rank > 0:
                    piece.copy_(on_gpu)
            else:
                self._processes.broadcast(piece, 0).wait(self._timeout)

    def close(self) -> None:
        if self._backend == "nccl":
            self._processes.abort()  # shutdown would wait for the others
        else:
            self._processes.shutdown()


def _processes(store: Store, rank: int, size: int, link: Link, timeout: timedelta) -> Any:
    """torch's group. Any: torch's stubs lack the collectives and gloo's options."""
    if link.backend == "nccl":
        if not dist.is_nccl_available():
            raise WeightSyncFailed(
                "this build of torch has no NCCL: install one for CUDA, or set weight_sync.backend: gloo"
            )
        nccl = dist.ProcessGroupNCCL.Options()
        nccl._timeout = 2 * timeout  # torch's watchdog ends the process; waiting calls must raise before that
        return dist.ProcessGroupNCCL(store, rank, size, nccl)
    kind: Any = dist.ProcessGroupGloo
    gloo = kind._Options()
    # Without an address, gloo would look up the machine's name, which may not resolve.
    gloo._devices = [kind.create_device(hostname=link.host)]
    gloo._timeout = timeout
    return kind(store, rank, size, gloo)
