"""Recorded runs of the real core around which something is wrong: a broken decision, or a world that is stuck."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from fsm.config.blocks import RunConfig
from fsm.config.parse import parse_config
from fsm.core import AppliedEvent, Core
from fsm.effects import StartRollout
from fsm.machines.prompt_group import TRANSFER
from fsm.machines.spare_pool import SPARE_POOL
from fsm.rules import changes
from fsm.rules.laws import Laws, pool_context
from fsm.samplers.builtin import InOrder, ReadyFirst
from fsm.samplers.protocol import Admission
from fsm.state import NONE, GroupClass, State, View
from fsm.values import pages
from runtime.explain.explanation import Explanation, explain
from runtime.trace import writer
from runtime.trace.files import make_header
from runtime.trace.notes import AttemptsPlaced, GroupReceived, Note, WorkerStarted
from runtime.trace.reader import open_trace
from runtime.trace.writer import TraceConfig
from specs.checker.closing import outlook
from specs.scenarios.world import World

BEGAN_UNIX_S = 1_767_225_600.0
WORKERS = ("generation-0", "generation-1")


class Recorded:
    """A world and its trace, on the world's clock. Attempts are placed on two workers by turns."""

    def __init__(self, trace: writer.Trace, config: RunConfig, num_prompts: int, clock: list[float]) -> None:
        self.trace, self.clock = trace, clock
        self.cores: list[Core] = []
        self.placed: list[AttemptsPlaced] = []
        for worker in WORKERS:
            trace.note(WorkerStarted(worker))
        self.world = World(config, num_prompts, check_setup=False, observer=self._observe, make_core=self._core)
        self._place()

    def _core(self, *given: Any, **named: Any) -> Core:
        self.cores.append(Core(*given, **named))
        return self.cores[-1]

    def _observe(self, transition: AppliedEvent) -> None:
        self.trace.observe(transition, self.cores[-1])
        for effect in transition.effects:
            if isinstance(effect, StartRollout):
                worker = WORKERS[effect.attempt.prompt % len(WORKERS)]
                self.placed.append(AttemptsPlaced(worker, (effect.attempt,)))

    def _place(self) -> None:
        for note in self.placed:
            self.trace.note(note)
        self.placed.clear()

    def commit(self, *prompts: int) -> None:
        for prompt in prompts:
            self.world.commit(prompt)
            self.received(prompt, correct=2)

    def filter(self, *prompts: int, correct: int = 4) -> None:
        for prompt in prompts:
            self.world.filter(prompt)
            self.received(prompt, correct=correct)

    def received(self, prompt: int, *, correct: int) -> None:
        worker = WORKERS[prompt % len(WORKERS)]
        self.note(GroupReceived(prompt, worker, 4, correct, 9, 0, self.world.core.state.trainer.version, 1.0, 0.0))

    def close(self) -> None:
        self.world.close()
        self._place()

    def note(self, note: Note) -> None:
        self._place()
        self.trace.note(note)

    def later(self, seconds: float) -> None:
        """Time passes: deadlines and backoffs too."""
        self._place()
        self.clock[0] += seconds
        if not self.world.over:
            self.world.tick(seconds)
        self._place()

    def in_flight(self) -> list[int]:
        return sorted(self.world.core.book.roster.in_flight)


def config_of(sampler: str | Mapping[str, Any], size: int, **blocks: Any) -> RunConfig:
    """A configuration that is not checked. `failure` is rollout_failure; other blocks go to grpo or async_rl."""
    grpo = {"num_prompts_per_step": size, "num_generations_per_prompt": 4, **blocks.pop("grpo", {})}
    failure = {"backoff_base_s": 0.0, "min_step_batch_fraction": 0.1, **blocks.pop("failure", {})}
    chosen = {"name": sampler} if isinstance(sampler, str) else dict(sampler)
    async_rl = {"sampler": chosen, "rollout_failure": failure, **blocks.pop("async_rl", {})}
    assert not blocks, f"no blocks {list(blocks)}"
    return parse_config({"grpo": grpo, "async_rl": async_rl}, check=False)


@contextmanager
def recording(path: Path, config: RunConfig, num_prompts: int = 64, **options: Any) -> Iterator[Recorded]:
    """A run that is written down, with the world's clock as the time."""
    clock = [0.0]
    times = SimpleNamespace(
        monotonic=lambda: clock[0], time=lambda: BEGAN_UNIX_S + clock[0], thread_time=time.thread_time
    )
    header = make_header(config, num_prompts=num_prompts, seeds={})
    with (
        patch.object(writer, "time", times),
        writer.Trace(path, header, TraceConfig(**{"snapshot_every": 8, **options})) as trace,
    ):
        yield Recorded(trace, config, num_prompts, clock)


def explained_run(path: Path, **moment: Any) -> Explanation:
    """A recorded run, explained."""
    return explain(open_trace(path), outlook, **moment)


Drive = Callable[[Recorded], None]


def recorded(path: Path, config: RunConfig, drive: Drive, num_prompts: int = 64) -> Explanation:
    """Drive a run and explain its end."""
    with recording(path, config, num_prompts) as run:
        drive(run)
    return explained_run(path)


# Broken decisions


def restamped(state: State, laws: Laws, group_class: GroupClass) -> tuple[State, list[changes.Change]]:
    """A replacement that is stamped with the version at its own attempt."""
    spare = GroupClass(NONE, state.trainer.version, NONE, group_class.replacements + 1, 0)
    sheet = TRANSFER["replace"](state.sheet, 1)
    return (
        state._replace(
            pool=laws.fire(SPARE_POOL, "draw", state.pool, pool_context(state, laws, 1)),
            waiting=pages.add(state.waiting, spare, 1),
            sheet=sheet._replace(replaced=sheet.replaced + 1),
        ),
        [changes.GroupReplaced(spare)],
    )


def charged_to_none(state: State, laws: Laws, group_class: GroupClass) -> None:
    """A loss that no step is charged for."""


# Samplers from outside


class AsksForTwice(ReadyFirst):
    """Takes nothing until twice as many groups are ready as it is asked for."""

    def select(self, view: View, min_groups: int, max_groups: int) -> list[tuple[GroupClass, int]]:
        return super().select(view, min_groups, max_groups) if view.ready_groups >= 2 * min_groups else []


class NeverSelects(ReadyFirst):
    """Finds no group good enough."""

    def select(self, view: View, min_groups: int, max_groups: int) -> list[tuple[GroupClass, int]]:
        return []


class WaitsForTheNextVersion(InOrder):
    """Admits the batch of a step only once that step is over."""

    def admit(self, view: View) -> Admission | None:
        return Admission(view.dispatch_index + 1) if view.dispatch_index + 1 < view.version else None
