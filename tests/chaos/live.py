"""A real run to which something is done: its processes by role, its phases, and what it leaves on the machine.

    output = Path("runs/chaos")
    with started(output, overrides={"grpo.max_num_steps": 12}) as run:
        wait_for_phase(run, Phase.TRAINING)
        os.kill(one_of(run, Role.TRAINER), signal.SIGKILL)
        code = run.process.wait(240)
    assert left_by(run) == []

`python -m tests.chaos.table` does that for every process, signal and phase, and writes a document.
"""

import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from fsm.effects import StepClosed, TrainChunk
from fsm.events import ClaimUnreadable
from runtime.checkpoints.checkpoint import CHECKPOINTS
from runtime.launch.processes import Process, process_of, process_tree
from runtime.launch.supervision.orphans import SESSIONS
from runtime.launch.supervision.roles import Role, roles_of, title_of
from runtime.output.shared_output import TOKEN_FILE
from runtime.trace.reader import open_trace
from runtime.trace.records import TransitionRecord
from tests.runtime.ends.helpers import COMMAND, SMALL, Run

CLIENT, KEEPER = "ray_client", "supervision.keeper"
"""In the command line of the driver's Ray client; in that of its parent, which has the client's too."""
SHARED_MEMORY = Path("/dev/shm")
FOUND_S = 120.0
"""How long a process or a phase may take to come."""


class Phase(StrEnum):
    """Where a run is."""

    START = "start"
    VALIDATION = "validation"
    GENERATION = "generation"
    TRAINING = "training"
    SYNC = "sync"
    CHECKPOINT = "checkpoint"
    END = "end"


LINES: Mapping[Phase, tuple[str, int]] = {
    Phase.START: ("loading the model", 1),
    Phase.VALIDATION: ("measuring accuracy", 1),
    Phase.GENERATION: ("^step 3 ", 1),
    Phase.TRAINING: ("^step 3 ", 1),
    Phase.SYNC: ("^step 3 ", 1),
    Phase.CHECKPOINT: ("^step 3 ", 1),
    Phase.END: ("measuring accuracy", 2),
}
"""What a run says in or before a phase, and how often."""
CALLS = {
    Phase.GENERATION: r"ray::GenerationWorker\.exchange",
    Phase.TRAINING: r"ray::TrainerRank\.(accumulate|finish_step)",
    Phase.SYNC: r"ray::GenerationWorker\.load_weights",
    Phase.CHECKPOINT: r"ray::TrainerRank\.(copy_state|write_checkpoint)",
}
"""What an actor's process is called in a phase."""


@dataclass
class LiveRun(Run):
    """A run under way, and when each of its lines came."""

    output: Path = Path()
    came_s: list[float] = field(default_factory=list)
    """When each line came, on the monotonic clock."""
    seen: threading.Condition = field(default_factory=threading.Condition)
    shared_before: frozenset[str] = frozenset()
    sessions_before: frozenset[str] = frozenset()
    known: set[Process] = field(default_factory=set)
    """All processes that were seen of it."""

    def note(self, line: str) -> None:
        self.lines.append(line)
        self.came_s.append(time.monotonic())

    def look(self) -> list[int]:
        """The pids of its processes now, which are remembered."""
        tree = process_tree(self.process.pid)
        self.known |= {process for pid in tree if (process := process_of(pid)) is not None}
        return tree

    def wait(self, limit_s: float) -> int | None:
        """The exit code; None if it has not ended in time. Its processes are remembered meanwhile."""
        deadline_s = time.monotonic() + limit_s
        while time.monotonic() < deadline_s:
            self.look()
            try:
                return self.process.wait(0.5)
            except subprocess.TimeoutExpired:
                continue
        return None


@contextmanager
def started(
    output: Path, arguments: Sequence[str] = (), overrides: Mapping[str, object] | None = None
) -> Iterator[LiveRun]:
    """A small run of the command line. What is left of it at the end of the block is killed."""
    command = [*COMMAND, "--output", str(output), "--summary", str(output.with_suffix(".json")), *arguments]
    for each in [*SMALL, *(f"{key}={value}" for key, value in (overrides or {}).items())]:
        command += ["--set", each]
    shared, sessions = _names(SHARED_MEMORY), _sessions()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    run = LiveRun(process, output=output, shared_before=shared, sessions_before=sessions)
    reader = threading.Thread(target=run.read, daemon=True)
    reader.start()
    try:
        yield run
    finally:
        for pid in run.look():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for left in run.known:
            if process_of(left.pid) == left:
                with suppress(ProcessLookupError):
                    os.kill(left.pid, signal.SIGKILL)
        process.wait()
        reader.join(FOUND_S)
        assert process.stdout is not None
        process.stdout.close()


