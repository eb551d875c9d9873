"""The records of a run: metrics, the trace's notes, and messages to the process that started the run."""

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fsm.core import AppliedEvent, Core
from fsm.effects import StepClosed
from fsm.events import DeadEndReached, GroupFailed, StallTimeout
from fsm.state import State
from runtime.control.collapse import CollapseWatch
from runtime.control.failures import FailedAttempts
from runtime.control.messages import Listener, Notice, StepDone, ValidationDone
from runtime.evaluation.config import DEFAULT_SET
from runtime.evaluation.figures import figures_of
from runtime.explain.live import AT_THE_END, Standing, standing_of_core
from runtime.files import FileNotWritten, Json, writing
from runtime.generation.engine import LOGITS_NOT_FINITE
from runtime.groups import Evaluation, GroupReceipt
from runtime.metrics.accumulator import StepMeter
from runtime.metrics.writers import Kind, MetricsWriter
from runtime.samples.book import SampleBook
from runtime.trace import notes
from runtime.trace.writer import Trace
from runtime.training.step_metrics import NOT_FINITE_REMEDY, NOTHING_TRAINED_REMEDY, NotFinite, StepMetrics
from runtime.wording import counted


class RunRecorder:
    """Keeps metrics, the trace's notes and the messages to the user, and observes the core. It decides nothing, and no
    method blocks. `core` is set right after construction.
    """

    def __init__(
        self,
        meter: StepMeter,
        writers: Sequence[MetricsWriter],
        trace: Trace,
        send: Listener,
        samples: SampleBook | None = None,
        collapse: CollapseWatch | None = None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """samples: None keeps none. collapse: None watches for none. `now_s`: a simulation's time is virtual."""
        self._now_s = now_s
        self._meter = meter
        self._samples = samples or SampleBook(0)
        self._collapse = collapse
        self._unmetered: list[tuple[AppliedEvent, State, float]] = []
        """Transitions that the meter has not seen yet, with the state after each and the time."""
        self._writers = writers
        self._trace = trace
        self._refused: list[tuple[MetricsWriter, str]] = []
        """Writers whose last metrics or samples the disk refused, and which of the two."""
        self._dumped: State | None = None
        """The state when the trace's memory was last dumped for a stall: a stall is dumped once."""
        self._send = send
        self._began_s = self._progress_s = self._now_s()
        self.core: Core
        self.restart: str | None = None
        """Such as "restart 2 of at most 3"."""
        self._last_step: Json | None = None
        self._is_over = False
        self._ended: notes.RunEnded | None = None
        self.workers_lost = 0
        self._quarantined: set[str] = set()
        """Generation workers whose end the user has heard of."""
        self.failed_attempts = FailedAttempts()
        self.doubted_version: int | None = None
        """The last version under which a generation worker's logits were not finite."""
        self.steps_without_tokens = 0
        self.steps_not_applied = 0
        self.last_checkpoint: Path | None = None
        self.last_close_s: float | None = None
        """When a step last closed and was synced, on the monotonic clock."""
        self._said: set[str] = set()

    def observe(self, transition: AppliedEvent) -> None:
        """Trace a transition of the core, and keep it for the meter."""
        self._trace.observe(transition, self.core)
        self._unmetered.append((transition, self.core.state, self._now_s()))
        if isinstance(transition.event, GroupFailed):
            self.failed_attempts.add(transition.event.error)
            if LOGITS_NOT_FINITE in transition.event.error:
                self.doubted_version = self.core.state.trainer.version
        if isinstance(transition.event, StallTimeout | DeadEndReached):
            self.dump_trace()

    def _catch_up(self) -> StepMeter:
        """The meter, brought up to date. Metering waits until here so that it is not counted as the core's cost."""
        for transition, state, now_s in self._unmetered:
            self._meter.observe(transition, state, now_s)
            self._samples.observe(transition, state.trainer.version)
        self._unmetered.clear()
        return self._meter

    @property
    def trace_cpu_s(self) -> float:
        return self._trace.writing_cpu_s

    def received(self, receipt: GroupReceipt) -> None:
        """The core has just taken the group."""
        self._progress_s = self._now_s()
        self._catch_up().receive(receipt)
        self._samples.receive(receipt)
        self._trace.note(notes.note_of_receipt(receipt))
        if self._collapse is not None and (says := self._collapse.receive(receipt)):
            self._send(Notice(says))

    def note(self, note: notes.Note) -> None:
        self._trace.note(note)

    def late_answer(self) -> None:
        """An answer came for an attempt that was over (D2)."""
        self._catch_up().late_answer()
        self._trace.note(notes.AnswerWasLate())

    def worker_busy(self, worker: str, busy_s: float) -> None:
        """How long a worker has generated since its process started."""
        self._catch_up().worker_busy(worker, busy_s)

    def worker_started(self, worker: str) -> None:
        self._catch_up().worker_started(worker)
        self._trace.note(notes.WorkerStarted(worker))

    def worker_quarantined(self, worker: str, reason: str) -> None:
        """It is killed and restarted: a `worker_lost` follows, of which the user hears no more."""
        self._catch_up().restarted("quarantined")
        self._trace.note(notes.WorkerQuarantined(worker, reason))
        self._send(Notice(f"generation worker {worker} is quarantined, and restarted: {reason}"))
        self._quarantined.add(worker)

    def worker_lost(self, worker: str, reason: str) -> None:
        self.workers_lost += 1
        self._catch_up().worker_lost(worker)
        self._trace.note(notes.WorkerDied(worker, reason))
        if worker in self._quarantined:
            self._quarantined.remove(worker)
        else:
            self._send(death_of_worker(worker, reason))

    def actor_restarted(self, actor: str, what: str, reason: str) -> None:
        """A reward worker or the group store; `what` is one of RESTARTED."""
        self._catch_up().restarted(what)
        self._trace.note(notes.ActorRestarted(actor, reason))
        lost = "; the groups that it held are lost, and count as unreadable (S5)" if what == "store" else ""
        self._send(Notice(f"{actor} is restarted: {reason.splitlines()[0]}{lost}"))

    def trained(self, metrics: StepMetrics) -> None:
        self._catch_up().trained(metrics)

    def nothing_trained(self, step: int, rollouts: int) -> None:
        """Only the first such step is reported, with a remedy; the lines of the steps show the others."""
        self.steps_without_tokens += 1
        if self.steps_without_tokens == 1:
            self._send(
                Notice(
                    f"step {step} trained on no token, and the weights stay unchanged: all its {rollouts} rollouts "
                    "were cut off by a length limit, and loss_fn.overlong_filtering leaves those out of the loss. "
                    f"{NOTHING_TRAINED_REMEDY}; loss_fn.stop_after_steps_without_tokens stops a run after several of "
                    "them"
                )
            )

    def not_applied(self, step: int, why: NotFinite, in_a_row: int) -> None:
        """Of several such steps in a row only the first is reported; the lines of the steps show the others."""
        self.steps_not_applied += 1
        if in_a_row == 1:
            self._send(
                Notice(
                    f"step {step} is not applied, and weights, moments and schedule stay unchanged: not finite are "
                    f"{why}. {NOT_FINITE_REMEDY}"
                )
            )

    def closed(self, step: StepClosed) -> None:
        """A step is closed; its record follows when its weights are synced."""
        self._progress_s = self._now_s()

    def synced(self, version: int) -> None:
        """Every worker runs the version, and the core knows."""
        self.last_close_s = self._now_s()
        self.flush()

    def flush(self) -> None:
        for record in self._catch_up().take():
            line = record.as_json()
            self._write("step", line)
            self._send(StepDone(line))
            self._last_step = line
            self._trace.note(record)
        if lines := self._samples.take():
            step = lines[-1]["step"]
            self._to_writers("samples", lambda writer: writer.show_samples(step, lines))

    def _write(self, kind: Kind, line: Json) -> None:
        marked = {**line, "incarnation": self._samples.incarnation}
        self._to_writers("metrics", lambda writer: writer.write(kind, marked))

    def _to_writers(self, what: str, write: Callable[[MetricsWriter], None]) -> None:
        """Write to every writer. A disk that refuses metrics or samples is reported once, and stops nothing."""
        for writer in self._writers:
            try:
                write(writer)
            except FileNotWritten as error:
                if (writer, what) not in self._refused:
                    self._refused.append((writer, what))
                    self.not_written(error)
            else:
                if (writer, what) in self._refused:
                    self._refused.remove((writer, what))

    def not_written(self, error: FileNotWritten) -> None:
        """The disk refused a file that the run does not depend on."""
        self._send(Notice(str(error)))
        self._trace.note(notes.NotWritten(str(error.path), error.reason))

    def finish(self) -> None:
        """The run is over: write the records that are left."""
        self._is_over = True
        self._catch_up().close(self._now_s())
        self._samples.close()
        self.flush()

    def evaluated(self, step: int, name: str, evaluation: Evaluation) -> None:
        figures = figures_of(evaluation)
        of_set = {} if name == DEFAULT_SET else {"set": name}
        weights = {"start_weight": evaluation.start_weight, "end_weight": evaluation.end_weight}
        when = {"step": step, "time_s": self._now_s() - self._began_s}
        self._write("validation", {**when, **of_set, **figures.metrics(), **weights})
        for notice in evaluation.notices:
            self.said(notice)
        if figures.failures:
            self._send(
                Notice(
                    f"{figures.failures} of {counted(figures.rollouts, 'held-out rollout')}"
                    f"{f' of {name}' if of_set else ''} have no verdict after {counted(step, 'step')}, and count as "
                    f"wrong; one of them: {figures.first_failure}"
                )
            )
        self._send(ValidationDone(step, name, evaluation.accuracy))
        self._trace.note(notes.note_of_evaluation(step, name, evaluation))

    def checkpointed(self, step: int, path: Path) -> None:
        self.last_checkpoint = path
        self._trace.note(notes.Checkpointed(step, str(path)))

    def said(self, text: str) -> None:
        """A line for the user, who sees it once however often it is reported."""
        if text not in self._said:
            self._said.add(text)
            self._send(Notice(text))

    def stalled(self, idle_s: float, waits_for: str) -> None:
        """The watchdog saw no progress (W2)."""
        self._send(Notice(f"no progress for {idle_s:.0f} s: {waits_for}"))
        self._trace.note(notes.NoProgress(idle_s, waits_for))
        self._dump_once()

    def dead_end(self, explanation: str) -> None:
        """The run can never continue, and is kept for a debugger (W2)."""
        kept = "stall_watchdog.on_deadlock is warn, so the run is kept for a debugger"
        self._send(Notice(f"{explanation}. {kept}; Ctrl-C ends it"))
        self._trace.note(notes.NoProgress(self._now_s() - self._progress_s, explanation))
        self._dump_once()

    def _dump_once(self) -> None:
        if self._dumped is not self.core.state:
            self._dumped = self.core.state
            self.dump_trace()

    def ended(self, status: notes.Status, error: str | None, checkpoint: Path | None, model: Path | None) -> None:
        """Note the run's outcome, whose checkpoint and model are on the disk (W3). Once, before the trace is closed."""
        step = self.core.state.trainer.version
        kept = [None if path is None else str(path) for path in (checkpoint, model)]
        self._ended = notes.RunEnded(status, error, step, *kept)
        self._trace.note(self._ended)

    def standing(self) -> Standing:
        """Where the run stands now; writers that serve the latest values (Prometheus) get it too."""
        standing = standing_of_core(self.core, self._last_step, self._now_s() - self._progress_s)
        standing = dataclasses.replace(standing, restart=self.restart)
        if self._is_over:
            standing = dataclasses.replace(standing, status="ending", waits_for=AT_THE_END)
        if self._ended is not None:
            standing = dataclasses.replace(standing, status=self._ended.status, waits_for=self._ended.said)
        line = dataclasses.asdict(standing)
        for writer in self._writers:
            writer.stands(line)
        return standing

    def recent_trace(self) -> bytes:
        """The trace's memory and the state now, in the form of a trace file."""
        return "".join(self._trace.memory()).encode("ascii")

    def dump_trace(self) -> Path | None:
        """Write the trace's memory to a file next to the trace; None if the disk refuses it."""
        try:
            with writing(self._trace.path, "its last records stay in memory (evenstep explain --run)"):
                path = self._trace.dump()
        except FileNotWritten as error:
            self.not_written(error)
            return None
        self._send(Notice(f"the last records are in {path}"))
        return path


@contextmanager
def noted_call(recorder: RunRecorder, call: str, number: int) -> Iterator[None]:
    """Note the begin and, unless it raises, the end of a call that the core doesn't know of."""
    recorder.note(notes.CallBegan(call, number))
    yield
    recorder.note(notes.CallEnded(call, number))


def death_of_worker(worker: str, reason: str) -> Notice:
    """What the user hears of it; before there is a recorder too."""
    return Notice(f"generation worker {worker} died and is restarted: {reason.splitlines()[0]}")
