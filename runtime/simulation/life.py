"""One controller's life: the parts of a real one (`runtime.control.starting`), around simulated actors."""

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple, cast

from fsm.core import AppliedEvent, Core
from fsm.effects import Effect
from fsm.errors import LateAnswer
from fsm.events import Attempt, Event
from fsm.machines.catalog import TABLES
from fsm.machines.drive import Drive
from fsm.machines.trainer import TrainerState
from fsm.snapshot import restore, snapshot
from runtime.checkpoints.checkpoint import prompts_with_data
from runtime.control.collapse import CollapseWatch
from runtime.control.ending import End, ended_by, save_at_end
from runtime.control.event_loop import Control
from runtime.control.messages import STEP_SHARE, Message, Outcome, StepDone
from runtime.control.pumps.clock import watch
from runtime.control.pumps.rows import Rows
from runtime.control.run_recorder import RunRecorder
from runtime.control.starting import BegunRun, make_pumps
from runtime.metrics.accumulator import StepMeter
from runtime.simulation.fleet import SimulatedFleet
from runtime.simulation.plan import ActorGone
from runtime.simulation.trainer import SimulatedTrainer
from runtime.simulation.witness import Witness
from runtime.simulation.world import Ledger, SavedRun, SimulatedPlane, SimulatedWorld
from runtime.trace.notes import AnswerWasLate, AttemptsPlaced, CallBegan, GroupReceived, Note
from runtime.trace.records import note_body, transition_body
from runtime.trace.writer import Trace
from runtime.transport.data_plane import DataPlane

DRIVE = Drive(TABLES)
"""Fires the rules of every core here, one after the other: a new one for each takes longer than a run."""


class RecordedTrace(Trace):
    """A trace in memory, whose times are virtual."""

    def __init__(self, now_s: Callable[[], float], witness: Witness, fleet: SimulatedFleet) -> None:
        self.path = Path("simulated/trace.jsonl")
        self.writing_cpu_s = 0.0
        self._clock_s = now_s
        self._witness = witness
        self._fleet = fleet
        self.records: list[tuple[float, AppliedEvent | Note]] = []  # type: ignore[assignment]

    def observe(self, transition: AppliedEvent, core: Core) -> None:
        self.records.append((self._clock_s(), transition))

    def note(self, note: Note) -> None:
        if isinstance(note, AttemptsPlaced):
            self._witness.placed(note.worker, note.attempts, self._fleet.workers)
        if isinstance(note, CallBegan) and note.call in ("checkpoint", "publish"):
            self._witness.syncs(note.number)
        self.records.append((self._clock_s(), note))

    def dump(self) -> Path:
        return self.path

    def lines(self) -> list[str]:
        """Every record as a trace file has it, after its time."""
        return [
            f"{time_s:.3f} {transition_body(what) if isinstance(what, AppliedEvent) else note_body(what)}"
            for time_s, what in self.records
        ]


class WitnessedCore(Core):
    """A core whose witness also sees what it refuses."""

    witness: Witness

    def apply(self, event: Event) -> tuple[Effect, ...]:
        if self.witness.deaf:
            return ()
        self.witness.offered(event)
        before = self.state
        try:
            return super().apply(event)
        except LateAnswer:
            self.witness.refused(event, before, self.state)
            raise


class LifeEnd(NamedTuple):
    """How a controller's life ended."""

    status: str
    """As of an Outcome, or `crashed`."""
    error: BaseException | None
    steps: int
    """Steps closed since the run began."""
    waits_for: str


class Past(NamedTuple):
    """What a controller has from those before it."""

    saved: SavedRun | None = None
    """The checkpoint that it resumes from."""
    under_way: tuple[Attempt, ...] = ()
    """Attempts whose answers may still come."""


FRESH = Past()


