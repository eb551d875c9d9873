"""The records of a run: metrics, and messages to the process that started it."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from fsm.core import Core, Transition
from fsm.effects import ClosedStep
from fsm.events import Attempt, StallTimeout
from fsm.state import State
from runtime.explaining.live import Standing, standing_of_core
from runtime.generation.evaluation import Evaluation
from runtime.groups import GroupReceipt
from runtime.messages import Json, Message, Notice, StepDone, Validated
from runtime.metric_writers import MetricsWriter
from runtime.metrics import StepMeter
from runtime.tracing.notes import (
    AttemptsPlaced,
    CallBegan,
    CallEnded,
    Checkpointed,
    LateAnswer,
    NoProgress,
    WorkerDied,
    WorkerStarted,
    note_of_evaluation,
    note_of_receipt,
)
from runtime.tracing.writer import Trace
from runtime.training.step_metrics import StepMetrics


class RunRecorder:
    """The Recorder of a real run. It is also the core's observer, once it has been given the core."""

    def __init__(
        self,
        meter: StepMeter,
        writers: Sequence[MetricsWriter],
        trace: Trace,
        send: Callable[[Message], None],
    ) -> None:
        self._meter = meter
        self._unmetered: list[tuple[Transition, State, float]] = []
        """Transitions that the meter has not seen, with the state after each and the time."""
        self._writers = writers
        self._trace = trace
        self._dumped: State | None = None
        """The state when the trace's memory was last dumped for a stall: a stall is dumped once."""
        self._send = send
        self._began_s = self._progress_s = time.monotonic()
        self.core: Core
        self._last_step: Json | None = None
        """The record of the step that closed last."""
        self.workers_lost = 0
        self.last_checkpoint: Path | None = None
        self.last_close_s: float | None = None
        """When a step last closed and was synced, on the monotonic clock."""
        self._said: set[str] = set()

    def observe(self, transition: Transition) -> None:
        """The core's observer."""
        self._trace.observe(transition, self.core)
        self._unmetered.append((transition, self.core.state, time.monotonic()))
        if type(transition.event) is StallTimeout:
            self.dump_trace()

    def _catch_up(self) -> StepMeter:
        """The meter, with every transition in it so far. Metering is no part of what the core costs."""
        for transition, state, now_s in self._unmetered:
            self._meter.observe(transition, state, now_s)
        self._unmetered.clear()
        return self._meter

    @property
    def trace_cpu_s(self) -> float:
        """CPU time of the thread that writes the trace."""
        return self._trace.writing_cpu_s

    def received(self, receipt: GroupReceipt) -> None:
        """See Recorder."""
        self._progress_s = time.monotonic()
        self._catch_up().receive(receipt)
        self._trace.note(note_of_receipt(receipt))

    def placed(self, worker: str, attempts: Sequence[Attempt]) -> None:
        """See Recorder."""
        self._trace.note(AttemptsPlaced(worker, tuple(attempts)))

    def late_answer(self) -> None:
        """See Recorder."""
        self._catch_up().late_answer()
        self._trace.note(LateAnswer())

    def worker_busy(self, worker: str, busy_s: float) -> None:
        """See Recorder."""
        self._catch_up().worker_busy(worker, busy_s)

    def worker_started(self, worker: str) -> None:
        """See Recorder."""
        self._trace.note(WorkerStarted(worker))

    def worker_lost(self, worker: str, reason: str) -> None:
        """See Recorder."""
        self.workers_lost += 1
        self._trace.note(WorkerDied(worker, reason))
        self._send(Notice(f"generation worker {worker} died and is made anew: {reason.splitlines()[0]}"))

    def call_began(self, call: str, number: int) -> None:
        """See Recorder."""
        self._trace.note(CallBegan(call, number))

    def call_ended(self, call: str, number: int) -> None:
        """See Recorder."""
        self._trace.note(CallEnded(call, number))

    def trained(self, metrics: StepMetrics) -> None:
        """See Recorder."""
        self._catch_up().trained(metrics)

    def closed(self, step: ClosedStep) -> None:
        """See Recorder; its record follows when its weights are synced."""
        self._progress_s = time.monotonic()

    def synced(self, version: int) -> None:
        """See Recorder."""
        self.last_close_s = time.monotonic()
        self.flush()

    def flush(self) -> None:
        """Write the records that are complete."""
        for record in self._catch_up().take():
            line = record.as_json()
            for writer in self._writers:
                writer.write("step", line)
            self._send(StepDone(line))
            self._last_step = line
            self._trace.note(record)

    def finish(self) -> None:
        """The run is over."""
        self._catch_up().close(time.monotonic())
        self.flush()

    def evaluated(self, step: int, evaluation: Evaluation) -> None:
        """See Recorder."""
        line = {
            "step": step,
            "time_s": time.monotonic() - self._began_s,
            "accuracy": evaluation.accuracy,
            "mean_reward": evaluation.mean_reward,
            "rollouts": evaluation.rollouts,
            "start_weight": evaluation.start_weight,
            "end_weight": evaluation.end_weight,
            "without_verdict": evaluation.without_verdict,
        }
        for writer in self._writers:
            writer.write("validation", line)
        for notice in evaluation.notices:
            self.said(notice)
        if evaluation.without_verdict:
            self._send(
                Notice(
                    f"{evaluation.without_verdict} of {evaluation.rollouts} held-out rollouts have no verdict after "
                    f"step {step}, and count as wrong; one of them: {evaluation.first_failure}"
                )
            )
        self._send(Validated(step, evaluation.accuracy))
        self._trace.note(note_of_evaluation(step, evaluation))

    def checkpointed(self, step: int, path: Path) -> None:
        """See Recorder."""
        self.last_checkpoint = path
        self._trace.note(Checkpointed(step, str(path)))

    def said(self, text: str) -> None:
        """See Recorder."""
        if text not in self._said:
            self._said.add(text)
            self._send(Notice(text))

    def stalled(self, idle_s: float, waits_for: str) -> None:
        """See Recorder."""
        self._send(Notice(f"no progress for {idle_s:.0f} s: {waits_for}"))
        self._trace.note(NoProgress(idle_s, waits_for))
        if self._dumped is not self.core.state:
            self._dumped = self.core.state
            self.dump_trace()

    def standing(self) -> Standing:
        """Where the run stands; writers that serve the latest values are told too."""
        standing = standing_of_core(self.core, self._last_step, time.monotonic() - self._progress_s)
        line = dataclasses.asdict(standing)
        for writer in self._writers:
            writer.stands(line)
        return standing

    def recent_trace(self) -> bytes:
        """The trace's memory and the state as of now, as a trace file has them."""
        path = self._trace.dump()
        try:
            return path.read_bytes()
        finally:
            path.unlink()

    def dump_trace(self) -> Path:
        """Write the trace's memory to a file beside it, and say where."""
        path = self._trace.dump()
        self._send(Notice(f"the last records are in {path}"))
        return path
