"""Measure the cost of the trace: microseconds an event on the control path and on its thread, and bytes on disk.

The real core runs under the default configuration (8 prompts × 16, ready_first, dynamic sampling) in a world that
answers at random: groups finish out of order, some are filtered, some attempts fail. The trace gets every note that the
runtime writes. `--generate FILE` writes such a trace, for measuring its readers:

    python benchmarks/trace_cost.py --generate /tmp/trace.jsonl --records 1000000
    time evenstep trace /tmp/trace.jsonl --step 5000
"""

import argparse
import gc
import gzip
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fsm.config.setup import set_up
from fsm.core import AppliedEvent, Core
from fsm.effects import Effect, FinishStep, StartBackoff, StartRollout, SyncWeights, TrainChunk
from fsm.events import (
    Attempt,
    BackoffOver,
    Begin,
    ChunkTrained,
    Event,
    FailureKind,
    GroupFailed,
    GroupFinished,
    GroupRecord,
    StepFinished,
    SyncFinished,
)
from fsm.state import is_over
from runtime.metrics.step_record import StepRecord
from runtime.settings import Settings, load_settings
from runtime.trace.files import make_header
from runtime.trace.notes import AttemptsPlaced, CallBegan, CallEnded, GroupReceived, WorkerStarted
from runtime.trace.writer import Trace, TraceConfig

NUM_PROMPTS = 1_000_000_000
SIBLINGS = 16
SETTINGS = load_settings(None, ["grpo.max_num_steps=null"])


class TracedRun:
    """The core under some settings in a world that answers at random, and its trace."""

    def __init__(self, settings: Settings, trace: Trace, workers: Sequence[str]) -> None:
        self.trace = trace
        self.chance = random.Random(0)
        self.observe_s: list[float] = []
        for worker in workers:
            trace.note(WorkerStarted(worker))
        self.core = Core(set_up(settings, NUM_PROMPTS), observer=self._observe)

    def _observe(self, transition: AppliedEvent) -> None:
        began = time.perf_counter()
        self.trace.observe(transition, self.core)
        self.observe_s.append(time.perf_counter() - began)

    def finish(self, attempt: Attempt, worker: str, correct: int, tokens: int, longest: int, took_s: float) -> None:
        """A group finishes: its event, and the note of its receipt. Raises LateAnswer."""
        mean = correct / SIBLINGS
        record = GroupRecord(attempt.prompt, tokens, mean, (mean * (1 - mean)) ** 0.5)
        self.apply(GroupFinished(attempt, correct in (0, SIBLINGS), record))
        weight = self.core.state.trainer.version
        received = (SIBLINGS, correct, longest, 0, weight, round(took_s, 3), 0.01)
        self.trace.note(GroupReceived(attempt.prompt, worker, *received))

    def apply(self, event: Event) -> None:
        """Apply an event and handle its effects."""
        raise NotImplementedError

    def metrics(self, step: int) -> StepRecord:
        """Made-up metrics of a step."""
        values: dict[str, Any] = {name: self.chance.random() for name in StepRecord.__slots__}
        values |= {"step": step, "gate": "open", "worker_idle_share": {"generation-0": self.chance.random()}}
        whole = [name for name in values if name.endswith("_groups")] + ["selected", "charged", "short", "ready"]
        return StepRecord(**{**values, **dict.fromkeys(whole, 8)})