class Life:
    """One controller. `live` is called once; `crash` ends it at any moment."""

    fleet_type: type[SimulatedFleet] = SimulatedFleet
    trainer_type: type[SimulatedTrainer] = SimulatedTrainer

    def __init__(self, world: SimulatedWorld, incarnation: int, past: Past, on_event: "OnEvent") -> None:
        self.world = world
        saved = past.saved
        self.plane = SimulatedPlane()
        ledger = Ledger() if saved is None else saved.ledger.copy()
        self.witness = Witness(world, ledger, self.plane)
        self.fleet = self.fleet_type(world, self.witness, self.plane)
        self.trainer = self.trainer_type(world, self.witness, self.plane)
        self.trace = RecordedTrace(world.now_s, self.witness, self.fleet)
        self.others: list[asyncio.Task[None]] = []
        """Tasks on the loop that are none of the controller's."""
        self.records = 0
        """Steps whose metrics were reported."""
        self._stale = past.under_way
        self._on_event = on_event
        self._incarnation = incarnation
        self._main: asyncio.Task[LifeEnd] | None = None
        self.core, self.recorder = self._open_core(saved)
        self._closed_before = len(self.core.book.closed)
        self.control = Control(self.core)
        self.rows = Rows(cast(DataPlane, self.plane))
        if saved is not None:
            for prompt, attempt in saved.rows:
                self.rows.keep(prompt, self.plane.add(attempt))
        self.pumps = make_pumps(world.plan.run, self.control, self.trainer, self.fleet, self.rows, self.recorder)
        outcome = Outcome("completed", None)
        resumed = None if saved is None else Path("simulated")
        self.run = BegunRun(self.control, self.pumps, self.trainer, self.recorder, outcome, resumed)

    def _open_core(self, saved: SavedRun | None) -> tuple[WitnessedCore, RunRecorder]:
        plan, now_s = self.world.plan, self.world.now_s
        meter = StepMeter(plan.setup.limits, now_s())
        collapse = CollapseWatch(plan.setup.limits.size, plan.run.output)
        recorder = RunRecorder(meter, [], self.trace, self._told, collapse=collapse, now_s=now_s)
        made = partial(WitnessedCore, fire=DRIVE)
        if saved is None:
            core: Core = made(plan.setup, observer=self._observe)
        else:
            control = json.loads(saved.control)
            core = restore(plan.setup, control, incarnation=self._incarnation, observer=self._observe, make_core=made)
        assert isinstance(core, WitnessedCore)
        core.witness = self.witness
        core.before_stop = self._before_stop
        recorder.core = core
        self.fleet.on_death = recorder.worker_lost
        return core, recorder

    async def live(self) -> LifeEnd:
        """From the first load of weights to the end. Cancelled by `crash`."""
        self._main = asyncio.current_task()
        try:
            await self.fleet.load(await self.trainer.publish(self.core.state.trainer.version))
        except ActorGone as error:
            return LifeEnd("failed", error, self.core.state.trainer.version, "the weights of every worker")
        self.fleet.take_over(self._stale)
        watchdog = self.world.plan.settings.async_rl.stall_watchdog
        watching = asyncio.create_task(watch(watchdog, lambda: self.control.progress_s, self.pumps.clock.stalled))
        self.run.ran = True
        end = await ended_by(self.control.run(self.pumps.carry_out, self.pumps.clock.dead_end), self.control)
        watching.cancel()
        await asyncio.sleep(0)
        ours = {self._main, watching, *self.others}
        names = [task.get_name() for task in asyncio.all_tasks() if task not in ours]
        if left := [name for name in names if not name.startswith("checkpoint of step ")]:  # one may still be written
            self.witness.found(f"tasks are left when the run is over: {left}")
        self.recorder.finish()
        await self._end(end)
        return LifeEnd(end.status, end.error, self.core.state.trainer.version, self.core.waits_for())

    async def _end(self, end: End) -> None:
        """Check what is left, and save what a real run saves."""
        undelivered = {row for rows in self.fleet.undelivered.values() for row in rows}
        self.witness.ends(self.core, len(self.rows), undelivered)
        noted = Counter(type(what) for _, what in self.trace.records)
        if noted[GroupReceived] != self.witness.accepted or noted[AnswerWasLate] < self.witness.refusals:
            self.witness.found(
                f"{noted[GroupReceived]} groups and {noted[AnswerWasLate]} late answers are recorded, of "
                f"{self.witness.accepted} and {self.witness.refusals}"
            )
        if self.records != len(self.core.book.closed) - self._closed_before:
            self.witness.found(f"the metrics of {self.records} steps are told, of {len(self.core.book.closed)}")
        plan = self.world.plan
        await save_at_end(self.run, end, plan.run.output, plan.settings, lambda: None)

    def crash(self) -> None:
        """The controller is gone at once: nothing that it still does has an effect."""
        self.witness.deaf = self.plane.deaf = True
        if self._main is not None:
            self._main.cancel()

    def interrupt(self) -> None:
        """As `Controller.interrupt` does."""
        if self.witness.deaf or not self.run.ran:
            return
        finishing = self.core.state.trainer.status is TrainerState.FINISHING
        self.control.interrupt()
        if self.control.over is finishing:
            self.witness.found(f"an interrupt {'ends' if finishing else 'does not end'} the run at once")
        patience_s = STEP_SHARE * self.world.plan.settings.cluster.shutdown_timeout_s
        asyncio.get_running_loop().call_later(patience_s, self.control.end_now)

    def save(self) -> SavedRun:
        """A checkpoint of this very moment, which must be between two optimizer steps."""
        control = snapshot(self.core)
        rows = self.rows.of(prompts_with_data(control))
        kept = tuple((prompt, self.plane.rows[row]) for prompt, row in rows)
        return SavedRun(json.dumps(control), kept, self.witness.ledger.copy())

    def digest(self) -> str:
        """A hash of the trace."""
        return hashlib.sha256("\n".join(self.trace.lines()).encode()).hexdigest()

    def _observe(self, transition: AppliedEvent) -> None:
        if self.witness.deaf:
            return
        self.recorder.observe(transition)
        self.witness.applied(transition)
        self._on_event(self)

    def _before_stop(self) -> None:
        self.run.before_stop = snapshot(self.core)
        self.trainer.before_stop = (self.run.before_stop, self.witness.ledger.copy())

    def _told(self, message: Message) -> None:
        self.records += isinstance(message, StepDone)


OnEvent = Callable[[Life], None]
"""Called after each event, before its effects are carried out."""


async def begin(kind: type[Life], world: SimulatedWorld, incarnation: int, past: Past, on_event: OnEvent) -> Life:
    """A life, made on the loop that it will live on."""
    return kind(world, incarnation, past, on_event)
