"""Runs of the command line that end early: where a run is at a moment, what is done to it, and what it leaves."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runtime.launch.processes import process_tree

HEARS_SIGINT = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
"""Whoever started the tests may ignore it, as a shell does for what it runs in the background."""
COMMAND = [sys.executable, "-u", "-c", f"{HEARS_SIGINT}; from runtime.cli.entry import main; main()", "train"]
SMALL = [
    "grpo.num_prompts_per_step=4",
    "grpo.num_generations_per_prompt=8",
    "grpo.use_dynamic_sampling=false",
    "async_rl.rollout_failure.on_dropped_prompt=shrink",
    "data.task={name: reverse, min_length: 2, max_length: 4, letters: 4}",
    "data.validation_size=16",
    "generation.max_new_tokens=8",
    "validation.every_steps=null",
    "warmup.steps=1",
    "cluster.shutdown_timeout_s=20",
]
SHUTDOWN_S = 20.0
SLACK_S = 10.0
"""Of a machine that does other things too: Python's own end, and this test's looks."""
LIMIT_S = 240.0
"""A run that takes longer hangs."""


@dataclass
class Run:
    """A run of the command line under way."""

    process: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)
    seen: threading.Condition = field(default_factory=threading.Condition)
    is_read: bool = False
    """No more lines come."""

    def read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self.seen:
                self.note(line.rstrip("\n"))
                self.seen.notify_all()
        with self.seen:
            self.is_read = True
            self.seen.notify_all()

    def note(self, line: str) -> None:
        """A line has come."""
        self.lines.append(line)

    def wait_for(self, pattern: str, times: int = 1) -> None:
        """So many lines that match; those that were there before count."""

        def found() -> bool:
            return sum(re.search(pattern, line) is not None for line in self.lines) >= times

        with self.seen:
            self.seen.wait_for(lambda: found() or self.is_read, LIMIT_S)
            assert found(), f"no line has {pattern!r} in:\n" + "\n".join(self.lines)

    def actor(self, title: str) -> int:
        """The pid of the process whose title has a text, as Ray gives them, as soon as there is one."""
        deadline_s = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline_s:
            for pid in process_tree(self.process.pid):
                if title in title_of(pid):
                    return pid
            assert self.process.poll() is None, "\n".join(self.lines)
        raise AssertionError(f"no process is {title}")

    def stop_actor(self, title: str) -> None:
        """It answers nobody from now on."""
        os.kill(self.actor(title), signal.SIGSTOP)

    def interrupt(self) -> None:
        """Ctrl-C, as a terminal sends it: to every process of its group."""
        os.killpg(self.process.pid, signal.SIGINT)


@dataclass(frozen=True)
class Ended:
    """What a run left."""

    code: int
    text: str
    summary: dict[str, Any] | None
    took_s: float
    """From what was done to it, to the end of its process."""
    left: list[str]
    """Titles of its processes that are still there."""


def train(
    output: Path,
    do: Callable[[Run], None] = lambda run: None,
    *arguments: str,
    **overrides: object,
) -> Ended:
    """Run to the end, and do something to it on the way. Keys have `__` for a dot."""
    given = [*SMALL, *(f"{key.replace('__', '.')}={value}" for key, value in overrides.items())]
    summary = output.with_suffix(".json")
    summary.unlink(missing_ok=True)
    command = [*COMMAND, "--output", str(output), "--summary", str(summary), *arguments]
    for each in given:
        command += ["--set", each]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    run = Run(process)
    reader = threading.Thread(target=run.read, daemon=True)
    reader.start()
    try:
        do(run)
        there = process_tree(process.pid)
        done_s = time.monotonic()
        code = process.wait(LIMIT_S)
        took_s = time.monotonic() - done_s
        reader.join(SLACK_S)
    except BaseException:
        for pid in process_tree(process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        raise
    finally:
        assert process.stdout is not None
        process.stdout.close()
    left = [title for pid in there if (title := title_of(pid))]
    value = json.loads(summary.read_text(encoding="utf-8")) if summary.exists() else None
    return Ended(code, "\n".join(run.lines), value, took_s, left)


def title_of(pid: int) -> str:
    """The command line of a process; nothing for one that has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""
