"""Whatever dies or freezes of the driver, its Ray client, their keeper and Ray, nothing is left within the bound.

Real processes, with sleepers in place of Ray's, which never end by themselves.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from runtime.launch.processes import Process, process_of, process_tree
from runtime.launch.supervision.roles import title_of
from runtime.output.directory import RUN
from runtime.output.shared_output import TOKEN_FILE

SOON_S = 240.0
"""Twelve processes of Python start at once."""
CLIENT = """
import json, os, signal, subprocess, sys, time
sys.path[:] = json.loads(sys.argv[2])
from contextlib import contextmanager
from runtime.control.messages import ClientRuns
from runtime.launch import ray_session as module
from runtime.launch.supervision.orphans import session_directory
from runtime.launch.supervision.ray_client import main

@contextmanager
def no_ray(settings):
    with session_directory() as directory:
        yield directory

def run(settings, output, start, listener, began_s, number):
    beats = "while :; do sleep 0.1; done"
    raylet = subprocess.Popen(["raylet", "-c", beats], executable="/bin/sh", start_new_session=True)
    worker = subprocess.Popen(["ray::Worker", "600"], executable="/bin/sleep", start_new_session=True)
    worker.send_signal(signal.SIGSTOP)
    from runtime.launch.supervision.orphans import _own
    (output / "TOKEN").touch()
    (output / "checkpoints" / ".tmp-checkpoint-000001").mkdir(parents=True)
    (output / "session").write_text(str(_own[0]))
    while True:
        listener(ClientRuns())
        time.sleep(0.3)

module.ray_session = no_ray
main(run)
"""
DRIVER = f"""
import sys, time
from pathlib import Path
from runtime.control.messages import Start
from runtime.launch.supervision import attempt as module
from runtime.launch.supervision.ray_client import Assignment
from runtime.settings import load_settings
from tests.runtime.checkpoints.helpers import ORIGIN

module._CODE = {CLIENT.replace("TOKEN", TOKEN_FILE)!r}
settings = load_settings(None, ["cluster.frozen_timeout_s=5", "cluster.shutdown_timeout_s=2"])
start = Start(60, {{}}, ORIGIN, None)
end = module.attempt(Assignment(settings, Path(sys.argv[1]), start, time.monotonic(), 0, []), print)
print(end.infra, flush=True)
"""
KILL, STOP = signal.SIGKILL, signal.SIGSTOP
STRIKES: Mapping[str, list[tuple[str, signal.Signals]]] = {
    "the client stopped, the driver killed": [("client", STOP), ("driver", KILL)],
    "the driver stopped, the client killed": [("driver", STOP), ("client", KILL)],
    "the driver and the client stopped": [("driver", STOP), ("client", STOP)],
    "the driver and the raylet stopped": [("driver", STOP), ("raylet", STOP)],
    "the keeper stopped, the driver killed": [("keeper", STOP), ("driver", KILL)],
    "the keeper killed": [("keeper", KILL)],
}


@dataclass
class Run:
    """A run under way."""

    driver: subprocess.Popen[str]
    output: Path
    processes: dict[str, Process]

    @property
    def left(self) -> list[str]:
        """What is there of it, but for the driver."""
        left = [
            name for name, process in self.processes.items() if process_of(process.pid) == process and name != "driver"
        ]
        there = [Path((self.output / "session").read_text()), self.output / TOKEN_FILE]
        there.append(self.output / "checkpoints" / ".tmp-checkpoint-000001")
        return left + [str(path) for path in there if path.exists()]


@contextmanager
def started(output: Path) -> Iterator[Run]:
    output.mkdir()
    (output / RUN).touch()
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, str(output)], stdout=subprocess.PIPE, text=True)
    run = Run(driver, output, {})
    try:
        yield run
    finally:
        for process in [*map(process_of, process_tree(driver.pid)), *run.processes.values()]:
            if process is not None and process_of(process.pid) == process:
                os.kill(process.pid, signal.SIGKILL)
        driver.communicate()


def named(driver: int) -> dict[str, Process]:
    """The processes of a run."""
    found = {}
    for pid in process_tree(driver):
        title, process = title_of(pid), process_of(pid)
        kinds = {"ray::Worker": "worker", "raylet": "raylet"}
        name = "driver" if pid == driver else kinds.get(title.partition(" ")[0])
        if name is None and "ray_client" in title:
            name = "keeper" if "keeper" in title else "client"
        if process is not None and name is not None:
            found[name] = process
    return found


def wait_until(true: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + SOON_S
    while not true() and time.monotonic() < deadline_s:
        time.sleep(0.1)


def test_nothing_is_left_whatever_dies_or_freezes(tmp_path: Path) -> None:
    with ExitStack() as stack:
        runs = {what: stack.enter_context(started(tmp_path / what)) for what in STRIKES}
        wait_until(lambda: all((run.output / "session").exists() for run in runs.values()))
        for what, run in runs.items():
            run.processes = named(run.driver.pid)
            assert set(run.processes) == {"driver", "keeper", "client", "raylet", "worker"}, what
            for name, number in STRIKES[what]:
                os.kill(run.processes[name].pid, number)
        wait_until(lambda: not any(run.left for run in runs.values()))
        assert {what: run.left for what, run in runs.items() if run.left} == {}
        run = runs["the keeper killed"]
        said, _ = run.driver.communicate(timeout=SOON_S)
    assert f"the run's keeper (process {run.processes['keeper'].pid}) was killed" in said, "and the run is restarted"
