"""One attempt at a run: the Ray client from its start to its end, with all processes below it.

The attempt is over when the client has told its end, or died; when a process that the run needs has not run for
`cluster.frozen_timeout_s`; or when the user does not wait. Then every process of it is killed that has not ended.
"""

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import IO

from fsm.errors import ConfigError, EvenstepError
from runtime.control.failures import InterruptedAtStart, RunFailed
from runtime.control.messages import CLOSING_SHARE, HEARING_SHARE, ClientRuns, ControllerRuns, Listener, Notice, Outcome
from runtime.launch.driving import Heard, newest_of, outcome_without_controller
from runtime.launch.processes import Process, descendants, end_all, process_of, process_tree
from runtime.launch.signals import counted_interrupts, on_sigusr1
from runtime.launch.supervision.keeper import FROZEN, start_keeper
from runtime.launch.supervision.orphans import adopting_orphans, bury_orphans, end_all_below, remove_half_written, sweep
from runtime.launch.supervision.ray_client import Assignment, Defect, NotBegun, Sent, death_of
from runtime.launch.supervision.roles import KEEPER, Role, is_controller, needed, roles_of
from runtime.launch.supervision.running import Looks
from runtime.output.directory import alone_in
from runtime.settings import TransferQueuePlaneConfig

_CODE = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from runtime.launch.run import run_on_ray; "
    "from runtime.launch.supervision.ray_client import main; main(run_on_ray)"
)
_HEARD_S = 0.2
"""How often interrupts and processes are looked at while no message comes."""
_TOLD_SHARE = 0.25
"""Part of the timeout after which a frozen process is told."""
_LAST_WORDS_S = {Role.RAYLET: 1.0, Role.STORE: 10.0}
"""How long an attempt goes on without these: an end of the run may still come. It ends its store before it says so."""
_SAID_S = 10.0
"""How long the keeper may take to say how the client ended."""
_LOG_TAIL = 2_000
"""Bytes of what the client printed last, which are told when it dies without a word."""


class InfraLost(EvenstepError):
    """A process that the run needs has died or is frozen; the run may be restarted."""


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """How an attempt ended."""

    outcome: Outcome | None
    """None if the run had not begun."""
    error: EvenstepError | None
    """Why not."""
    infra: str | None
    """The reason, if it is infrastructure's: another attempt may go well."""
    interrupted_by: str | None = None
    """The signal that interrupted the run, if its trace may not say so."""


@dataclass(slots=True)
class _Attempt:
    """What is known of an attempt under way."""

    task: Assignment
    keeper: subprocess.Popen[bytes]
    """Its only child is the client, as long as that lives."""
    link: socket.socket
    """From the keeper."""
    received: "queue.SimpleQueue[Sent | None]"
    """What the client has sent; None once it is gone."""
    log: IO[bytes]
    listener: Listener
    heard: Heard
    looks: Looks = field(default_factory=Looks)
    told: set[Process] = field(default_factory=set)
    """Frozen processes that the user knows of."""
    drives: bool = False
    """The client hears the controller, and says so whether anything comes or not."""
    silent_s: float = 0.0
    """For how long the client has said nothing. Time in which this process was stopped does not count."""
    listened_s: float = field(default_factory=time.monotonic)
    was_stopped: bool = False
    """This process has not run for a while, and since then messages have come without a pause: more may be unheard."""
    below: set[int] = field(default_factory=set)
    """The pids of the keeper, the client, and all processes below it."""
    controller: Process | None = None
    """On a cluster that was joined it is not below the client."""
    known: dict[Process, str] = field(default_factory=dict)
    """The processes of Ray, once they are there."""
    lost: str | None = None
    """Ray's own loss, for which the client was asked to save and end."""
    dead: tuple[float, str] | None = None
    """What the run cannot go on without: the end of its last words, on the monotonic clock, and its death in words."""
    end: Sent | None = None

    @property
    def client(self) -> int:
        """The client's pid; before it is there, the keeper's."""
        return process_tree(self.keeper.pid)[:2][-1]

    @property
    def timeout_s(self) -> float | None:
        return self.task.settings.cluster.frozen_timeout_s

    @property
    def shutdown_s(self) -> float:
        return self.task.settings.cluster.shutdown_timeout_s


