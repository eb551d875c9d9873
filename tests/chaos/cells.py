"""One cell of the table of processes: a process, what is done to it, and the phase; and what happened then."""

import os
import re
import signal
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass
from enum import StrEnum
from itertools import product
from pathlib import Path
from typing import Any, Self

from runtime.launch.supervision.roles import Role
from runtime.trace.replay import replay
from tests.chaos.live import (
    LiveRun,
    Phase,
    left_by,
    one_of,
    started,
    summary_of,
    trained_prompts,
    wait_for_phase,
)
from tests.runtime.ray.helpers import adds_up

STEPS = 40
PAUSE_S = 40.0
FROZEN_S = 55.0
"""Above PAUSE_S, so that a process that goes on is not taken for a frozen one."""
SHUTDOWN_S = 20.0
LIMIT_S = 300.0
"""A run that is not over by then is interrupted; one that then does not end hangs."""
SLACK_S = 30.0
DRIVER = "the driver"
"""The process that a user starts; it has no role of its own, since it is the one that looks."""
TELLS = re.compile(r"died|has not run|is restarted|quarantined|nothing was heard|no progress|killed|does not answer")
OVERRIDES = {
    "grpo.max_num_steps": STEPS,
    "checkpointing.every_steps": 3,
    "cluster.frozen_timeout_s": FROZEN_S,
    "cluster.shutdown_timeout_s": SHUTDOWN_S,
    "trace.flush_interval_s": 0.05,
    "generation.max_new_tokens": 16,
    "validation.rollouts_per_prompt": 64,
    "data.delay": "{median_s: 0.4, sigma: 0.2, max_s: 1.0}",
}
"""Slow enough for every phase to be met."""


class Fault(StrEnum):
    """What is done to a process."""

    KILL = "kill -9"
    STOP = "SIGSTOP for ever"
    PAUSE = "SIGSTOP for 40 s"


@dataclass(frozen=True, slots=True)
class Cell:
    """What happened to a run."""

    process: str
    fault: str
    phase: str
    outcome: str
    """The status of the run, or what else became of it."""
    code: int | None
    took_s: float
    """From the fault to the end of the run's last process."""
    told_s: float | None
    """From the fault to the first line about it; None if nobody was told."""
    told: str
    steps: int
    restarts: int
    again: int
    """Steps that were trained again after a restart."""
    balanced: bool | None
    """The balance sheet adds up; None if the run told none."""
    twice: int
    """Prompts that are in two steps of the run as it is in the end."""
    replays: bool
    """The last trace replays."""
    checkpoint: bool
    """There is one to resume from."""
    interrupts: int
    """How many Ctrl-C it took to end it."""
    left: list[str]
    """What it left on the machine."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of_json(cls, value: dict[str, Any]) -> Self:
        return cls(**value)

    @property
    def key(self) -> tuple[str, str, str]:
        return self.process, self.fault, self.phase

    @property
    def bad(self) -> list[str]:
        """What no cell may have."""
        wrong = []
        if self.outcome == "hangs":
            wrong.append("hangs")
        if self.interrupts > 1:
            wrong.append(f"{self.interrupts} interrupts")
        if self.balanced is False:
            wrong.append("the balance sheet does not add up")
        if self.twice:
            wrong.append(f"{self.twice} prompts trained twice")
        return [*wrong, *self.left]


def all_keys() -> list[tuple[str, str, str]]:
    """Every cell of the table, phase by phase, so that a part of them says something of each process."""
    processes = [DRIVER, *Role]
    return [(process, fault, phase) for phase, fault, process in product(Phase, Fault, processes)]


def run_cell(process: str, fault: str, phase: str, folder: Path | None = None) -> Cell:
    """Run it. The run's directory lies in `folder`, and stays there; without one it is removed.

    Raises LookupError if the process, or the run, ended before it could be struck.
    """
    with tempfile.TemporaryDirectory(prefix="chaos-") as made:
        output = (folder or Path(made)) / "run"
        with started(output, overrides=OVERRIDES) as run:
            role = None if process == DRIVER else Role(process)
            pid = one_of(run, role) if role is not None and phase != Phase.START else None
            wait_for_phase(run, Phase(phase))
            pid = one_of(run, role) if pid is None else pid
            return _observe(run, (process, Fault(fault), phase), pid)


def _observe(run: LiveRun, key: tuple[str, Fault, str], pid: int) -> Cell:
    """Strike, wait for the end of every process, and read what the run has told and kept."""
    process, fault, phase = key
    run.look()
    struck_s = time.monotonic()
    try:
        os.kill(pid, signal.SIGKILL if fault is Fault.KILL else signal.SIGSTOP)
    except ProcessLookupError:
        raise LookupError(f"{process} ended by itself") from None
    if fault is Fault.PAUSE:
        run.wait(PAUSE_S)
        _continue(pid)
    if fault is Fault.STOP and process == DRIVER:
        run.wait(FROZEN_S)  # nobody can be told; then the user kills it
        os.kill(pid, signal.SIGKILL)
    code, interrupts = run.wait(LIMIT_S), 0
    while code is None and interrupts < 3:
        run.interrupt()
        code, interrupts = run.wait(SHUTDOWN_S + SLACK_S), interrupts + 1
    left = _left_in_time(run)
    ended_s = time.monotonic()
    summary: dict[str, Any] = summary_of(run.output) or {}
    with run.seen:
        lines = list(zip(run.came_s, run.lines, strict=True))
    told = next(((at, line) for at, line in lines if at >= struck_s and TELLS.search(line)), None)
    trained = Counter(prompt for step in trained_prompts(run.output).values() for prompt in step)
    trace = summary.get("trace")
    return Cell(
        process=process,
        fault=fault,
        phase=phase,
        outcome="hangs" if code is None else str(summary.get("status", "gone")),
        code=code,
        took_s=round(ended_s - struck_s, 1),
        told_s=None if told is None else round(told[0] - struck_s, 1),
        told="" if told is None else told[1],
        steps=int(summary.get("steps", 0)),
        restarts=len(summary.get("run_restarts", ())),
        again=max(0, sum(line.startswith("step ") for _, line in lines) - int(summary.get("steps", 0))),
        balanced=adds_up(summary["balance"]) if summary.get("balance") else None,
        twice=sum(times > 1 for times in trained.values()),
        replays=trace is None or replay(Path(trace)).difference is None,
        checkpoint=any(run.output.glob("checkpoints/checkpoint-*")),
        interrupts=interrupts,
        left=left,
    )


def _left_in_time(run: LiveRun) -> list[str]:
    """What is left after the bound within which everything must be gone."""
    deadline_s = time.monotonic() + SHUTDOWN_S
    while (left := left_by(run)) and time.monotonic() < deadline_s:
        time.sleep(0.2)
    return left


def _continue(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGCONT)
    except ProcessLookupError:
        return  # it was killed meanwhile
