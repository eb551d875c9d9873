"""The trainer's side of the broadcast.

A thread of the first trainer rank: a worker that is made anew needs the current weights at once, in the middle of a
step if need be, while the rank itself computes. It sends from a copy, so that the model may move on meanwhile.

Consumes: letters of the generation workers, from the trainer's queue in the store.
Waits for: a letter; once a worker waits, at most `join_timeout_s` for the rest.
Unblocked by: the last worker that has to be there; those that have the newest version need not.
Produces: rounds. In each, the workers that wait get the newest version.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from threading import Lock, Thread

import numpy as np
import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch's own omission

from runtime.settings import CollectiveSyncConfig
from runtime.transport.collective.bundle import Bytes, Manifest, copy_in, manifest_of
from runtime.transport.collective.group import PostBox, ProcessGroup, open_store
from runtime.transport.collective.meeting import (
    MANIFEST,
    TRAINER_QUEUE,
    Backend,
    Got,
    Invite,
    Join,
    Letter,
    MeetingPoint,
    Refuse,
    Stop,
    TransferFailed,
    WeightSyncFailed,
    queue_of,
    write,
)
from runtime.transport.publication import Publication, Weights

_IDLE_S = 20 * 86400.0
"""How long one wait for a letter lasts when nobody waits for weights; torch counts milliseconds in 32 bits."""
_BROKEN_ROUNDS = 3
"""How many in a row may break off for no known reason."""


class CollectiveSender:
    """Sends to the workers in `seats`, each of which may be made anew at any time."""

    def __init__(self, seats: Sequence[str], config: CollectiveSyncConfig, backend: Backend, host: str) -> None:
        """`host` is the address of this machine, where store and gloo listen. Nothing is opened yet."""
        self._seats = tuple(seats)
        self._config = config
        self._backend = backend
        self._host = host
        self._store: TCPStore | None = None
        self._thread: Thread | None = None
        self._failure: Exception | None = None
        """What ended the thread."""

        self._sending = Lock()
        """Held during a round, and while the copy is replaced."""
        self._manifest: Manifest
        self._buffer: Bytes
        self._version = -1
        self._served: set[str] = set()
        """Seats whose worker has had the version."""

        # The thread's own.
        self._waiting: dict[str, str] = {}
        """Workers that have joined the next round: seat and life."""
        self._group: ProcessGroup | None = None
        self._group_lives: tuple[str, ...] = ()
        self._groups = 0
        self._rounds = 0
        self._broken: list[str] = []
        """What went wrong in the last rounds, one after the other, that broke off for no known reason."""
        self._stopping = False

    def publish(self, weights: Weights, version: int) -> Publication:
        """See WeightPublisher. Waits for a round of the version before, where one is under way.

        Raises what ended the thread, where it has ended.
        """
        if self._store is None:
            self._store = open_store(self._host)
            self._manifest = manifest_of(weights)
            self._buffer = np.zeros(self._manifest.size, dtype=np.uint8)
            self._store.set(MANIFEST, self._manifest.as_json())
        place = MeetingPoint(self._host, self._store.port)
        with self._sending:
            if self._failure is not None:
                raise WeightSyncFailed(f"weights cannot be sent any more: {self._failure}") from self._failure
            copy_in(weights, self._manifest, self._buffer)
            self._version = version
            self._served.clear()
        if self._thread is None:
            self._thread = Thread(target=self._run, args=(place,), name="weight broadcast", daemon=True)
            self._thread.start()
        return Publication(version, place)

    def close(self) -> None:
        """End the thread and leave the group. A process that ends anyway need not call this."""
        if self._thread is not None and self._store is not None:
            self._store.queue_push(TRAINER_QUEUE, write(Stop()))
            self._thread.join()

    def _run(self, place: MeetingPoint) -> None:
        box = PostBox(place, self._config.transfer_timeout_s)
        try:
            self._serve(box)
        except Exception as error:
            self._failure = error
            self._refuse(box, f"the trainer cannot send weights any more: {type(error).__name__}: {error}")
            raise
        finally:
            self._drop_group()

    def _serve(self, box: PostBox) -> None:
        """Until Stop."""
        deadline_s: float | None = None
        """When those who wait have waited long enough for the rest."""
        while not self._stopping:
            left_s = _IDLE_S if deadline_s is None else max(0.0, deadline_s - time.monotonic())
            self._note(box.take(TRAINER_QUEUE, left_s))
            while self._waiting and not self._missing:
                if len(self._broken) == _BROKEN_ROUNDS:
                    self._refuse(box, self._what_broke())
                    self._broken = []
                    break
                with self._sending:
                    self._round(box)
                deadline_s = None
            if not self._waiting:
                deadline_s = None
            elif deadline_s is None:
                deadline_s = time.monotonic() + self._config.join_timeout_s
            elif time.monotonic() >= deadline_s:
                self._refuse(box, self._who_did_not_join())

    @property
    def _missing(self) -> list[str]:
        """Seats whose worker neither has the version nor waits for it."""
        return [seat for seat in self._seats if seat not in self._served and seat not in self._waiting]

    def _note(self, letter: Letter | None) -> None:
        """A worker that joins takes its seat's place, whoever waited in it before: that one is dead."""
        if isinstance(letter, Join):
            self._waiting[letter.seat] = letter.life
        elif isinstance(letter, Stop):
            self._stopping = True

    def _round(self, box: PostBox) -> None:
        """Send the version to all who wait. Whoever does not confirm it has to join again."""
        lives = {seat: self._waiting[seat] for seat in self._seats if seat in self._waiting}
        self._waiting = {}
        self._rounds += 1
        if self._group_lives != tuple(lives.values()):
            self._drop_group()
            self._groups += 1
        members = ("trainer", *lives)
        for rank, life in enumerate(lives.values(), start=1):
            box.send(queue_of(life), Invite(self._rounds, self._version, self._groups, rank, members))
        errors: list[str] = []
        try:
            self._broadcast(box, members, lives)
        except RuntimeError as error:  # gloo and NCCL raise nothing more exact where a peer is gone
            errors.append(f"trainer: {type(error).__name__}: {error}")
            self._drop_group()  # the others, who may still wait for bytes, learn of it at once
        served, made_anew = self._hear(box, lives, errors)
        self._served |= served
        if served == lives.keys():
            self._broken = []
            return
        self._drop_group()
        if made_anew:
            return  # which is why the round broke off
        self._broken.append(f"round {self._rounds} with {', '.join(lives)}: {'; '.join(errors) or 'no word of it'}")

    def _broadcast(self, box: PostBox, members: Sequence[str], lives: Mapping[str, str]) -> None:
        if self._group is None:
            self._group = ProcessGroup(
                box.store,
                self._groups,
                0,
                members,
                backend=self._backend,
                host=self._host,
                timeout_s=self._config.transfer_timeout_s,
            )
            self._group_lives = tuple(lives.values())
        self._group.broadcast(torch.from_numpy(self._buffer))

    def _hear(self, box: PostBox, lives: Mapping[str, str], errors: list[str]) -> tuple[set[str], set[str]]:
        """The seats that have received the round, and those whose worker was made anew meanwhile.

        Waits until every member is heard of, or out of time; what failed for whom goes into `errors`.
        """
        seat_of = {life: seat for seat, life in lives.items()}
        served: set[str] = set()
        failed: set[str] = set()
        made_anew: set[str] = set()
        deadline_s = time.monotonic() + self._config.transfer_timeout_s
        while served | failed | made_anew != lives.keys() and (left_s := deadline_s - time.monotonic()) > 0:
            letter = box.take(TRAINER_QUEUE, left_s)
            self._note(letter)
            match letter:
                case Got(life, number) if number == self._rounds:
                    served.add(seat_of[life])
                case TransferFailed(life, number, error) if number == self._rounds:
                    failed.add(seat_of[life])
                    errors.append(f"{seat_of[life]}: {error}")
                case Join(seat, life) if seat in lives and life != lives[seat] and seat not in served:
                    made_anew.add(seat)
        return served, made_anew

    def _who_did_not_join(self) -> str:
        return (
            f"weight version {self._version}: {', '.join(self._missing)} did not join the broadcast within "
            f"{self._config.join_timeout_s:g} s (weight_sync.join_timeout_s); {', '.join(self._waiting)} did. A worker "
            "that is still starting needs a longer time; see its log for one that is stuck"
        )

    def _what_broke(self) -> str:
        return (
            f"weight version {self._version} could not be sent in {_BROKEN_ROUNDS} rounds, and no worker had died: "
            f"{' | '.join(self._broken)}. Where the network is slow, raise weight_sync.transfer_timeout_s; "
            "weight_sync.name: object_store does without a group"
        )

    def _refuse(self, box: PostBox, error: str) -> None:
        """Tell all who wait why they wait in vain."""
        for life in self._waiting.values():
            box.send(queue_of(life), Refuse(error))
        self._waiting = {}

    def _drop_group(self) -> None:
        if self._group is not None:
            self._group.close()
            self._group = None
            self._group_lives = ()
