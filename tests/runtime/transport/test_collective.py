"""The broadcast of weights, sender and receivers in one process: who gets what, and what happens when one is gone."""

import asyncio
from collections.abc import Iterator
from threading import Thread
from typing import Any

import numpy as np
import pytest

from fsm.errors import ConfigError
from runtime.generation.engine import Weights
from runtime.settings import CollectiveSyncConfig, load_settings
from runtime.transport.answers import Fetched, Publication
from runtime.transport.collective import bundle, meeting
from runtime.transport.collective.group import Link, PostBox, ProcessGroup
from runtime.transport.collective.meeting import (
    TRAINER_QUEUE,
    Got,
    Invite,
    Join,
    MeetingPoint,
    WeightSyncFailed,
    queue_of,
)
from runtime.transport.collective.receiver import CollectiveReceiver
from runtime.transport.collective.sender import CollectiveSender
from runtime.transport.weight_sync import collective_backend

HOST = "127.0.0.1"
SEATS = ("generation-0", "generation-1")


def config(join_s: float = 20.0, transfer_s: float = 20.0) -> CollectiveSyncConfig:
    return CollectiveSyncConfig(join_timeout_s=join_s, transfer_timeout_s=transfer_s)


def weights(version: int) -> dict[str, np.ndarray[Any, Any]]:
    """Of several types and shapes, a scalar and an empty one among them."""
    return {
        "embedding": np.full((3, 5), version, dtype=np.float32),
        "norm": np.arange(7, dtype=np.uint16) + np.uint16(version),
        "scale": np.array(0.5 + version),
        "nothing": np.zeros((0, 4), dtype=np.float32),
    }


def same(given: Weights, version: int) -> bool:
    wanted = weights(version)
    return given.keys() == wanted.keys() and all(
        given[name].dtype == array.dtype and np.array_equal(given[name], array) for name, array in wanted.items()
    )


@pytest.fixture
def opened() -> Iterator[list[Any]]:
    """What a test opens, to be closed."""
    things: list[Any] = []
    yield things
    for thing in reversed(things):
        thing.close()


def sender(opened: list[Any], *seats: str, **timeouts: float) -> CollectiveSender:
    made = CollectiveSender(seats, config(**timeouts), "gloo", HOST)
    opened.append(made)
    return made


def receiver(opened: list[Any], seat: str, **timeouts: float) -> CollectiveReceiver:
    made = CollectiveReceiver(seat, config(**timeouts), "gloo", HOST)
    opened.append(made)
    return made


def fetch(publication: Publication, *receivers: CollectiveReceiver) -> list[Fetched]:
    async def all_at_once() -> list[Fetched]:
        return list(await asyncio.gather(*(receiver.fetch(publication) for receiver in receivers)))

    return asyncio.run(all_at_once())


def test_every_worker_gets_every_version_through_one_group(opened: list[Any]) -> None:
    trainer = sender(opened, *SEATS)
    workers = [receiver(opened, seat) for seat in SEATS]
    groups = set()
    for version in range(3):
        for fetched in fetch(trainer.publish(weights(version), version), *workers):
            assert fetched.version == version
            assert same(fetched.weights, version)
            assert not any(array.flags.writeable for array in fetched.weights.values())
        groups |= {worker._group_number for worker in workers}
    assert len(groups) == 1


def test_a_worker_made_anew_gets_the_current_version_at_once_and_later_ones_with_the_others(opened: list[Any]) -> None:
    trainer = sender(opened, *SEATS)
    first, second = (receiver(opened, seat) for seat in SEATS)
    publication = trainer.publish(weights(0), 0)
    fetch(publication, first, second)
    second.close()
    anew = receiver(opened, SEATS[1])
    (fetched,) = fetch(publication, anew)
    assert same(fetched.weights, 0)
    for fetched in fetch(trainer.publish(weights(1), 1), first, anew):
        assert fetched.version == 1
        assert same(fetched.weights, 1)
    assert first._group_number == anew._group_number


def test_weights_may_be_overwritten_once_they_are_published(opened: list[Any]) -> None:
    trainer = sender(opened, SEATS[0])
    worker = receiver(opened, SEATS[0])
    given = weights(0)
    publication = trainer.publish(given, 0)
    given["embedding"][:] = 99
    assert same(fetch(publication, worker)[0].weights, 0)


def test_a_worker_that_comes_late_gets_the_newest_version_and_is_told_which(opened: list[Any]) -> None:
    trainer = sender(opened, SEATS[0])
    old = trainer.publish(weights(0), 0)
    trainer.publish(weights(1), 1)
    (fetched,) = fetch(old, receiver(opened, SEATS[0]))
    assert fetched.version == 1
    assert same(fetched.weights, 1)


def test_who_did_not_join_is_named(opened: list[Any]) -> None:
    trainer = sender(opened, *SEATS, join_s=0.5)
    publication = trainer.publish(weights(4), 4)
    message = r"version 4: generation-1 did not join .* 0\.5 s \(weight_sync\.join_timeout_s\); generation-0 did"
    with pytest.raises(WeightSyncFailed, match=message):
        fetch(publication, receiver(opened, SEATS[0]))


