"""Measure how long a report of a thousand steps and a hundred thousand groups takes to make, open and navigate.

The real core runs on a simulated clock with eight workers of twenty rollouts each, whose durations have a long tail. A
fifth of the groups is filtered, and some attempts fail. A new headless chromium opens the page from its file each time.
"opened" is the time from loading until all charts are drawn. "moving" zooms and pans the timeline once a frame, with
all groups in view and close up.

    pip install playwright && apt-get install chromium
    python benchmarks/report_open.py --keep /tmp/large
"""

import argparse
import heapq
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from trace_cost import NUM_PROMPTS, SIBLINGS, TracedRun

from fsm.effects import FinishStep, StartBackoff, StartRollout, SyncWeights, TrainChunk
from fsm.errors import LateAnswer
from fsm.events import (
    Attempt,
    BackoffOver,
    Begin,
    ChunkTrained,
    Event,
    FailureKind,
    GroupFailed,
    StepFinished,
    SyncFinished,
)
from fsm.state import is_over
from runtime.report.collect import collect
from runtime.report.page import page_of, verdict_of
from runtime.report.samples import samples_beside
from runtime.settings import Settings, load_settings
from runtime.trace import writer
from runtime.trace.files import make_header
from runtime.trace.notes import AttemptsPlaced, CallBegan, CallEnded
from runtime.trace.reader import open_trace
from runtime.trace.writer import TraceConfig
from specs.checker.closing import outlook

WORKERS = tuple(f"generation-{number}" for number in range(8))
FRAMES = 120
_MOVE = """
async ([name, keys, frames]) => {
  const plot = document.querySelector(`.plot[aria-label^="${name}"]`), took = [];
  plot.scrollIntoView({ block: "center" });
  const frame = () => new Promise((resolve) => requestAnimationFrame(() => resolve(performance.now())));
  let before = await frame();
  for (let each = 0; each < frames; each++) {
    const key = keys[each % keys.length], shiftKey = key.startsWith("Shift");
    plot.dispatchEvent(new KeyboardEvent("keydown", { key: key.replace("Shift", ""), shiftKey }));
    const now = await frame();
    took.push(now - before);
    before = now;
  }
  return took;
}
"""


class SimulatedRun(TracedRun):
    """A run on a simulated clock."""

    def __init__(self, settings: Settings, trace: writer.Trace, clock: list[float]) -> None:
        super().__init__(settings, trace, WORKERS)
        self.clock = clock
        self.due: list[tuple[float, int, Callable[[], None]]] = []
        self.numbers = 0
        self.busy = dict.fromkeys(WORKERS, 0)

    def run(self) -> None:
        """Run to the end."""
        self.apply(Begin())
        while self.due and not is_over(self.core.state):
            when, _, act = heapq.heappop(self.due)
            self.clock[0] = max(self.clock[0], when)
            act()

    def _after(self, delay_s: float, act: Callable[..., None], *arguments: Any) -> None:
        self.numbers += 1
        heapq.heappush(self.due, (self.clock[0] + delay_s, self.numbers, partial(act, *arguments)))

    def apply(self, event: Event) -> None:
        """Schedule the answers to the effects."""
        for effect in self.core.apply(event):
            match effect:
                case StartRollout(attempt):
                    self._start(attempt)
                case StartBackoff(attempt, delay_s):
                    self._after(delay_s, self.apply, BackoffOver(attempt))
                case TrainChunk(_, chunk, groups):
                    self._after(0.05 * len(groups), self.apply, ChunkTrained(chunk))
                case FinishStep(step):
                    self._after(0.6, self.apply, StepFinished(step))
                case SyncWeights(version):
                    self.trace.note(CallBegan("publish", version))
                    self._after(0.3, self.trace.note, CallEnded("publish", version))
                    self._after(0.3, self.trace.note, CallBegan("load", version))
                    self._after(0.9, self._synced, version)

    def _start(self, attempt: Attempt) -> None:
        worker = min(WORKERS, key=lambda name: self.busy[name])
        self.busy[worker] += 1
        self.trace.note(AttemptsPlaced(worker, (attempt,)))
        took_s = self.chance.lognormvariate(1.2, 0.6)
        self._after(took_s, self._answer, attempt, worker, took_s)

    def _answer(self, attempt: Attempt, worker: str, took_s: float) -> None:
        self.busy[worker] -= 1
        what = self.chance.random()
        with suppress(LateAnswer):
            if what < 0.01:
                self.apply(GroupFailed(attempt, FailureKind.INFRA, f"{worker}: the engine's process was killed"))
                return
            correct = self.chance.choice((0, SIBLINGS)) if what < 0.2 else self.chance.randrange(1, SIBLINGS)
            self.finish(attempt, worker, correct, int(SIBLINGS * took_s * 60), int(took_s * 90), took_s)

    def _synced(self, version: int) -> None:
        self.trace.note(CallEnded("load", version))
        self.apply(SyncFinished(version))
        self.trace.note(self.metrics(version - 1))


