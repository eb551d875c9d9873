"""A trainer, generation workers and a data plane on an asyncio loop, without Ray and torch."""

import asyncio
import dataclasses
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fsm.config.parse import parse_config
from fsm.config.setup import set_up
from fsm.core import AppliedEvent, Core
from fsm.effects import StepClosed
from fsm.events import Attempt, ClaimUnreadable, FailureKind
from runtime.actors.trainer_rank import Written
from runtime.checkpointing import CheckpointingConfig
from runtime.checkpoints.retention import Retention
from runtime.control.event_loop import Control
from runtime.control.pumps.checkpoints import CheckpointPump
from runtime.control.pumps.clock import ClockPump
from runtime.control.pumps.effects import Pumps
from runtime.control.pumps.generation import GenerationPump
from runtime.control.pumps.not_applied import StepsNotApplied
from runtime.control.pumps.rows import Rows
from runtime.control.pumps.sync import SyncPump
from runtime.control.pumps.training import TrainingPump
from runtime.files import FileNotWritten
from runtime.groups import Evaluation, GroupReceipt
from runtime.simulation.fleet import evaluation_of, receipt_of
from runtime.simulation.trainer import metrics_of
from runtime.trace.notes import AttemptsPlaced, CallBegan, CallEnded, Note
from runtime.training.step_metrics import NotFinite, StepMetrics
from runtime.transport.answers import (
    Aborted,
    Answer,
    AttemptFailed,
    AttemptFinished,
    Order,
    Published,
    Row,
    WorkerLost,
)

Play = Callable[[Order, int], str]
"""What becomes of an order, given how often its prompt was tried before: good, flat, infra, data, hang, die."""


def all_good(order: Order, tried: int) -> str:
    """Every group has reward variance."""
    return "good"


@dataclass
class Desk:
    """What a worker has before it."""

    unanswered: dict[Attempt, None] = field(default_factory=dict)
    todo: deque[Order] = field(default_factory=deque)
    answers: deque[Answer] = field(default_factory=deque)
    exchanges: int = 0
    news: asyncio.Event = field(default_factory=asyncio.Event)


class FakeFleet:
    """Workers that answer at once, in order and one by one, as `play` says."""

    def __init__(self, play: Play = all_good, workers: int = 1) -> None:
        self.workers: Sequence[str] = tuple(f"w{number}" for number in range(workers))
        self.play = play
        self.submissions: list[tuple[str, list[Attempt]]] = []
        self.exchanges = 0
        self.aborted: list[Attempt] = []
        self.loaded: list[int] = []
        self.tries: dict[int, int] = {}
        self.loading = asyncio.Event()
        self.loading.set()
        self._desks = {worker: Desk() for worker in self.workers}

    async def exchange(self, worker: str, orders: Sequence[Order]) -> Sequence[Answer]:
        desk = self._desks[worker]
        if orders:
            self.submissions.append((worker, [order.attempt for order in orders]))
        self.exchanges += 1
        desk.unanswered.update((order.attempt, None) for order in orders)
        desk.todo.extend(orders)
        desk.exchanges += 1
        mine = desk.exchanges
        desk.news.set()
        while mine == desk.exchanges:
            await asyncio.sleep(0)
            self._work(worker, desk)
            if desk.answers:
                answer = desk.answers.popleft()
                del desk.unanswered[answer.attempt]
                return [answer]
            desk.news.clear()
            await desk.news.wait()
        return []

    def _work(self, worker: str, desk: Desk) -> None:
        """On the next order that does not hang."""
        while desk.todo and not desk.answers:
            order = desk.todo.popleft()
            tried = self.tries.get(order.attempt.prompt, 0)
            self.tries[order.attempt.prompt] = tried + 1
            fate = self.play(order, tried)
            if fate == "die":
                self._desks[worker] = Desk()
                raise WorkerLost(worker, "it was killed", list(desk.unanswered))
            if fate != "hang":
                desk.answers.append(self._answer(order, fate))

    def _answer(self, order: Order, fate: str) -> Answer:
        attempt = order.attempt
        if fate in ("infra", "data"):
            return AttemptFailed(attempt, FailureKind[fate.upper()], f"made to fail: {fate}")
        rewards = (1.0, 1.0) if fate == "flat" else (0.0, 1.0)
        return AttemptFinished(
            attempt, receipt_of(attempt.prompt, "w", order.start_weight, rewards), ("row", attempt), 0.0
        )

    async def abort(self, worker: str, attempts: Sequence[Attempt]) -> None:
        self.aborted += attempts
        desk = self._desks[worker]
        doomed = set(attempts) & desk.unanswered.keys() - {answer.attempt for answer in desk.answers}
        desk.todo = deque(order for order in desk.todo if order.attempt not in doomed)
        desk.answers.extend(Aborted(attempt) for attempt in attempts if attempt in doomed)
        desk.news.set()

    async def load(self, published: Published) -> None:
        await self.loading.wait()
        self.loaded.append(published.version)

    async def evaluate(self, name: str, label: str, progressed: Callable[[], None]) -> Evaluation:
        progressed()
        return evaluation_of()