def test_a_worker_that_dies_after_it_joined_holds_nobody_up_for_long(opened: list[Any]) -> None:
    """It is named to nobody, since it is made anew; the round is begun again with the new one."""
    trainer = sender(opened, *SEATS, transfer_s=1.0)
    publication = trainer.publish(weights(0), 0)
    box = PostBox(publication.payload, 5)
    box.send(TRAINER_QUEUE, Join(SEATS[1], "dead"))
    alive = receiver(opened, SEATS[0], transfer_s=1.0)
    anew = receiver(opened, SEATS[1], transfer_s=1.0)

    async def one_after_the_other() -> list[Fetched]:
        waiting = asyncio.create_task(alive.fetch(publication))
        assert isinstance(await asyncio.to_thread(box.take, queue_of("dead"), 5), Invite)
        return [await anew.fetch(publication), await waiting]

    assert all(same(fetched.weights, 0) for fetched in asyncio.run(one_after_the_other()))


def test_a_worker_that_dies_in_the_broadcast_is_waited_for_and_the_other_is_not_held_up(opened: list[Any]) -> None:
    trainer = sender(opened, *SEATS)
    publication = trainer.publish(weights(0), 0)
    alive = receiver(opened, SEATS[0])

    def die() -> None:
        box = PostBox(publication.payload, 5)
        box.send(TRAINER_QUEUE, Join(SEATS[1], "dying"))
        invite = box.take(queue_of("dying"), 10)
        assert isinstance(invite, Invite)
        ProcessGroup(box.store, invite.group, invite.rank, invite.members, Link("gloo", HOST, 10)).close()

    dying = Thread(target=die)
    dying.start()

    async def both() -> list[Fetched]:
        waiting = asyncio.create_task(alive.fetch(publication))
        await asyncio.to_thread(dying.join)
        return [await receiver(opened, SEATS[1]).fetch(publication), await waiting]

    assert all(same(fetched.weights, 0) for fetched in asyncio.run(both()))


def test_rounds_that_break_off_for_no_reason_end_with_what_each_said(opened: list[Any]) -> None:
    trainer = sender(opened, SEATS[0], transfer_s=5.0)
    worker = receiver(opened, SEATS[0], transfer_s=5.0)

    def broken(*_: object) -> None:
        raise RuntimeError("no route to host")

    worker._receive = broken  # type: ignore[method-assign]
    publication = trainer.publish(weights(2), 2)
    trainer._config = config(transfer_s=0.2)
    message = (
        r"weight version 2 could not be sent in 3 rounds.*generation-0: RuntimeError: no route to host.*raise weight"
    )
    with pytest.raises(WeightSyncFailed, match=message):
        fetch(publication, worker)


def test_a_store_that_is_not_there_is_named() -> None:
    with pytest.raises(WeightSyncFailed, match=r"the trainer's store at 127\.0\.0\.1:1 cannot be reached within 1 s"):
        PostBox(MeetingPoint(HOST, 1), 1)


def test_other_weights_than_the_first_are_refused(opened: list[Any]) -> None:
    trainer = sender(opened, SEATS[0])
    trainer.publish(weights(0), 0)
    with pytest.raises(ValueError, match=r"embedding \[3, 5\] <f4 then, embedding \[3, 6\] <f4 now"):
        trainer.publish(weights(1) | {"embedding": np.zeros((3, 6), dtype=np.float32)}, 1)
    with pytest.raises(ValueError, match="4 arrays then, 1 now"):
        trainer.publish({"scale": np.array(1.0)}, 1)


@pytest.mark.parametrize("letter", [Join("a", "b"), Got("b", 3), Invite(1, 2, 3, 1, ("trainer", "a"))])
def test_letters_arrive_as_they_were_sent(letter: meeting.Letter) -> None:
    assert meeting.read(meeting.write(letter).encode()) == letter


def test_the_manifest_arrives_as_it_was_sent() -> None:
    manifest = bundle.manifest_of(weights(0))
    assert bundle.Manifest.from_json(manifest.as_json().encode()) == manifest
    assert all(entry.offset % 64 == 0 for entry in manifest.entries)


def test_nccl_is_for_gpus_at_both_ends() -> None:
    name = "weight_sync.name=collective"
    cpu = load_settings(None, [name])
    assert isinstance(cpu.weight_sync, CollectiveSyncConfig)
    assert collective_backend(cpu, cpu.weight_sync) == "gloo"
    gpu = load_settings(None, [name, "cluster.trainer_device=cuda", "generation.engine.device=cuda"])
    assert isinstance(gpu.weight_sync, CollectiveSyncConfig)
    assert collective_backend(gpu, gpu.weight_sync) == "nccl"
    with pytest.raises(
        ConfigError, match=r"weight_sync\.backend is nccl, which needs a GPU .* takes 0 GPUs; set it to"
    ):
        load_settings(None, [name, "weight_sync.backend=nccl", "cluster.trainer_device=cuda"])