def write(path: Path, steps: int, groups_per_step: int) -> None:
    """Write a trace of this many steps."""
    clock = [0.0]
    began = time.time()
    changes = [f"grpo.num_prompts_per_step={groups_per_step}", f"grpo.max_num_steps={steps}"]
    settings = load_settings(None, [*changes, "async_rl.rollout_failure.replacement_reserve_prompts=64"])
    times = SimpleNamespace(monotonic=lambda: clock[0], time=lambda: began + clock[0], thread_time=time.thread_time)
    header = make_header(settings, num_prompts=NUM_PROMPTS, seeds={"run": 0})
    with patch.object(writer, "time", times), writer.Trace(path, header, TraceConfig(max_bytes=None)) as trace:
        SimulatedRun(settings, trace, clock).run()


def make(trace: Path, output: Path) -> None:
    """Write the report, and print the time it took."""
    began_s = time.process_time()
    opened = open_trace(trace)
    told = collect(opened)
    collected_s = time.process_time() - began_s
    page = page_of(told, verdict_of(opened, outlook), samples_beside(opened.path))
    output.write_text(page, encoding="ascii")
    made_s = time.process_time() - began_s
    print(
        f"trace   {trace.stat().st_size / 1e6:.0f} MB, {told.records:,} records: {len(told.steps):,} steps, "
        f"{len(told.attempts.rows):,} attempts of groups, {len(told.counters.rows):,} states of the counters"
    )
    print(f"page    {len(page) / 1e6:.1f} MB, made in {made_s:.1f} s of CPU time (reading {collected_s:.1f} s)")


def open_and_move(output: Path, times: int) -> None:
    """Open the page in a browser a few times, and navigate in it."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    opened_ms: list[int] = []
    with sync_playwright() as started:
        for _ in range(times):
            browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1400, "height": 1000})
            page.goto(output.resolve().as_uri())
            page.wait_for_selector("html[data-drawn-ms]", timeout=60_000)
            opened_ms.append(int(page.evaluate("() => document.documentElement.dataset.drawnMs")))
            if len(opened_ms) == times:
                _move_about(page)
            browser.close()
    print(f"opened  {sorted(opened_ms)} ms after the browser began to load it; median {statistics.median(opened_ms)}")


def _move_about(page: Any) -> None:
    paths = {
        "all groups in view, zooming a little": ["+", "-"],
        "zooming in by half and out again": ["+"] * 12 + ["-"] * 12,
        "close by, moving on": ["ShiftArrowRight"],
    }
    for name, keys in paths.items():
        took = sorted(page.evaluate(_MOVE, ["Groups by worker", keys, FRAMES]))
        p99 = took[int(len(took) * 0.99) - 1]
        print(f"moving  {name}: a frame takes {statistics.median(took):.1f} ms, median; {p99:.1f} ms, 99th percentile")
        if name.startswith("zooming in"):
            page.evaluate(_MOVE, ["Groups by worker", ["+"], 9])


def main() -> None:
    """Make a trace and its report, open it, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1_000)
    parser.add_argument("--groups", type=int, default=80, help="N; about a quarter more finish")
    parser.add_argument("--times", type=int, default=5, help="how often the page is opened")
    parser.add_argument("--keep", type=Path, help="folder to keep trace and page in; an existing trace is used again")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = options.keep or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "trace.jsonl").exists():
            write(folder / "trace.jsonl", options.steps, options.groups)
        make(folder / "trace.jsonl", folder / "report.html")
        open_and_move(folder / "report.html", options.times)


if __name__ == "__main__":
    main()