def attempt(task: Assignment, listener: Listener) -> AttemptEnd:
    """Make one attempt. No process and no file of Ray is left, whatever they do.

    A first interrupt, or listener's KeyboardInterrupt, has the run save and end; a second one ends it at once, and a
    third one kills it. An attempt that was interrupted at any time is not made again.
    """
    lost: InfraLost | None = None
    with counted_interrupts() as interrupts:
        with _started(task, listener) as running, on_sigusr1(lambda: _dump_trace(running)):
            try:
                _until_its_end(running, interrupts)
            except InfraLost as error:
                lost = error
        came_late = bool(interrupts) and not running.heard.interrupted
        running.heard.interrupted |= came_late  # while it was torn down
        end = _end_of(running) if lost is None else _end_of_lost(running, lost)
        if not interrupts or (end.outcome is not None and end.outcome is running.end):  # its controller recorded that
            return end
        signal_name = signal.Signals(interrupts[0]).name
        if came_late and end.outcome is not None and end.outcome.status == "interrupted":
            why = f"{signal_name} came when a process of the run was lost, so it is not restarted"
            end = replace(end, outcome=replace(end.outcome, error=why))
        return replace(end, interrupted_by=signal_name)


def _until_its_end(running: _Attempt, interrupts: list[int]) -> None:
    """Hear the client, watch its processes and pass interrupts on, until it has told its end. Raises InfraLost."""
    obeyed = 0
    while running.end is None:
        try:
            _hear(running)
        except KeyboardInterrupt:  # the listener's
            interrupts.append(signal.SIGINT)
        if len(interrupts) > obeyed:
            obeyed += 1
            _interrupt(running, obeyed)
        if running.received.empty() and not running.was_stopped:  # what is unheard may be the end of the run
            _watch(running, interrupted=bool(interrupts))


@contextmanager
def _started(task: Assignment, listener: Listener) -> Iterator[_Attempt]:
    others = set(descendants())
    ours, theirs = Pipe()
    shutdown_s = task.settings.cluster.shutdown_timeout_s
    with adopting_orphans(), tempfile.TemporaryFile() as log, ours:
        command = [sys.executable, "-c", _CODE, str(theirs.fileno()), json.dumps(sys.path)]
        timeout_s = task.settings.cluster.frozen_timeout_s
        keeper, link = start_keeper(command, theirs.fileno(), log, task.output, timeout_s, shutdown_s)
        theirs.close()
        received: queue.SimpleQueue[Sent | None] = queue.SimpleQueue()
        receiver = threading.Thread(target=_receive_all, args=(ours, received), name="from the client", daemon=True)
        running = _Attempt(task, keeper, link, received, log, listener, Heard(HEARING_SHARE * shutdown_s))
        receiver.start()
        try:
            with suppress(OSError):  # the client has died, which is heard next
                ours.send(task)
            yield running
        finally:
            if isinstance(running.end, Outcome | NotBegun):
                receiver.join(shutdown_s)  # until the client has ended
            end_all_below(others)
            if running.controller is not None:
                end_all([running.controller], CLOSING_SHARE * shutdown_s)  # Ray may be frozen, and so may it
            keeper.wait()
            link.close()
            bury_orphans(running.below)
            receiver.join()
            sweep()
            if running.drives:  # otherwise the directory may be another run's
                with suppress(ConfigError), alone_in(task.output):
                    remove_half_written(task.output)


def _receive_all(connection: Connection, received: "queue.SimpleQueue[Sent | None]") -> None:
    """On its own thread: the end of a message whose sender is frozen does not come."""
    try:
        while True:
            received.put(connection.recv())
    except (EOFError, OSError):
        received.put(None)


