"""The keeper: a small process between the driver and its Ray client, so that nothing outlives both of them.

The client is its child, and it adopts what the client leaves. It kills everything below it as soon as the client has
ended or the driver is gone, and when the driver and a process that the run needs are both frozen. Then the driver kills
it and removes the files. If the driver does neither, the keeper removes them.

Imports the standard library alone, as long as the driver runs.
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from runtime.launch.processes import Process, process_of, process_tree
from runtime.launch.supervision.orphans import adopting_orphans, end_all_below, remove_half_written, sweep
from runtime.launch.supervision.roles import needed, roles_of
from runtime.launch.supervision.running import Looks

_CODE = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from runtime.launch.supervision.keeper import main; main(*json.loads(sys.argv[2]))"
)
_BEAT_S = 0.2
"""How often it looks for the end of the client, and whether it has been asked anything."""
FROZEN = "frozen"
"""What it says of a client that it has killed, since the driver and something below the client were frozen."""


def start_keeper(
    command: Sequence[str], pipe: int, log: IO[bytes], output: Path, frozen_s: float | None, patience_s: float
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start a keeper, which starts `command` with the file descriptor `pipe`; both print to `log`.

    The socket gets the client's exit code, or FROZEN; the keeper ends when it is closed. Files in `output` that the
    driver has not removed `patience_s` seconds after the client's end are removed by the keeper.
    """
    link, theirs = socket.socketpair()
    with theirs:
        asked = json.dumps([theirs.fileno(), pipe, [*command], str(output), frozen_s, patience_s])
        keeper = subprocess.Popen(
            [sys.executable, "-c", _CODE, json.dumps(sys.path), asked],
            pass_fds=[theirs.fileno(), pipe],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # so that a terminal's Ctrl-C goes to the driver alone
        )
    return keeper, link


def main(link: int, pipe: int, command: list[str], output: str, frozen_s: float | None, patience_s: float) -> None:
    """Start the client, and see to its end. `link` and `pipe` are file descriptors."""
    driver, driven = process_of(os.getppid()), socket.socket(fileno=link)
    _ignore(signal.SIGTERM, signal.SIGHUP)  # a scheduler may signal every process of a job
    with adopting_orphans():
        client = subprocess.Popen(command, pass_fds=[pipe], start_new_session=True)
        os.close(pipe)  # the driver hears the client's end from its other end
        _ignore(signal.SIGINT)  # until here one ends the keeper, and the client with it
        if driver is not None:
            _wait(client, driven, driver, frozen_s)
        code = client.poll()
        with suppress(OSError):  # the driver is gone
            driven.sendall(f"{FROZEN if code is None else code}\n".encode())
        end_all_below(set())
        deadline_s = time.monotonic() + patience_s
        while not _is_gone(driven) and time.monotonic() < deadline_s:
            continue
        sweep()
        _remove_half_written(Path(output))
    os._exit(0)


def _ignore(*numbers: signal.Signals) -> None:
    """Not with SIG_IGN, which the client would inherit."""
    for number in numbers:
        signal.signal(number, lambda number, frame: None)


def _wait(client: subprocess.Popen[bytes], driven: socket.socket, driver: Process, frozen_s: float | None) -> None:
    """Until the client has ended, the driver is gone, or it and a process that the run needs are frozen."""
    looks, idle_s = Looks(), dict[Process, float]()
    while client.poll() is None and not _is_gone(driven):
        if looks.due:
            below = needed(roles_of(process_tree(client.pid))) if idle_s.get(driver) else {}
            idle_s = looks.look([driver, *below])
            if frozen_s is not None and idle_s[driver] > frozen_s and any(idle_s[each] > frozen_s for each in below):
                return


def _is_gone(driven: socket.socket) -> bool:
    """Whether the driver's end is closed. It never sends anything. Takes `_BEAT_S` if not."""
    return bool(select.select([driven], [], [], _BEAT_S)[0])


def _remove_half_written(output: Path) -> None:
    """Unless another process runs in the directory."""
    from fsm.errors import ConfigError
    from runtime.output.directory import RUN, alone_in

    if (output / RUN).is_file():
        with suppress(ConfigError), alone_in(output):
            remove_half_written(output)
