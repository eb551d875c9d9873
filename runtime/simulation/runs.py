"""A whole run, from its seed, over crashes and resumes."""

import asyncio
import hashlib
from collections import Counter
from dataclasses import dataclass, field

from fsm.errors import LimitReached
from runtime.simulation.clock import Halted, NothingScheduled, TimeIsUp, VirtualLoop
from runtime.simulation.life import FRESH, Life, LifeEnd, OnEvent, Past, begin
from runtime.simulation.plan import LIVES_MAX, ActorGone, Fault, SimulationPlan
from runtime.simulation.world import SimulatedWorld, StruckFault

TURNS_MAX = 200_000
"""Turns of the loop in one life: hundreds of times what a run takes."""
CRASHED = "crashed"


@dataclass(slots=True)
class Story:
    """A run that was simulated."""

    plan: SimulationPlan
    outcome: str = ""
    """completed, stopped (by which limit), interrupted, failed (by which actor), hang, or wrong."""
    lives: int = 0
    events: int = 0
    steps: int = 0
    virtual_s: float = 0.0
    digest: str = ""
    """A hash of the traces of all lives; empty unless it was asked for."""
    wrong: list[str] = field(default_factory=list)
    faults: Counter[Fault] = field(default_factory=Counter)
    happened: list[StruckFault] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    """The traces of all lives, if they were asked for."""


def simulate(
    plan: SimulationPlan, *, traced: bool = False, past: Past = FRESH, on_event: OnEvent = lambda _: None
) -> Story:
    """Run a plan to its end, through crashes and resumes. `traced`: keep its trace, and its hash.

    `past`: what an earlier controller has left, from which the run resumes. `on_event` sees every controller after each
    of its events.
    """
    world, story = SimulatedWorld(plan), Story(plan)
    digests: list[str] = []
    clock_s, again, before = 0.0, plan.resumes_when_stopped, int(past.saved is not None)
    moments = list(plan.moments)
    while True:
        loop = VirtualLoop(clock_s, TURNS_MAX)
        world.now_s, world.halt = loop.time, loop.halt
        loop.end_at(max(clock_s, plan.faults_until_s) + plan.longest_s)
        try:
            life = loop.run_until_complete(begin(Life, world, story.lives + before, past, on_event))
            ended = _live(loop, life, moments, world)
        finally:
            clock_s = loop.time()
            _close(loop)
        story.lives += 1
        if traced:
            digests.append(life.digest())
            story.lines += [f"controller {story.lives}", *life.trace.lines()]
        if ended is None:
            break
        story.outcome = _outcome_of(ended, world)
        story.steps = max(story.steps, ended.steps)
        stopped_once = ended.status == "stopped" and again
        again = again and not stopped_once
        resumes = ended.status in (CRASHED, "interrupted", "failed") or stopped_once
        if resumes and story.lives == LIVES_MAX:
            world.found(f"the run has not ended after {LIVES_MAX} controllers")
        if not resumes or world.wrong:
            break
        moments = [moment for moment in moments if moment[0] > clock_s]
        past = Past(world.checkpoints[-1], life.fleet.under_way) if world.checkpoints else FRESH
    if ended is None:
        story.outcome = "hang"
    story.events, story.virtual_s, story.wrong = world.events, clock_s, world.wrong
    story.faults, story.happened = world.faults, world.happened
    story.digest = hashlib.sha256("".join(digests).encode()).hexdigest() if traced else ""
    return story


def _live(loop: VirtualLoop, life: Life, moments: list[tuple[float, Fault]], world: SimulatedWorld) -> LifeEnd | None:
    """How the life ended; None for a hang, which is found wrong."""
    asyncio.set_event_loop(None)
    for time_s, fault in moments:
        loop.call_at(time_s, _strike, life, fault, world)
    try:
        return loop.run_until_complete(life.live())
    except (asyncio.CancelledError, BaseExceptionGroup):
        if not life.witness.deaf:
            raise
        return LifeEnd(CRASHED, None, life.core.state.trainer.version, "")
    except Halted:
        return LifeEnd("wrong", None, life.core.state.trainer.version, life.core.waits_for())
    except (NothingScheduled, TimeIsUp) as hang:
        why = "nothing is scheduled" if isinstance(hang, NothingScheduled) else "its time is up"
        world.found(f"the run hangs ({why}): {life.core.waits_for()}")
        return None


def _strike(life: Life, fault: Fault, world: SimulatedWorld) -> None:
    """A fault whose moment has come."""
    if life.witness.deaf or life.control.over:
        return
    match fault:
        case Fault.CRASH:
            world.struck(fault)
            life.crash()
        case Fault.INTERRUPT:
            world.struck(fault)
            life.interrupt()
        case Fault.STORE_LOST:
            world.struck(fault)
            life.plane.take(list(life.plane.rows))
        case _:
            worker = world.random.choice(life.fleet.workers)
            world.struck(fault, worker)
            life.fleet.kill(worker, "it was killed")


def _close(loop: VirtualLoop) -> None:
    """End what is left of a life, without a trace."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.no_bounds()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    loop.close()


def _outcome_of(ended: LifeEnd, world: SimulatedWorld) -> str:
    """In words. An error that no fault and no limit accounts for is found wrong."""
    if ended.error is None:
        return ended.status
    if not isinstance(ended.error, LimitReached | ActorGone):
        world.found(f"the run {ended.status}: {type(ended.error).__name__}: {ended.error}")
    return f"{ended.status}: {type(ended.error).__name__}"