def _hear(running: _Attempt) -> None:
    """Pass on what has come within a moment. Raises InfraLost if the client is gone."""
    since_s, running.listened_s = running.listened_s, time.monotonic()
    try:
        message = running.received.get(timeout=_HEARD_S)
        running.was_stopped |= time.monotonic() - since_s > 5.0 * _HEARD_S
    except queue.Empty:
        running.was_stopped = time.monotonic() - running.listened_s > 5.0 * _HEARD_S
        running.silent_s += min(running.listened_s - since_s, 5.0 * _HEARD_S)
        return
    running.silent_s = 0.0
    match message:
        case None:
            raise InfraLost(_how_it_ended(running))
        case ClientRuns():
            running.drives = True
        case ControllerRuns(pid, _):
            running.controller = process_of(pid) if is_controller(pid) else None
        case Outcome() | NotBegun() | Defect():
            running.end = message
        case _:
            running.heard.hear(message)
            running.listener(message)


def _how_it_ended(running: _Attempt) -> str:
    """The client's end, as its keeper tells it."""
    running.link.settimeout(_SAID_S)
    try:
        said = running.link.recv(64).decode().strip()
    except OSError:
        said = ""
    if said == FROZEN:
        return f"{KEEPER} ended the run: the driver and a process that the run needs did not run for too long"
    if not said:
        return f"{Role.RAY_CLIENT} and {KEEPER} have ended"
    if (code := int(said)) < 0:
        return f"{Role.RAY_CLIENT} was killed by {signal.Signals(-code).name}"
    running.log.seek(max(0, running.log.seek(0, os.SEEK_END) - _LOG_TAIL))
    lines = running.log.read().decode(errors="replace").split("\n")
    last = next((line for line in reversed(lines) if line.strip()), "it printed nothing")
    return f"{Role.RAY_CLIENT} ended by itself, with exit code {code}; its last line: {last.strip()}"


def _interrupt(running: _Attempt, number: int) -> None:
    """Pass an interrupt on. Raises InfraLost for the third one."""
    running.heard.interrupted = True
    if number > 2:
        raise InfraLost("the run was interrupted a third time, and its processes were killed")
    running.silent_s = 0.0
    _ask_to_end(running)


def _ask_to_end(running: _Attempt) -> None:
    with suppress(ProcessLookupError):
        os.kill(running.client, signal.SIGINT)


def _dump_trace(running: _Attempt) -> None:
    """SIGUSR1 goes to the process that hears the controller."""
    if running.drives:
        with suppress(ProcessLookupError):
            os.kill(running.client, signal.SIGUSR1)


def _watch(running: _Attempt, *, interrupted: bool) -> None:
    """Raise InfraLost if the run needs a process that is frozen or dead, or if the client says nothing for too long."""
    silent_s = running.silent_s
    ending = running.heard.ending is not None
    if (interrupted or ending or running.lost is not None) and silent_s > running.shutdown_s:
        raise InfraLost(running.lost or f"nothing was heard of the run for {silent_s:.0f} s after it was to end")
    if interrupted or ending or running.lost is not None:
        return
    if running.dead is not None and time.monotonic() > running.dead[0]:
        raise InfraLost(running.dead[1])
    if running.timeout_s is not None and running.drives and silent_s > running.timeout_s:
        raise InfraLost(f"{Role.RAY_CLIENT} waits for Ray, which has not answered for {silent_s:.0f} s")
    if running.looks.due:
        keeper = process_of(running.keeper.pid)
        if keeper is None:
            raise InfraLost(f"{KEEPER} (process {running.keeper.pid}) was killed")
        below = process_tree(keeper.pid)
        bury_orphans(running.below.difference(below))
        running.below = set(below)
        roles: dict[Process, str] = {keeper: KEEPER, **needed(roles_of(below[1:]))}
        if running.controller is not None and process_of(running.controller.pid) == running.controller:
            roles[running.controller] = Role.CONTROLLER
        _refuse_frozen(running, roles)
        if running.drives:  # before that, a cluster that does not come up is started again
            _refuse_dead(running, roles)


