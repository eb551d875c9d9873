"""Scenario files, counterexamples of `evenstep check` among them, with the real control code around the core.

`specs.scenarios` gives a scenario's events to the core itself. Here each move makes a worker or the trainer answer, or
lets time pass, and the pumps must bring the same event to the core.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fsm.config.parse import parse_config
from fsm.config.setup import Setup
from fsm.core import AppliedEvent
from fsm.effects import Effect, StartRollout
from fsm.errors import EvenstepError
from fsm.events import (
    Attempt,
    ChunkTrained,
    ClaimUnreadable,
    Event,
    GroupFailed,
    GroupFinished,
    StepFinished,
    SyncFinished,
)
from runtime.settings import Settings
from runtime.simulation.clock import VirtualLoop
from runtime.simulation.fleet import SimulatedFleet, receipt_of
from runtime.simulation.life import FRESH, Life, LifeEnd, Past, begin
from runtime.simulation.plan import CHUNK_S, STEP_S, SYNC_S, SimulationPlan, run_plan
from runtime.simulation.trainer import SimulatedTrainer
from runtime.simulation.world import SavedRun, SimulatedWorld
from runtime.transport.answers import Answer, AttemptFailed, AttemptFinished, Order
from specs.scenarios.file import Expectation, Move, load_scenario
from specs.scenarios.run import make_move, scenario_config, unmet
from specs.scenarios.world import World, WorldMistake

SETTLED_TURNS = 60
"""Turns of the loop after which everything that can go on without news has gone on."""
_QUIET: Mapping[str, Mapping[str, Any]] = {
    "cluster": {"num_generation_workers": 1},
    "checkpointing": {"every_steps": 0},
    "validation": {"every_steps": 0},
}
"""What a scenario says nothing of."""


class _Instant(SimulatedWorld):
    """Nothing takes time, and no fault strikes."""

    def takes_s(self, usual_s: float) -> float:
        return 0.0


class _ScriptedFleet(SimulatedFleet):
    """One worker, which answers when it is told to."""

    def tell(self, answer: Answer) -> None:
        """The worker has an answer; the exchange that waits takes it."""
        [desk] = self._desks.values()
        desk.running.pop(answer.attempt, None)
        desk.due.append(answer)
        desk.wake()

    def finished(self, attempt: Attempt, zero_variance: bool) -> AttemptFinished:
        """The answer of an attempt whose group is stored, unless it is filtered."""
        row = None if zero_variance and self._filters else self._plane.add(attempt)
        if row is not None:
            self.undelivered.setdefault(attempt, set()).add(row)
        rewards = (1.0, 1.0) if zero_variance else (0.0, 1.0)
        return AttemptFinished(attempt, receipt_of(attempt.prompt, self.workers[0], 0, rewards), row, 0.0)

    def _fate(self, order: Order) -> tuple[str, float]:
        return "never", 0.0


class _ScriptedTrainer(SimulatedTrainer):
    """Ends what it does when it is told to; saving takes no time."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.gates = {usual_s: asyncio.Semaphore(0) for usual_s in (CHUNK_S, STEP_S, SYNC_S)}

    def end(self, usual_s: float) -> None:
        """What usually takes so long is done now."""
        for _ in range(1 + (usual_s == CHUNK_S)):  # a chunk is read half-way
            self.gates[usual_s].release()

    async def _work(self, usual_s: float) -> None:
        if usual_s in self.gates:
            await self.gates[usual_s].acquire()


class _ScriptedLife(Life):
    fleet_type = _ScriptedFleet
    trainer_type = _ScriptedTrainer


