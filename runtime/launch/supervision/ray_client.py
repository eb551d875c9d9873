"""The process that talks to Ray for the driver: one attempt at the run, from a session of Ray to its end.

It sends the controller's messages through a pipe, then an Outcome or the error that kept the run from beginning. If the
pipe closes, the driver was killed: this process then kills everything below it, removes the session's files, and ends.
On a cluster that was joined, Ray ends the actors of a process that has ended.
"""

import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path

from fsm.errors import EvenstepError
from runtime.control.failures import InterruptedAtStart, RunFailed, failure_of
from runtime.control.messages import ClientRuns, Listener, Message, Outcome, Start
from runtime.launch.processes import Process, process_of, process_tree
from runtime.launch.supervision.orphans import adopting_orphans, end_all_below, remove_half_written, remove_own
from runtime.launch.supervision.roles import Role, roles_of
from runtime.settings import Settings

_SENT_S = 10.0
"""How long the last messages may take: the driver may be stopped."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """What the driver asks for."""

    settings: Settings
    output: Path
    start: Start
    began_s: float
    """When the command began, on the monotonic clock, which all processes of a machine share."""
    number: int
    """Restarts before this attempt."""
    command: Sequence[str]
    """The command line that started the run."""


@dataclass(frozen=True, slots=True)
class NotBegun:
    """The run ended before it had begun."""

    error: EvenstepError


@dataclass(frozen=True, slots=True)
class Defect:
    """An error that nobody foresaw."""

    traceback: str


Sent = Message | NotBegun | Defect
"""The last one is an Outcome, NotBegun or Defect."""


Run = Callable[[Settings, Path, Start, Listener, float, int], Outcome]
"""`run_on_ray` of `runtime.launch.run`, which imports this package."""


def main(run: Run) -> None:
    """Run the task that comes through the pipe whose file descriptor is the first argument."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _leave_signals_to_the_driver()
    connection, keeper = Connection(int(sys.argv[1])), process_of(os.getppid())
    sending: queue.SimpleQueue[Sent | None] = queue.SimpleQueue()
    driving = threading.Event()
    sender = threading.Thread(target=_send_all, args=(connection, sending), name="to the driver", daemon=True)
    try:
        task: Assignment = connection.recv()
        sys.argv[:] = task.command
        watching = (connection, task.output, driving, keeper)
        threading.Thread(target=_wait_for_end, args=watching, name="driver", daemon=True).start()
        sender.start()
        with adopting_orphans():
            _attempt(task, run, sending, driving)
    except (KeyboardInterrupt, EOFError):
        sending.put(NotBegun(InterruptedAtStart()))
    finally:
        sending.put(None)
        if sender.ident is not None:
            sender.join(_SENT_S)
    sys.stdout.flush()
    os._exit(0)  # Ray's own end may hang, and everything is told


def _attempt(task: Assignment, run: Run, sending: "queue.SimpleQueue[Sent | None]", driving: threading.Event) -> None:
    """The run on a session of Ray. Its end is sent before Ray is shut down: that takes a while, and looks like a loss.

    Sets `driving` once the run's directory is this process' own.
    """
    from runtime.launch.ray_session import ray_session

    def tell(message: Message) -> None:
        if isinstance(message, ClientRuns):
            driving.set()
        sending.put(message)

    def on_ray() -> Sent:
        with ray_session(task.settings):
            _leave_signals_to_the_driver()  # Ray has put its own handlers there
            if task.number:
                _wait_for_name(task.settings)
            roles = roles_of(process_tree(os.getpid()))
            raylet = next((process for process, role in roles.items() if role is Role.RAYLET), None)
            ended = _ended(lambda: run(task.settings, task.output, task.start, tell, task.began_s, task.number))
            ended = ended if raylet is None else blamed_on(raylet, ended)
            sending.put(ended)
        return ended

    sending.put(_ended(on_ray))  # the session's own errors; the driver takes the first end


def _ended(call: Callable[[], Sent]) -> Sent:
    """What a call returns, or how it failed."""
    try:
        return call()
    except KeyboardInterrupt:
        return NotBegun(InterruptedAtStart())
    except EvenstepError as error:
        return NotBegun(error)
    except Exception as error:
        failure = failure_of(error)
        return NotBegun(RunFailed(failure.says, infra=True)) if failure.infra else Defect(traceback.format_exc())


def blamed_on(raylet: Process, ended: Sent) -> Sent:
    """An end by the loss of an actor, with the raylet's death as its cause if that has died."""
    if process_of(raylet.pid) == raylet:
        return ended
    match ended:
        case Outcome(infra=True):
            return replace(ended, error=death_of(Role.RAYLET, raylet))
        case NotBegun(RunFailed(infra=True)):
            return NotBegun(RunFailed(death_of(Role.RAYLET, raylet), infra=True))
    return ended


def death_of(role: Role, process: Process) -> str:
    """In words."""
    return f"{role} (process {process.pid}) died"


def _leave_signals_to_the_driver() -> None:
    """A scheduler may signal every process of a job. The driver passes the first on, and a second one would end the run
    at once. They are not ignored: processes that are started here would ignore them too.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, frame: None)


def _wait_for_name(settings: Settings) -> None:
    """Wait until Ray has ended the controller of the last attempt, whose name this one takes."""
    import ray

    cluster = settings.cluster
    deadline_s = time.monotonic() + cluster.shutdown_timeout_s
    while cluster.address is not None and cluster.run_name is not None and time.monotonic() < deadline_s:
        try:
            ray.get_actor(f"{cluster.run_name}-controller", namespace=cluster.namespace)
        except ValueError:
            return
        time.sleep(0.5)


def _send_all(connection: Connection, sending: "queue.SimpleQueue[Sent | None]") -> None:
    """On its own thread, since a signal that cut a message short would spoil all that follow."""
    with suppress(OSError):  # the driver is gone, which the other thread hears
        while (message := sending.get()) is not None:
            connection.send(message)


def _wait_for_end(connection: Connection, output: Path, driving: threading.Event, keeper: Process | None) -> None:
    """The driver sends nothing after the task, so whatever comes is its end."""
    with suppress(EOFError, OSError):
        connection.recv()
    end_all_below(set())
    remove_own()
    if driving.is_set():  # otherwise the directory may be another run's
        remove_half_written(output)
    if keeper is not None and process_of(keeper.pid) == keeper:
        os.kill(keeper.pid, signal.SIGKILL)  # it is frozen, or would have been here first
    os._exit(1)
