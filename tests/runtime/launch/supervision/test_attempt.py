"""What ends an attempt, with a client of ours in place of Ray's. `tests/chaos` has the same on Ray."""

import os
import queue
import re
import signal
import socket
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from runtime.control.failures import InterruptedAtStart, RunFailed
from runtime.control.messages import Message, Notice, Outcome, Start
from runtime.control.wall_clock import OutOfTime
from runtime.launch.driving import Heard, outcome_without_controller
from runtime.launch.processes import process_of
from runtime.launch.supervision import attempt as module
from runtime.launch.supervision import running as looking
from runtime.launch.supervision.attempt import attempt
from runtime.launch.supervision.ray_client import Assignment, NotBegun, Sent, blamed_on
from runtime.launch.supervision.roles import Role
from runtime.launch.supervision.running import LOOK_S
from runtime.settings import load_settings
from tests.runtime.checkpoints.helpers import ORIGIN

WAIT_S = 60.0
CLIENT = """
import json, subprocess, sys, time
sys.path[:] = json.loads(sys.argv[2])
from multiprocessing.connection import Connection
from pathlib import Path
from runtime.control.messages import ClientRuns, Notice, Outcome

connection = Connection(int(sys.argv[1]))
output = connection.recv().output
gcs = subprocess.Popen(["gcs_server", "100"], executable="/bin/sleep")
for _ in range(10):
    connection.send(ClientRuns())
    time.sleep(0.5)
connection.send(Notice("the last step"))
gcs.kill()
gcs.wait()
connection.send(Notice("the run is over"))
connection.send(Outcome("completed", None))
(output / "said").touch()
time.sleep(3.0)
"""
"""A run that ends its cluster once it has told its end."""


def test_a_driver_that_was_held_up_hears_the_end_of_the_run_before_it_misses_the_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its terminal may be stopped (Ctrl-S), or the process itself (Ctrl-Z)."""
    monkeypatch.setattr(module, "_CODE", CLIENT)
    heard: list[str] = []

    def hear(message: Message) -> None:
        assert isinstance(message, Notice)
        heard.append(message.text)
        deadline_s = time.monotonic() + WAIT_S
        while not (tmp_path / "said").exists() and time.monotonic() < deadline_s:
            time.sleep(0.1)
        time.sleep(LOOK_S)

    task = Assignment(load_settings(None, []), tmp_path, Start(60, {}, ORIGIN, None), time.monotonic(), 0, [])
    end = attempt(task, hear)
    assert heard == ["the last step", "the run is over"]
    assert end.outcome is not None
    assert (end.outcome.status, end.infra) == ("completed", None)


def test_a_driver_that_was_stopped_looks_at_no_process_before_messages_have_paused(tmp_path: Path) -> None:
    """The first message after the pause is there before those behind it, which may be the end of the run."""
    task = Assignment(load_settings(None, []), tmp_path, Start(60, {}, ORIGIN, None), time.monotonic(), 0, [])
    ours, theirs = socket.socketpair()
    received: queue.SimpleQueue[Sent | None] = queue.SimpleQueue()
    with ours, theirs, subprocess.Popen(["true"]) as keeper, (tmp_path / "log").open("wb") as log:
        running = module._Attempt(task, keeper, ours, received, log, lambda message: None, Heard(1.0))
        running.listened_s = time.monotonic() - 40.0
        for _ in range(2):
            received.put(Notice("a step"))
            module._hear(running)
            assert running.was_stopped
        module._hear(running)
        assert not running.was_stopped


DIES = """
import json, os, signal, sys
sys.path[:] = json.loads(sys.argv[2])
from multiprocessing.connection import Connection
from runtime.control.messages import ClientRuns, Outcome

connection = Connection(int(sys.argv[1]))
connection.recv()
connection.send(ClientRuns())
{end}
"""
"""A client that dies, or tells of a process that did."""


@pytest.mark.parametrize(
    "end", ["os.kill(os.getpid(), signal.SIGKILL)", "connection.send(Outcome('failed', 'an actor died', infra=True))"]
)
def test_an_interrupt_while_a_lost_attempt_is_torn_down_is_heard(
    end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_CODE", DIES.replace("{end}", end))
    sweep = module.sweep

    def interrupted_sweep() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        sweep()

    monkeypatch.setattr(module, "sweep", interrupted_sweep)
    task = Assignment(load_settings(None, []), tmp_path, Start(60, {}, ORIGIN, None), time.monotonic(), 0, [])
    ended = attempt(task, lambda message: None)
    assert (ended.infra, ended.interrupted_by) == (None, "SIGTERM"), "it is not made again"
    if ended.outcome is None:
        assert isinstance(ended.error, InterruptedAtStart)
    else:
        assert ended.outcome.status == "interrupted"
        assert ended.outcome.error == "SIGTERM came when a process of the run was lost, so it is not restarted"
        assert ended.outcome.lost == ("an actor died",)


LOSES_ITS_QUEUE = """
import json, subprocess, sys, time
sys.path[:] = json.loads(sys.argv[2])
from multiprocessing.connection import Connection
from runtime.control.messages import ClientRuns

connection = Connection(int(sys.argv[1]))
connection.recv()
beats = "(exec -a ray::QueueKeeper sleep 4) & while :; do sleep 1; done"
subprocess.Popen(["raylet", "-c", beats], executable="/bin/bash")
while True:
    connection.send(ClientRuns())
    time.sleep(0.3)
"""


def test_the_death_of_transfer_queue_which_ray_does_not_restart_has_the_run_restarted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_CODE", LOSES_ITS_QUEUE)
    monkeypatch.setattr(module, "_LAST_WORDS_S", {Role.STORE: 0.5})
    monkeypatch.setattr(looking, "LOOK_S", 0.5)
    settings = load_settings(None, ["data_plane.name=transfer_queue"])
    task = Assignment(settings, tmp_path, Start(60, {}, ORIGIN, None), time.monotonic(), 0, [])
    ended = attempt(task, lambda message: None)
    assert re.fullmatch(r"the group store \(process \d+\) died", str(ended.infra))


@pytest.mark.parametrize("infra", [True, False])
def test_the_loss_of_an_actor_by_the_death_of_its_raylet_is_told_as_that(infra: bool) -> None:
    lost, nothing = Outcome("failed", "an actor died", infra=infra), Outcome("completed", None)
    with subprocess.Popen(["raylet", "600"], executable="/bin/sleep") as process:
        raylet = process_of(process.pid)
        assert raylet is not None
        assert blamed_on(raylet, lost) == lost
        process.kill()
    error = f"the raylet (process {raylet.pid}) died" if infra else "an actor died"
    assert blamed_on(raylet, lost) == replace(lost, error=error)
    assert blamed_on(raylet, nothing) == nothing
    begun = blamed_on(raylet, NotBegun(RunFailed("an actor died", infra=infra)))
    assert isinstance(begun, NotBegun)
    assert str(begun.error) == error


def test_a_run_that_its_time_limit_ends_before_it_has_begun_is_interrupted_and_not_stopped() -> None:
    """As the page on training says of `checkpointing.max_wall_s`: exit code 130."""
    with pytest.raises(RunFailed, match="max_wall_s") as ended:
        outcome_without_controller(Heard(1.0), OutOfTime("checkpointing.max_wall_s = 55 s is nearly over"), None)
    assert ended.value.status == "interrupted"