class DefaultRun(TracedRun):
    """The default run, without Ray."""

    def __init__(self, trace: Trace) -> None:
        super().__init__(SETTINGS, trace, ["generation-0"])
        self.running: list[Attempt] = []
        self.asked: list[Effect] = []
        self.apply(Begin())

    def apply(self, event: Event) -> None:
        """Keep the effects for later turns."""
        started: list[Attempt] = []
        for effect in self.core.apply(event):
            match effect:
                case StartRollout(attempt):
                    started.append(attempt)
                case StartBackoff() | TrainChunk() | FinishStep() | SyncWeights():
                    self.asked.append(effect)
        if started:
            self.trace.note(AttemptsPlaced("generation-0", tuple(started)))
            self.running += started

    def turn(self) -> None:
        """One event."""
        if self.asked and (not self.running or self.chance.random() < 0.3):
            self._carry(self.asked.pop(0))
        elif self.running:
            self._answer(self.running.pop(self.chance.randrange(min(len(self.running), 8))))

    def _answer(self, attempt: Attempt) -> None:
        what = self.chance.random()
        if what < 0.01:
            self.apply(GroupFailed(attempt, FailureKind.INFRA, "generation-0 died: it was killed"))
            return
        correct = SIBLINGS if what < 0.3 else self.chance.randrange(1, SIBLINGS)
        tokens, longest = self.chance.randrange(60, 140), self.chance.randrange(8, 10)
        self.finish(attempt, "generation-0", correct, tokens, longest, self.chance.random())

    def _carry(self, effect: Effect) -> None:
        match effect:
            case StartBackoff(attempt):
                self.apply(BackoffOver(attempt))
            case TrainChunk(_, chunk):
                self.apply(ChunkTrained(chunk))
            case FinishStep(step):
                self.apply(StepFinished(step))
            case SyncWeights(version):
                for call in ("publish", "load"):
                    self.trace.note(CallBegan(call, version))
                    self.trace.note(CallEnded(call, version))
                self.apply(SyncFinished(version))
                self.trace.note(self.metrics(version - 1))


def write(path: Path, records: int, config: TraceConfig) -> DefaultRun:
    """Write a trace of at least this many records."""
    header = make_header(SETTINGS, num_prompts=NUM_PROMPTS, seeds={"run": 0})
    with Trace(path, header, config) as trace:
        run = DefaultRun(trace)
        while trace.records < records and not is_over(run.core.state):
            run.turn()
    return run


def measure(records: int) -> None:
    """Print the figures."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.jsonl"
        header = make_header(SETTINGS, num_prompts=NUM_PROMPTS, seeds={"run": 0})
        quiet = TraceConfig(flush_interval_s=1.0, max_bytes=None)
        trace = Trace(path, header, quiet)
        trace._over.set()  # stop the thread, to do and measure its work here
        trace._thread.join()
        run = DefaultRun(trace)
        thread_s = 0.0
        gc.disable()
        while trace.records < records:
            for _ in range(1000):
                run.turn()
            began = time.thread_time()
            trace.flush()
            thread_s += time.thread_time() - began
        gc.enable()
        trace.close()
        events, raw = len(run.observe_s), path.read_bytes()
        packed = len(gzip.compress(raw, 6))
    costs_us = sorted(cost * 1e6 for cost in run.observe_s)
    print(f"{events:,} events, {trace.records:,} records (notes and snapshots included)")
    print(
        f"control path   median {statistics.median(costs_us):.2f} µs an event, mean {statistics.mean(costs_us):.2f}, "
        f"99th percentile {costs_us[int(len(costs_us) * 0.99)]:.2f} (snapshots included)"
    )
    print(f"thread         {thread_s / events * 1e6:.1f} µs an event, {thread_s / trace.records * 1e6:.1f} a record")
    print(f"on disk        {len(raw) / events:.0f} bytes an event, {len(raw) / trace.records:.0f} a record")
    print(f"compressed     {packed / events:.0f} bytes an event, {packed / trace.records:.0f} a record")


def main() -> None:
    """Measure, or write a trace."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--generate", type=Path, help="write a trace to this file instead")
    parser.add_argument("--max-bytes", type=int, help="rotate it at this size (default: never)")
    options = parser.parse_args()
    if options.generate is None:
        measure(options.records)
        return
    began = time.monotonic()
    run = write(options.generate, options.records, TraceConfig(max_bytes=options.max_bytes))
    version = run.core.state.trainer.version
    print(f"{options.generate}: {options.records:,} records, {version:,} steps, {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