class FakeTrainer:
    """Takes chunks at once. Prompts in `unreadable` cannot be read."""

    def __init__(
        self,
        unreadable: Sequence[int] = (),
        fails_at: int | None = None,
        without_tokens: Sequence[int] = (),
        not_finite: Mapping[int, NotFinite] = MappingProxyType({}),
    ) -> None:
        self.unreadable = set(unreadable)
        self.not_finite = not_finite
        self.without_tokens = set(without_tokens)
        self.fails_at = fails_at
        self.chunks: list[tuple[int, list[int]]] = []
        self.rows: list[Row] = []
        self.deleted: list[Row] = []
        self.steps: list[int] = []
        self.saved: list[tuple[dict[str, Any], list[int]]] = []
        self.saved_models: list[tuple[Path, int]] = []
        """Where, and after how many steps."""
        self.full_disk: set[int] = set()
        """Steps whose checkpoint the disk refuses."""
        self.write_s = 0.0
        """How long it takes to write a checkpoint, in seconds."""
        self.copied: tuple[int, list[int]] | None = None
        """The step and the prompts of a checkpoint that is not written yet."""

    async def accumulate(
        self, step: int, rows: Sequence[tuple[int, Row]], unneeded: Sequence[Row]
    ) -> tuple[ClaimUnreadable, ...]:
        await asyncio.sleep(0)
        self.deleted += unneeded
        if step == self.fails_at:
            raise RuntimeError(f"the trainer fails at step {step}")
        self.chunks.append((step, [prompt for prompt, _ in rows]))
        self.rows += [row for _, row in rows]
        return tuple(ClaimUnreadable(prompt, "gone") for prompt, _ in rows if prompt in self.unreadable)

    async def finish_step(self, step: int) -> StepMetrics:
        await asyncio.sleep(0)
        self.steps.append(step)
        metrics = metrics_of(step, empty=step in self.without_tokens)
        return dataclasses.replace(metrics, not_finite=self.not_finite.get(step))

    async def publish(self, version: int) -> Published:
        return Published(version, None)

    async def copy_state(self, step: int, rows: Sequence[tuple[int, Row]]) -> None:
        self.copied = step, [prompt for prompt, _ in rows]

    async def write_checkpoint(self, directory: Path, control: dict[str, Any], retention: Retention) -> Written:
        assert self.copied is not None, "nothing was copied"
        (step, prompts), self.copied = self.copied, None
        assert step == control["state"]["trainer"][1]
        await asyncio.sleep(self.write_s)
        if step in self.full_disk:
            raise FileNotWritten(directory, "No space left on device", "no checkpoint was added")
        self.saved.append((control, prompts))
        return Written(directory / f"checkpoint-{len(self.saved)}", None)

    async def save_model(self, directory: Path) -> Path:
        self.saved_models.append((directory, len(self.steps)))
        return directory


class FakePlane:
    """Remembers what was deleted."""

    def __init__(self) -> None:
        self.deleted: list[Row] = []

    async def put(self, groups: Sequence[Any]) -> list[Row]:
        raise NotImplementedError

    def get(self, rows: Sequence[Row]) -> list[Any]:
        raise NotImplementedError

    def delete(self, rows: Sequence[Row]) -> None:
        self.deleted += rows