def _refuse_frozen(running: _Attempt, roles: dict[Process, str]) -> None:
    """Tell of a process that does not run, and end the attempt when it has not run for too long."""
    for process, idle_s in running.looks.look(roles).items():
        role = roles.get(process)
        if running.timeout_s is None or role is None:
            continue
        if idle_s > running.timeout_s:
            why = f"{role} (process {process.pid}) has not run for {idle_s:.0f} s (cluster.frozen_timeout_s)"
            if role is not Role.GCS:
                raise InfraLost(why)
            _save_and_end(running, why)
        elif idle_s > _TOLD_SHARE * running.timeout_s and process not in running.told:
            running.told.add(process)
            running.listener(
                Notice(
                    f"{role} (process {process.pid}) has not run for {idle_s:.0f} s: it is stopped or frozen; after "
                    f"cluster.frozen_timeout_s = {running.timeout_s:g} s the run is restarted"
                )
            )


def _refuse_dead(running: _Attempt, roles: dict[Process, str]) -> None:
    """Without its raylet a run is lost, which Ray takes long to find out. So it is without TransferQueue, whose groups
    are gone and which nothing restarts. Without its GCS a cluster works on for a minute, in which the run can save.
    """
    died = {role: process for process, role in running.known.items() if process_of(process.pid) != process}
    queue_dies = isinstance(running.task.settings.data_plane, TransferQueuePlaneConfig)
    lost = next((role for role in (Role.RAYLET, Role.STORE)[: 1 + queue_dies] if role in died), None)
    if lost is not None and running.dead is None:
        running.dead = (time.monotonic() + _LAST_WORDS_S[lost], death_of(lost, died[lost]))
    elif lost is None and Role.GCS in died:
        _save_and_end(running, death_of(Role.GCS, died[Role.GCS]))
    elif lost is None:
        running.known = roles


def _save_and_end(running: _Attempt, why: str) -> None:
    if running.heard.interrupted or running.lost is not None:
        return
    running.lost = why
    running.silent_s = 0.0
    running.listener(Notice(f"{why}: the run saves what it has, and is restarted"))
    _ask_to_end(running)


def _end_of(running: _Attempt) -> AttemptEnd:
    """As the client has told it."""
    interrupted = running.heard.interrupted
    match running.end:
        case Outcome() as outcome if interrupted and outcome.infra:
            lost = outcome.lost if outcome.error is None else (outcome.error, *outcome.lost)
            return AttemptEnd(replace(outcome, status="interrupted", error=None, lost=lost, infra=False), None, None)
        case Outcome() as outcome:
            infra = running.lost or (outcome.error if outcome.infra else None)
            return AttemptEnd(outcome, None, None if interrupted else infra)
        case NotBegun(error) if interrupted and _infra_of(error):
            return AttemptEnd(None, InterruptedAtStart(), None)
        case NotBegun(error):
            return AttemptEnd(None, error, None if interrupted else running.lost or _infra_of(error))
        case Defect(traceback):
            raise RuntimeError(f"the run's Ray client failed:\n{traceback}")
        case _:
            raise AssertionError("an attempt ends with a message or with InfraLost")


def _infra_of(error: EvenstepError) -> str | None:
    """Why a run has not begun, if that is infrastructure's fault."""
    return str(error) if isinstance(error, RunFailed) and error.infra else None


def _end_of_lost(running: _Attempt, lost: InfraLost) -> AttemptEnd:
    """As far as it is known without the client."""
    infra = None if running.heard.interrupted or running.heard.ending is not None else str(lost)
    try:
        outcome = outcome_without_controller(running.heard, lost, newest_of(running.task.output))
    except EvenstepError as error:
        return AttemptEnd(None, error, infra)
    return AttemptEnd(outcome, None, infra)
