"""A generation worker's side of the broadcast."""

import asyncio
from uuid import uuid4

import numpy as np
import torch

from runtime.settings import CollectiveSyncConfig
from runtime.transport.answers import Fetched, Publication
from runtime.transport.collective import meeting
from runtime.transport.collective.bundle import Bytes, Manifest, views
from runtime.transport.collective.group import Link, PostBox, ProcessGroup


class CollectiveReceiver:
    """Joins, receives, and joins again if a round failed. The trainer decides when to give up."""

    def __init__(self, seat: str, config: CollectiveSyncConfig, backend: meeting.Backend, host: str) -> None:
        """`host` is this machine's address, where gloo listens."""
        self._seat = seat
        self._life = f"{seat}-{uuid4().hex}"
        self._config = config
        self._link = Link(backend, host, config.transfer_timeout_s)
        self._box: PostBox | None = None
        self._manifest: Manifest
        self._buffer: Bytes
        self._group: ProcessGroup | None = None
        self._group_number = -1

    async def fetch(self, publication: Publication) -> Fetched:
        """Fetch in a thread, so that generation continues; one fetch at a time.

        The arrays are views of one buffer, which the next fetch overwrites.
        """
        return await asyncio.to_thread(self._fetch, publication.payload)

    def close(self) -> None:
        if self._group is not None:
            self._group.close()
            self._group = None

    def _fetch(self, place: meeting.MeetingPoint) -> Fetched:
        box = self._open(place)
        while True:
            invite = self._join(box, place)
            try:
                self._receive(box, invite)
            except RuntimeError as error:  # gloo and NCCL raise nothing more specific if a peer is gone
                self.close()
                failed = meeting.TransferFailed(self._life, invite.round, f"{type(error).__name__}: {error}")
                box.send(meeting.TRAINER_QUEUE, failed)
            else:
                box.send(meeting.TRAINER_QUEUE, meeting.Got(self._life, invite.round))
                return Fetched(views(self._buffer, self._manifest), invite.version)

    def _open(self, place: meeting.MeetingPoint) -> PostBox:
        """Connect and allocate, at the first fetch."""
        if self._box is None:
            self._box = PostBox(place, self._config.transfer_timeout_s)
            self._manifest = Manifest.from_json(self._box.store.get(meeting.MANIFEST))
            self._buffer = np.zeros(self._manifest.size, dtype=np.uint8)
        return self._box

    def _join(self, box: PostBox, place: meeting.MeetingPoint) -> meeting.Invite:
        """Ask for the newest weights, and wait for the invitation."""
        # A round in progress takes at most three timeouts: to connect, to send, to be confirmed.
        patience_s = self._config.join_timeout_s + 3 * self._config.transfer_timeout_s
        box.send(meeting.TRAINER_QUEUE, meeting.Join(self._seat, self._life))
        answer = box.take(meeting.queue_of(self._life), patience_s)
        if isinstance(answer, meeting.Refuse):
            raise meeting.WeightSyncFailed(answer.error)
        if not isinstance(answer, meeting.Invite):
            raise meeting.WeightSyncFailed(
                f"{self._seat} asked the trainer at {place.host}:{place.port} for weights and got "
                f"{answer or 'no answer'} within {patience_s:g} s; see the trainer's log"
            )
        return answer

    def _receive(self, box: PostBox, invite: meeting.Invite) -> None:
        if self._group is None or self._group_number != invite.group:
            self.close()
            self._group = ProcessGroup(box.store, invite.group, invite.rank, invite.members, self._link)
            self._group_number = invite.group
        self._group.broadcast(torch.from_numpy(self._buffer))