def wait_for_phase(run: LiveRun, phase: Phase) -> None:
    """Return once a run is in a phase."""
    run.wait_for(*LINES[phase])
    if phase in CALLS:
        wait_for_call(run, phase)


def wait_for_call(run: LiveRun, phase: Phase) -> None:
    """Return once an actor is in a call of a phase. Raises LookupError if the run ends, or it takes too long."""
    actors: list[int] = []
    looked_s = 0.0

    def there() -> bool:
        nonlocal looked_s
        if time.monotonic() - looked_s > 1.0:  # calls are short, and looking for all processes takes longer
            actors[:] = [pid for pid in run.look() if title_of(pid).startswith("ray::")]
            looked_s = time.monotonic()
        return any(re.match(CALLS[phase], title_of(pid)) for pid in actors)

    _until(run, there, f"a call in {phase}")


def one_of(run: LiveRun, role: Role | None) -> int:
    """The pid of a process of a role, as soon as there is one; of the driver for None."""
    if role is None:
        return run.process.pid
    found: list[int] = []

    def there() -> bool:
        tree = run.look()
        client = next((pid for pid in tree[1:] if CLIENT in title_of(pid) and KEEPER not in title_of(pid)), None)
        if client is not None:
            roles = roles_of(process_tree(client))
            found.extend(process.pid for process, each in roles.items() if each is role)
        return bool(found)

    _until(run, there, str(role))
    return found[0]


def _until(run: LiveRun, there: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + FOUND_S
    while not there():
        if run.process.poll() is not None or time.monotonic() > deadline_s:
            raise LookupError(f"{what} was not found in:\n" + "\n".join(run.lines[-20:]))
        time.sleep(0.002)


def left_by(run: LiveRun) -> list[str]:
    """What a run that is over has left on the machine: processes, files of Ray, shared memory, half-written files."""
    left = [f"process {each.pid}: {title_of(each.pid)[:80]}" for each in run.known if process_of(each.pid) == each]
    left += sorted(f"{SHARED_MEMORY / name}" for name in _names(SHARED_MEMORY) - run.shared_before if "plasma" in name)
    left += sorted(f"{SESSIONS / name}" for name in _sessions() - run.sessions_before if _was_of(run, name))
    folders = (run.output, run.output / CHECKPOINTS)
    hidden = [path for folder in folders if folder.is_dir() for path in folder.glob(".*") if path.is_dir()]
    left += [str(path.relative_to(run.output)) for path in hidden]
    left += [TOKEN_FILE] if (run.output / TOKEN_FILE).exists() else []
    return left


def _was_of(run: LiveRun, session: str) -> bool:
    """Other runs on this machine have sessions too: Ray names a session after the pid of the process that began it."""
    pids = {each.pid for each in run.known}
    return any(int(path.name.rpartition("_")[2]) in pids for path in (SESSIONS / session).glob("session_2*_*"))


def _names(folder: Path) -> frozenset[str]:
    return frozenset(path.name for path in folder.iterdir()) if folder.is_dir() else frozenset()


def _sessions() -> frozenset[str]:
    return frozenset(path.name for path in SESSIONS.glob("es-*"))


def trained_prompts(output: Path) -> dict[int, tuple[int, ...]]:
    """The prompts of each closed step of a run, from all its traces.

    A step that was trained again counts as it was last. Steps that a process closed and did not write to its trace
    before it died are missing.
    """
    steps: dict[int, tuple[int, ...]] = {}
    for path in sorted(output.glob("trace*.jsonl"), key=lambda path: (len(path.name), path.name)):
        trace = open_trace(path)
        snapshot = trace.header["snapshot"]
        version = 0 if snapshot is None else snapshot["state"]["trainer"][1]
        steps = {step: prompts for step, prompts in steps.items() if step < version}  # the others are undone (C2)
        begun: dict[int, dict[int, None]] = {}
        for record in trace.records():
            if not isinstance(record, TransitionRecord):
                continue
            event, _, effects = record.transition
            if isinstance(event, ClaimUnreadable):
                for prompts in begun.values():
                    prompts.pop(event.prompt, None)
            for effect in effects:
                if isinstance(effect, TrainChunk):
                    begun.setdefault(effect.step, {}).update((group.prompt, None) for group in effect.groups)
                elif isinstance(effect, StepClosed):
                    steps[effect.step] = tuple(begun.pop(effect.step, {}))
    return steps


def summary_of(output: Path) -> dict[str, object] | None:
    """The summary that a run wrote; None if it wrote none."""
    path = output.with_suffix(".json")
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None
