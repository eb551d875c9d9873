"""What the runtime tells its trace: placements, calls, groups, workers; dumps for a stall and on SIGUSR1."""

import os
import queue
import signal
import threading
import time
from pathlib import Path
from typing import Any

from fsm.config.setup import set_up
from fsm.core import Core
from fsm.events import Begin
from runtime.control.messages import Message, Notice
from runtime.control.run_recorder import RunRecorder
from runtime.launch.signals import on_sigusr1
from runtime.metrics.accumulator import StepMeter
from runtime.trace.moment import state_at
from runtime.trace.notes import (
    ActorRestarted,
    AttemptsPlaced,
    CallBegan,
    NoProgress,
    WorkerDied,
    WorkerQuarantined,
    WorkerStarted,
)
from runtime.trace.reader import open_trace
from runtime.trace.records import NoteRecord
from runtime.trace.writer import Trace
from tests.runtime.bookkeeping import config_of
from tests.runtime.trace.helpers import open_for


def recorder_of(trace: Trace, send: Any) -> RunRecorder:
    """A recorder around a core that has begun."""
    setup = set_up(config_of(), 24)
    recorder = RunRecorder(StepMeter(setup.limits, time.monotonic()), (), trace, send)
    recorder.core = Core(setup, observer=recorder.observe)
    recorder.core.apply(Begin())
    return recorder


def test_notes_of_a_run_are_in_its_trace_and_a_stall_dumps_the_memory_once(tmp_path: Path) -> None:
    told: list[Message] = []
    with open_for(tmp_path / "trace.jsonl") as trace:
        recorder = recorder_of(trace, told.append)
        attempts = [recorder.core.book.attempt(g) for g in recorder.core.book.roster.in_order()]
        recorder.note(WorkerStarted("generation-0"))
        recorder.note(AttemptsPlaced("generation-0", tuple(attempts)))
        recorder.worker_lost("generation-0", "killed")
        recorder.note(CallBegan("publish", 0))
        recorder.stalled(600.0, "a rollout")
        recorder.stalled(630.0, "a rollout")
    notes = [record.note for record in open_trace(tmp_path).records() if isinstance(record, NoteRecord)]
    assert notes[:3] == [
        WorkerStarted("generation-0"),
        AttemptsPlaced("generation-0", tuple(attempts)),
        WorkerDied("generation-0", "killed"),
    ]
    assert [note.idle_s for note in notes if isinstance(note, NoProgress)] == [600.0, 630.0]
    assert [path.name for path in tmp_path.glob("*.ring-*")] == ["trace.ring-1.jsonl"]
    assert any(isinstance(message, Notice) and "trace.ring-1.jsonl" in message.text for message in told)
    moment = state_at(open_trace(tmp_path / "trace.ring-1.jsonl"))
    assert [rollout.worker for rollout in moment.vitals.rollouts.values()] == ["generation-0"] * len(attempts)
    assert moment.vitals.calls["publish"][0] == 0
    assert not moment.vitals.workers["generation-0"].alive


def test_a_quarantine_and_a_restart_are_noted_and_told_once(tmp_path: Path) -> None:
    told: list[str] = []

    def tell(message: Message) -> None:
        assert isinstance(message, Notice)
        told.append(message.text)

    with open_for(tmp_path / "trace.jsonl") as trace:
        recorder = recorder_of(trace, tell)
        recorder.worker_started("generation-0")
        recorder.worker_quarantined("generation-0", "its process has not answered for 60 s")
        recorder.worker_lost("generation-0", "its process has not answered for 60 s")
        recorder.actor_restarted("the group store", "store", "it died: killed\nby signal 9")
        recorder.worker_lost("generation-0", "killed")
    notes = [record.note for record in open_trace(tmp_path).records() if isinstance(record, NoteRecord)]
    assert notes[1:4] == [
        WorkerQuarantined("generation-0", "its process has not answered for 60 s"),
        WorkerDied("generation-0", "its process has not answered for 60 s"),
        ActorRestarted("the group store", "it died: killed\nby signal 9"),
    ]
    assert told == [
        "generation worker generation-0 is quarantined, and restarted: its process has not answered for 60 s",
        "the group store is restarted: it died: killed; the groups that it held are lost, and count as unreadable (S5)",
        "generation worker generation-0 died and is restarted: killed",
    ]
    assert recorder.workers_lost == 2


def test_sigusr1_is_answered_away_from_the_main_thread_and_forgotten_afterwards() -> None:
    before = signal.getsignal(signal.SIGUSR1)
    answered: queue.SimpleQueue[threading.Thread] = queue.SimpleQueue()
    with on_sigusr1(lambda: answered.put(threading.current_thread())):
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGUSR1)
            assert answered.get(timeout=10) is not threading.main_thread()
    assert signal.getsignal(signal.SIGUSR1) is before
