"""The trainer's side of the broadcast.

It is a thread of the first trainer rank, because a restarted worker needs the current weights at once, even while the
rank computes a step. It sends from a copy, so that the model may change meanwhile.

Consumes: letters of the generation workers, from the trainer's queue in the store.
Waits for: a letter; once a worker waits, at most `join_timeout_s` for the others.
Unblocked by: the last worker that lacks the newest version.
Produces: rounds, in each of which the waiting workers get the newest version.
"""

import time
from collections.abc import Mapping, Sequence
from threading import Lock, Thread

import numpy as np
import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch's own omission

from runtime.generation.engine import Weights
from runtime.settings import CollectiveSyncConfig
from runtime.transport.answers import Publication
from runtime.transport.collective import meeting
from runtime.transport.collective.bundle import Bytes, Manifest, copy_in, manifest_of
from runtime.transport.collective.group import Link, PostBox, ProcessGroup, open_store

_IDLE_S = 20 * 86400.0
"""How long one wait for a letter lasts while no worker waits; torch counts milliseconds in 32 bits."""
_BROKEN_ROUNDS = 3
"""How many rounds in a row may fail for an unknown reason."""


class CollectiveSender:
    """Sends to the workers in `seats`, each of which may be restarted at any time."""

    def __init__(self, seats: Sequence[str], config: CollectiveSyncConfig, backend: meeting.Backend, host: str) -> None:
        """`host` is this machine's address, where store and gloo listen. Opens nothing yet."""
        self._seats = tuple(seats)
        self._config = config
        self._link = Link(backend, host, config.transfer_timeout_s)
        self._store: TCPStore | None = None
        self._thread: Thread | None = None
        self._failure: Exception | None = None

        self._sending = Lock()
        """Held during a round, and while the copy is replaced."""
        self._manifest: Manifest
        self._buffer: Bytes
        self._version = -1
        self._served: set[str] = set()
        """Seats whose worker has the version."""

        # Only the thread uses these.
        self._waiting: dict[str, str] = {}
        """Workers that joined the next round: seat and life."""
        self._group: ProcessGroup | None = None
        self._group_lives: tuple[str, ...] = ()
        self._groups = 0
        self._rounds = 0
        self._broken: list[str] = []
        """Errors of the last consecutive rounds that failed for an unknown reason."""
        self._stopping = False

    def publish(self, weights: Weights, version: int) -> Publication:
        """Copy the weights, after a round in progress, and offer them to the workers.

        Raises WeightSyncFailed if the thread has ended.
        """
        if self._store is None:
            self._store = open_store(self._link.host)
            self._manifest = manifest_of(weights)
            self._buffer = np.zeros(self._manifest.size, dtype=np.uint8)
            self._store.set(meeting.MANIFEST, self._manifest.as_json())
        place = meeting.MeetingPoint(self._link.host, self._store.port)
        with self._sending:
            if self._failure is not None:
                raise meeting.WeightSyncFailed(f"weights cannot be sent any more: {self._failure}") from self._failure
            copy_in(weights, self._manifest, self._buffer)
            self._version = version
            self._served.clear()
        if self._thread is None:
            self._thread = Thread(target=self._run, args=(place,), name="weight broadcast", daemon=True)
            self._thread.start()
        return Publication(version, place)

    def close(self) -> None:
        """End the thread and leave the group. Not needed before the process ends."""
        if self._thread is not None and self._store is not None:
            self._store.queue_push(meeting.TRAINER_QUEUE, meeting.write(meeting.Stop()))
            self._thread.join()

    def _run(self, place: meeting.MeetingPoint) -> None:
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
        deadline_s: float | None = None  # of the waiting workers for the others to join
        while not self._stopping:
            left_s = _IDLE_S if deadline_s is None else max(0.0, deadline_s - time.monotonic())
            self._note(box.take(meeting.TRAINER_QUEUE, left_s))
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

    def _note(self, letter: meeting.Letter | None) -> None:
        """A worker that joins replaces an earlier one in its seat, which is dead."""
        if isinstance(letter, meeting.Join):
            self._waiting[letter.seat] = letter.life
        elif isinstance(letter, meeting.Stop):
            self._stopping = True

    def _round(self, box: PostBox) -> None:
        """Send the version to all waiting workers. One that does not confirm it must join again."""
        lives = {seat: self._waiting[seat] for seat in self._seats if seat in self._waiting}
        self._waiting = {}
        self._rounds += 1
        if self._group_lives != tuple(lives.values()):
            self._drop_group()
            self._groups += 1
        members = ("trainer", *lives)
        for rank, life in enumerate(lives.values(), start=1):
            box.send(meeting.queue_of(life), meeting.Invite(self._rounds, self._version, self._groups, rank, members))
        errors: list[str] = []
        try:
            self._broadcast(box, members, lives)
        except RuntimeError as error:  # gloo and NCCL raise nothing more specific if a peer is gone
            errors.append(f"trainer: {type(error).__name__}: {error}")
            self._drop_group()  # so that workers that still wait for bytes fail at once
        served, restarted = self._hear(box, lives, errors)
        self._served |= served
        if served == lives.keys():
            self._broken = []
            return
        self._drop_group()
        if not restarted:  # otherwise the restart explains the failure
            self._broken.append(f"round {self._rounds} with {', '.join(lives)}: {'; '.join(errors) or 'no answer'}")

    def _broadcast(self, box: PostBox, members: Sequence[str], lives: Mapping[str, str]) -> None:
        if self._group is None:
            self._group = ProcessGroup(box.store, self._groups, 0, members, self._link)
            self._group_lives = tuple(lives.values())
        self._group.broadcast(torch.from_numpy(self._buffer))

    def _hear(self, box: PostBox, lives: Mapping[str, str], errors: list[str]) -> tuple[set[str], set[str]]:
        """The seats that received the round, and those whose worker was restarted meanwhile.

        Waits for an answer of every member until the timeout. Appends the failures to `errors`.
        """
        seat_of = {life: seat for seat, life in lives.items()}
        served: set[str] = set()
        failed: set[str] = set()
        restarted: set[str] = set()
        deadline_s = time.monotonic() + self._config.transfer_timeout_s
        while served | failed | restarted != lives.keys() and (left_s := deadline_s - time.monotonic()) > 0:
            letter = box.take(meeting.TRAINER_QUEUE, left_s)
            self._note(letter)
            match letter:
                case meeting.Got(life, number) if number == self._rounds:
                    served.add(seat_of[life])
                case meeting.TransferFailed(life, number, error) if number == self._rounds:
                    failed.add(seat_of[life])
                    errors.append(f"{seat_of[life]}: {error}")
                case meeting.Join(seat, life) if seat in lives and life != lives[seat] and seat not in served:
                    restarted.add(seat)
        return served, restarted

    def _who_did_not_join(self) -> str:
        return (
            f"weight version {self._version}: {', '.join(self._missing)} did not join the broadcast within "
            f"{self._config.join_timeout_s:g} s (weight_sync.join_timeout_s); {', '.join(self._waiting)} did. A worker "
            "that is still starting needs a longer timeout; a worker that hangs shows it in its log"
        )

    def _what_broke(self) -> str:
        return (
            f"weight version {self._version} could not be sent in {_BROKEN_ROUNDS} rounds, and no worker had died: "
            f"{' | '.join(self._broken)}. On a slow network raise weight_sync.transfer_timeout_s, or set "
            "weight_sync.name: object_store, which needs no group"
        )

    def _refuse(self, box: PostBox, error: str) -> None:
        """Tell all waiting workers why no round follows."""
        for life in self._waiting.values():
            box.send(meeting.queue_of(life), meeting.Refuse(error))
        self._waiting = {}

    def _drop_group(self) -> None:
        if self._group is not None:
            self._group.close()
            self._group = None
            self._group_lives = ()