@dataclass
class FakeRecorder:
    """Remembers what it is told."""

    receipts: list[GroupReceipt] = field(default_factory=list)
    closes: list[StepClosed] = field(default_factory=list)
    late: int = 0
    empty_steps: list[tuple[int, int]] = field(default_factory=list)
    steps_not_applied: list[tuple[int, str, int]] = field(default_factory=list)
    stalls: list[str] = field(default_factory=list)
    dead_ends: list[str] = field(default_factory=list)
    evaluations: list[int] = field(default_factory=list)
    sets: list[str] = field(default_factory=list)
    """Of each evaluation."""
    checkpoints: list[int] = field(default_factory=list)
    synced_versions: list[int] = field(default_factory=list)
    placements: list[tuple[str, list[Attempt]]] = field(default_factory=list)
    calls: list[tuple[str, int, str]] = field(default_factory=list)
    refused: list[FileNotWritten] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)

    def received(self, receipt: GroupReceipt) -> None:
        self.receipts.append(receipt)

    def note(self, note: Note) -> None:
        match note:
            case AttemptsPlaced(worker, attempts):
                self.placements.append((worker, list(attempts)))
            case CallBegan(call, number):
                self.calls.append((call, number, "began"))
            case CallEnded(call, number):
                self.calls.append((call, number, "ended"))

    def late_answer(self) -> None:
        self.late += 1

    def worker_busy(self, worker: str, busy_s: float) -> None:
        pass

    def worker_lost(self, worker: str, reason: str) -> None:
        pass

    def trained(self, metrics: StepMetrics) -> None:
        pass

    def nothing_trained(self, step: int, rollouts: int) -> None:
        self.empty_steps.append((step, rollouts))

    def not_applied(self, step: int, why: NotFinite, in_a_row: int) -> None:
        self.steps_not_applied.append((step, str(why), in_a_row))

    def closed(self, step: StepClosed) -> None:
        self.closes.append(step)

    def synced(self, version: int) -> None:
        self.synced_versions.append(version)

    def evaluated(self, step: int, name: str, evaluation: Evaluation) -> None:
        self.evaluations.append(step)
        self.sets.append(name)

    def checkpointed(self, step: int, path: Path) -> None:
        self.checkpoints.append(step)

    def not_written(self, error: FileNotWritten) -> None:
        self.refused.append(error)

    def said(self, text: str) -> None:
        self.notices.append(text)

    def stalled(self, idle_s: float, waits_for: str) -> None:
        self.stalls.append(waits_for)

    def dead_end(self, explanation: str) -> None:
        self.dead_ends.append(explanation)


class Run:
    """A core with pumps around it."""

    def __init__(
        self,
        config: dict[str, Any],
        num_prompts: int,
        fleet: FakeFleet,
        trainer: FakeTrainer | None = None,
        *,
        stop_after: int | None = None,
        validations: Mapping[str, int | None] | None = None,
        checkpoint_every: int | None = None,
        checkpointing: dict[str, Any] | None = None,
        stop_after_not_finite: int | None = None,
    ) -> None:
        run_config = parse_config(config)
        self.transitions: list[AppliedEvent] = []
        self.core = Core(set_up(run_config, num_prompts), observer=self.transitions.append)
        self.fleet = fleet
        self.trainer = trainer or FakeTrainer()
        self.plane = FakePlane()
        self.recorder = FakeRecorder()
        self.control = Control(self.core)
        self.rows = Rows(self.plane)
        timeout_s = run_config.async_rl.rollout_failure.rollout_timeout_s
        not_applied = StepsNotApplied(stop_after_not_finite)
        due = {"enabled": checkpoint_every is not None, "every_steps": checkpoint_every or 0, "every_minutes": None}
        config_of_checkpoints = CheckpointingConfig(**due | (checkpointing or {}))
        checkpoints = CheckpointPump(
            self.control,
            self.trainer,
            self.rows,
            self.recorder,
            config_of_checkpoints,
            Path("checkpoints"),
            0.0,
            not_applied,
        )
        self.pumps = Pumps(
            control=self.control,
            generation=GenerationPump(self.control, fleet, self.rows, self.recorder, timeout_s),
            training=TrainingPump(self.control, self.trainer, self.rows, self.recorder, stop_after, not_applied),
            sync=SyncPump(
                self.control,
                self.trainer,
                fleet,
                self.recorder,
                checkpoints,
                validations=validations or {},
            ),
            checkpoints=checkpoints,
            clock=ClockPump(self.control, self.recorder, run_config.async_rl.stall_watchdog),
            rows=self.rows,
            recorder=self.recorder,
        )

    async def go(self, limit_s: float = 10.0) -> None:
        """Run to the end; a run that hangs fails."""
        await asyncio.wait_for(self.control.run(self.pumps.carry_out, self.pumps.clock.dead_end), limit_s)
        await self.pumps.checkpoints.written()