class PumpedWorld(World):
    """The world of `specs.scenarios`, whose events reach the core through pumps."""

    def __init__(self, settings: Settings, num_prompts: int) -> None:
        self._saved: SavedRun | None = None
        self._loop: VirtualLoop | None = None
        self._settings = settings
        self.claims: tuple[int, ...] = ()
        """Prompts whose data the trainer cannot read; it says so when it is done with the chunk."""
        super().__init__(settings, num_prompts, check_setup=False)

    def _open(self) -> None:
        """A controller begins, or resumes from the last checkpoint."""
        self.close_loop()
        setup: Setup = self.setup
        plan = SimulationPlan(
            0, setup.sampler_name, run_plan(self._settings, setup.limits.prompts_per_epoch), setup, "alike", {}, (), 0.0
        )
        self._loop = VirtualLoop(self.now_s, 10_000_000)
        self._world = _Instant(plan)
        self._world.now_s = self._loop.time
        asyncio.set_event_loop(None)
        past = FRESH if self._saved is None else Past(self._saved)
        self._life = self._loop.run_until_complete(
            begin(_ScriptedLife, self._world, self.crashes, past, lambda _: None)
        )
        self._life.core.book.incarnation = self.crashes
        self.core = self._life.core
        self._trainer.end(SYNC_S)
        self._lives: asyncio.Task[LifeEnd] = self._loop.create_task(self._life.live())
        self._settle()

    def close_loop(self) -> None:
        """The controller is gone."""
        if self._loop is None:
            return
        self._life.crash()
        self._loop.no_bounds()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.wait([self._lives]))
        self._loop.close()

    @property
    def _fleet(self) -> _ScriptedFleet:
        assert isinstance(self._life.fleet, _ScriptedFleet)
        return self._life.fleet

    @property
    def _trainer(self) -> _ScriptedTrainer:
        assert isinstance(self._life.trainer, _ScriptedTrainer)
        return self._life.trainer

    def apply(self, event: Event) -> tuple[Effect, ...]:
        """Make somebody answer, so that the pumps apply the event. Raises WorldMistake if they apply another."""
        before = len(self._life.trace.records)
        match event:
            case GroupFinished(attempt, zero_variance):
                self._fleet.tell(self._fleet.finished(attempt, zero_variance))
            case GroupFailed(attempt, kind, error):
                self._fleet.tell(AttemptFailed(attempt, kind, error))
            case ClaimUnreadable(prompt):
                self._life.plane.take([row for _, row in self._life.rows.of([prompt])])
                self.claims += (prompt,)
                return ()
            case ChunkTrained():
                self.claims = ()
                self._trainer.end(CHUNK_S)
            case StepFinished():
                self._trainer.end(STEP_S)
            case SyncFinished():
                self._trainer.end(SYNC_S)
        self._settle()
        made = [what for _, what in self._life.trace.records[before:] if isinstance(what, AppliedEvent)]
        names = [type(each.event) for each in made if not isinstance(each.event, ClaimUnreadable)]
        if names != [type(event)]:
            raise WorldMistake(f"{event} was due, and the pumps apply {[each.event for each in made]}")
        return made[-1].effects

    def tell_claims(self) -> None:
        """The trainer is done with a chunk some of whose data it could not read."""
        if self.claims:
            self.claims = ()
            self._trainer.end(CHUNK_S)
            self._settle()

    def tick(self, seconds: float) -> None:
        self._alive()
        assert self._loop is not None
        self.now_s += seconds
        passing = self._loop.create_task(asyncio.sleep(seconds))
        self._life.others.append(passing)
        self._loop.run_until_complete(passing)
        self._settle()

    def late(self, prompt: int) -> None:
        over = self.last_over(prompt)
        before = self.snapshot()
        self._fleet.tell(self._fleet.finished(over, False))
        self._settle()
        if self.snapshot() != before:
            raise WorldMistake(f"the late answer of prompt {prompt}, {over}, has changed something")

    def checkpoint(self) -> None:
        super().checkpoint()
        self._saved = self._life.save()

    def _settle(self) -> None:
        """Until nothing goes on without news. Raises WorldMistake for what is wrong then."""
        assert self._loop is not None

        async def turns() -> None:
            for _ in range(SETTLED_TURNS):
                await asyncio.sleep(0)

        settling = self._loop.create_task(turns())
        self._life.others.append(settling)
        self._loop.run_until_complete(settling)
        for _, what in self._life.trace.records:
            for effect in what.effects if isinstance(what, AppliedEvent) else ():
                if isinstance(effect, StartRollout) and effect.attempt not in self.attempts.get(
                    effect.attempt.prompt, ()
                ):
                    self.attempts.setdefault(effect.attempt.prompt, []).append(effect.attempt)
        if self._world.wrong:
            raise WorldMistake(self._world.wrong[0])


def scenario_problems(path: Path) -> list[str]:
    """What does not hold of a scenario file with pumps around the core: the first problem, or nothing.

    Setup refuses nothing, as a counterexample may need it; so a scenario of a refusal has no problem here. Raises
    ScenarioMistake for a file that is none.
    """
    scenario = load_scenario(path)
    if scenario.config_error is not None:
        return []
    blocks = scenario_config(scenario.config)
    blocks["async_rl"].setdefault("stall_watchdog", {})["on_deadlock"] = "warn"  # no scenario sees the watchdog
    world = PumpedWorld(parse_config({**_QUIET, **blocks}, model=Settings, check=False), scenario.num_prompts)
    try:
        return list(_met(world, scenario.moves, scenario.expect))
    finally:
        world.close_loop()


def _met(world: PumpedWorld, moves: Sequence[Move], expect: Expectation | None) -> Iterator[str]:
    for move in moves:
        try:
            problems = _make(world, move)
        except (WorldMistake, EvenstepError) as error:
            yield f"move {move.number} ({move.text}): {error}"
            return
        if problems:
            yield f"move {move.number} ({move.text}): {'; '.join(problems)}"
            return
    world.tell_claims()
    if expect is not None:
        yield from unmet(world, expect)


def _make(world: PumpedWorld, move: Move) -> list[str]:
    """As `make_move`, which calls the methods of `specs`' own world."""
    match move.name:
        case "late":
            for prompt in move.argument:
                world.late(prompt)
        case "checkpoint":
            world.checkpoint()
        case "expect" if world.claims:
            pass  # the core is told of them only with the chunk
        case _:
            return make_move(world, move)
    return []
