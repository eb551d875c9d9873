"""What must hold of a run, checked by somebody who sees every event, every effect and every call of the pumps.

It keeps its own books: it knows what each effect asks for, and finds it wrong where a pump has not begun it when the
clock moves on, begins it twice, or begins something that nobody asked for. What is wrong goes to its world.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from fsm import effects as asked
from fsm.core import AppliedEvent, Core
from fsm.events import (
    Attempt,
    BackoffOver,
    ChunkTrained,
    ClaimUnreadable,
    Event,
    GroupFailed,
    GroupFinished,
    StallTimeout,
    StepFinished,
    SyncFinished,
)
from fsm.rules.changes import GroupCommitted
from fsm.snapshot import Json, snapshot
from fsm.state import State
from runtime.simulation.placement import Placement
from runtime.simulation.world import Ledger, SimulatedPlane, SimulatedWorld
from runtime.transport.answers import Aborted, Answer, Order, Row

TICK_S = 1e-6
"""Times that differ by less are the same."""
IN_HAND = ("spares", "queue", "running", "waiting", "backing_off", "ready", "chunk", "accumulated")
"""Lists of a snapshot that have prompts which are neither trained nor lost; the first two have only numbers."""


class Witness:
    """Sees one life of a controller. `deaf` once that has crashed."""

    def __init__(self, world: SimulatedWorld, ledger: Ledger, plane: SimulatedPlane) -> None:
        self.world = world
        self.ledger = ledger
        self.plane = plane
        self.deaf = False
        self.accepted = 0
        """Groups that finished and that the core took, kept or filtered."""
        self.refusals = 0
        """Groups that finished too late."""
        self.loaded = -1
        """The version of the last load that returned."""
        self.checkpointed = -1
        """The version of the last checkpoint that was asked for."""
        self.working = ""
        """What the trainer does now."""
        self._timeout_s = world.plan.settings.async_rl.rollout_failure.rollout_timeout_s
        self._progress_s = world.now_s()
        """When the core, a load or a validation last advanced (W2)."""
        self._owed: dict[tuple[str, object], list[float]] = {}
        """What the pumps must do before the clock moves on, and since when."""
        self._running: dict[Attempt, float] = {}
        """Attempts that run, as the core sees it, and since when (W1)."""
        self._unanswered: dict[Attempt, float] = {}
        """Attempts that were ordered and not answered, and since when."""
        self._sent: set[Attempt] = set()
        """Attempts with a worker that are on their way to it."""
        self._withdrawn: set[Attempt] = set()
        """Attempts that were aborted before they had one."""
        self._expired: set[Attempt] = set()
        self._backoffs: dict[Attempt, float] = {}
        """When each backoff is over."""
        self._unreadable: set[int] = set()
        self._placement = Placement(self.found)
        self._over = False
        self._trained: set[int] = set()
        """Rows of steps that are closed."""

    def found(self, what: str) -> None:
        if not self.deaf:
            self.world.found(what)

    def _owe(self, kind: str, key: object) -> None:
        self._owed.setdefault((kind, key), []).append(self.world.now_s())

    def _done(self, kind: str, key: object) -> bool:
        """Whether it was owed."""
        times = self._owed.get((kind, key))
        if times is None:
            return False
        times.pop(0)
        if not times:
            del self._owed[kind, key]
        return True

    def look(self) -> None:
        """Find what should have been done by now. Called whenever the pumps call anybody."""
        now_s = self.world.now_s() - TICK_S
        late = [what for what, times in self._owed.items() if times[0] < now_s and not self._over]
        for kind, key in late:
            if not (kind == "clear" and key not in self.plane.rows):
                self.found(f"nobody has done this: {kind} {key}")
            del self._owed[kind, key]
        if self._timeout_s is not None and self._running:
            attempt, since_s = next(iter(self._running.items()))
            if since_s + self._timeout_s < now_s:
                self.found(f"{attempt} has run beyond its deadline (W1)")
                self._running.clear()
        if self._backoffs and min(self._backoffs.values()) < now_s:
            self.found(f"a backoff is over, and the core was not told: {self._backoffs}")
            self._backoffs.clear()
        self._placement.look()

    # The core

    def offered(self, event: Event) -> None:
        """Control gives the core an event, which it may refuse."""
        self.look()
        if isinstance(event, GroupFailed):
            self._placement.fails(event)
        if not isinstance(event, GroupFinished | GroupFailed) or self._done("apply the answer to", event.attempt):
            return
        since_s = self._unanswered.get(event.attempt)
        due_s = None if since_s is None or self._timeout_s is None else since_s + self._timeout_s
        if due_s is not None and due_s <= self.world.now_s() + TICK_S and event.attempt not in self._expired:
            self._expired.add(event.attempt)
            self._owe("abort", event.attempt)  # it would keep its place in the engine
        else:
            self.found(f"nobody has answered so: {event}")

    def refused(self, event: Event, before: State, after: State) -> None:
        self.refusals += isinstance(event, GroupFinished)
        if before is not after:
            self.found("a late answer has changed the core's state (D2)")

    def applied(self, transition: AppliedEvent) -> None:
        """The core has applied an event."""
        self.world.events += 1
        self._event(transition.event)
        for change in transition.changes:
            if type(change) is GroupCommitted and isinstance(transition.event, GroupFinished):
                attempt = transition.event.attempt
                self.ledger.accepted[attempt.prompt] = attempt
        for effect in transition.effects:
            self._effect(effect)

    def _event(self, event: Event) -> None:
        now_s = self.world.now_s()
        if isinstance(event, GroupFinished | StepFinished):
            self.progressed()
        match event:
            case StallTimeout():
                stall_s = self.world.plan.settings.async_rl.stall_watchdog.stall_timeout_s
                if now_s - self._progress_s < stall_s - TICK_S:
                    self.found(f"the run is called stalled {now_s - self._progress_s:.1f} s after it went on (W2)")
            case GroupFinished(attempt) | GroupFailed(attempt):
                self._running.pop(attempt, None)
                self.accepted += isinstance(event, GroupFinished)
            case BackoffOver(attempt):
                if abs(self._backoffs.pop(attempt, -1.0) - now_s) > TICK_S:
                    self.found(f"{event} comes at another time than its backoff ends")
            case ClaimUnreadable(prompt):
                if prompt not in self._unreadable:
                    self.found(f"{event}, which the trainer has not said")
                self._unreadable.discard(prompt)
            case ChunkTrained() | StepFinished() if self.working:
                self.found(f"{event} while the trainer still has {self.working}")
            case ChunkTrained() if self._unreadable:
                self.found(f"{event}, and the core was not told that prompts {self._unreadable} are unreadable (S5)")
            case SyncFinished(version):
                self._synced(version)
            case _:
                pass

    def progressed(self) -> None:
        """A group finished, a step closed, or a part of a validation is done (W2)."""
        self._progress_s = self.world.now_s()

    def _synced(self, version: int) -> None:
        checkpointing = self.world.plan.settings.checkpointing
        if self.loaded != version:
            self.found(f"version {version} is said to be synced, and workers have confirmed {self.loaded}")
        due = checkpointing.enabled and checkpointing.every_steps and version % checkpointing.every_steps == 0
        if due and self.checkpointed != version:
            self.found(f"version {version} is synced without the checkpoint that is due")
        every = self.world.plan.settings.sets[0].every_steps
        if every and version % every == 0:
            self._owe("measure", version)

    def measures(self, version: int) -> None:
        """The pump has the workers measure a set."""
        self.look()
        if not self._done("measure", version):
            self.found(f"nobody has asked to measure version {version}")

    def _effect(self, effect: asked.Effect) -> None:
        match effect:
            case asked.StartRollout(attempt, _, _, start_weight):
                if attempt.prompt in self.ledger.fates:
                    self.found(f"{attempt} starts, and the prompt was {self.ledger.fates[attempt.prompt]}")
                self._running[attempt] = self.world.now_s()
                self._owe("order", Order(attempt, start_weight))
            case asked.AbortRollout(attempt):
                self._running.pop(attempt, None)
                self._decide([attempt.prompt], "aborted")
                self._stopped(attempt)
            case asked.StartBackoff(attempt, delay_s):
                self._backoffs[attempt] = self.world.now_s() + delay_s
            case asked.TrainChunk(step, _, groups):
                self._owe("train", (step, tuple(group.prompt for group in groups)))
            case asked.FinishStep(step):
                self._owe("take the optimizer step", step)
            case asked.SyncWeights(version):
                self._owe("begin the sync of", version)
            case asked.StepClosed(step, selected, charged, short):
                self._closed(step, selected, charged, short)
            case asked.ClearRows(prompts, why):
                self._cleared(prompts, str(why))
            case _:
                self._over = True  # tasks that have been started may still begin their call

    def _stopped(self, attempt: Attempt) -> None:
        """An attempt that a worker has, or will be sent, must be aborted there; any other must not be sent."""
        if attempt in self._unanswered or attempt in self._sent:
            self._owe("abort", attempt)
            return
        self._withdrawn.add(attempt)
        for kind, order in list(self._owed):
            if isinstance(order, Order) and order.attempt == attempt:
                self._done(kind, order)

    def _closed(self, step: int, selected: int, charged: int, short: int) -> None:
        size, history = self.world.plan.setup.limits.size, self.ledger.history
        if selected + charged + short != size or (short and not self.world.plan.setup.limits.closes_short):
            self.found(f"step {step} closes with {selected} selected, {charged} charged and {short} short of {size}")
        if len(history) != step + 1 or len(history[-1]) != selected:
            self.found(f"step {step} closes with {selected} selected, and the trainer has trained {history[step:]}")

    def _cleared(self, prompts: Sequence[int], why: str) -> None:
        self._decide(prompts, why)
        attempts = {self.ledger.accepted.get(prompt) for prompt in prompts}
        rows = {row for row, attempt in self.plane.rows.items() if attempt in attempts}
        if why == "trained":
            self._trained |= rows
            if set(prompts) != set(self.ledger.history[-1] if self.ledger.history else ()):
                self.found(f"prompts {prompts} are called trained, and the trainer has trained another step")
        else:
            for row in rows:
                self._owe("clear", row)

    def _decide(self, prompts: Iterable[int], fate: str) -> None:
        for prompt in prompts:
            if prompt in self.ledger.fates:
                self.found(f"prompt {prompt} is {fate}, and was {self.ledger.fates[prompt]} before (X4)")
            self.ledger.fates[prompt] = fate

    def placed(self, worker: str, attempts: Sequence[Attempt], serving: Sequence[str]) -> None:
        """The pump has chosen a worker, of those that serve, for attempts."""
        self._sent.update(attempts)
        if withdrawn := self._withdrawn & self._sent:
            self.found(f"{withdrawn} were aborted before they were sent, and are sent")
        self._placement.gives(worker, attempts, serving)

    def exchanges(self, worker: str, orders: Sequence[Order]) -> None:
        """The pump calls a worker."""
        self.look()
        for order in orders:
            if not self._done("order", order):
                self.found(f"nobody has asked for {order}")
            self._sent.discard(order.attempt)
            self._unanswered[order.attempt] = self.world.now_s()
        if not orders and not self._placement.has_any(worker):
            self.found(f"{worker} is asked for answers, and has nothing to answer")

    def takes_orders(self, orders: Sequence[Order], version: int) -> None:
        """A worker that runs `version` begins."""
        for order in orders:
            if order.start_weight > version:
                self.found(f"{order} is begun by a worker that runs version {version}")

    def answered(self, worker: str, answers: Iterable[Answer]) -> None:
        """The pump is given answers."""
        self.look()
        for answer in answers:
            self._answer(worker, answer.attempt, counts=not isinstance(answer, Aborted))

    def reported_lost(self, worker: str, attempts: Iterable[Attempt]) -> None:
        """The pump is told that attempts died with their worker."""
        self.look()
        for attempt in attempts:
            self._answer(worker, attempt, counts=True)

    def _answer(self, worker: str, attempt: Attempt, *, counts: bool) -> None:
        if self._unanswered.pop(attempt, None) is not None:
            self._placement.answers(worker)
        self._done("abort", attempt)
        if counts:
            self._owe("apply the answer to", attempt)

    def aborts(self, attempts: Iterable[Attempt]) -> None:
        """The pump stops attempts."""
        self.look()
        for attempt in attempts:
            self._done("abort", attempt)

    def trains(self, step: int, prompts: tuple[int, ...]) -> None:
        """The pump hands a chunk to the trainer."""
        self.look()
        if not self._done("train", (step, prompts)):
            self.found(f"nobody has asked to train prompts {prompts} in step {step}")
        self.begins(f"the chunk {prompts} of step {step}")
        if left := self._trained & self.plane.rows.keys():
            self.found(f"rows of earlier steps are not cleared with the next chunk: {left}")

    def begins(self, what: str) -> None:
        """The trainer begins something."""
        if self.working:
            self.found(f"the trainer gets {what} while it has {self.working}")
        self.working = what

    def reads(self, prompt: int, row: Row) -> bool:
        """Whether the trainer, or a checkpoint, can read the data of a prompt."""
        attempt = self.plane.rows.get(row)
        if attempt is None and row not in self.plane.taken:
            self.found(f"the data of prompt {prompt} is read, and was cleared before")
        if attempt is not None and attempt != self.ledger.accepted.get(prompt):
            self.found(f"the data of prompt {prompt} is of {attempt}, not of {self.ledger.accepted.get(prompt)}")
        return attempt is not None

    def claims(self, prompts: Iterable[int]) -> None:
        """The trainer says that it cannot read these."""
        self._unreadable |= set(prompts)

    def finishes(self, step: int) -> None:
        """The pump asks for the optimizer step."""
        self.look()
        if not self._done("take the optimizer step", step):
            self.found(f"nobody has asked for the optimizer step {step}")
        self.begins(f"the optimizer step {step}")

    def trained(self, prompts: tuple[int, ...]) -> None:
        """The optimizer step is done: from now on these prompts are in the weights."""
        before = {prompt for step in self.ledger.history for prompt in step}
        if twice := before & set(prompts):
            self.found(f"prompts {twice} are trained twice (C2)")
        self.ledger.history.append(prompts)

    def syncs(self, version: int) -> None:
        """A checkpoint or the publication of a version, whichever comes first, begins its sync."""
        self.look()
        self._done("begin the sync of", version)

    # The end

    def ends(self, core: Core, kept: int, undelivered: set[int]) -> None:
        """The controller's work is over, and it has not crashed.

        `kept`: how many rows it knows. `undelivered`: rows whose answer it was not given.
        """
        self.look()
        self._over = True
        self._running.clear()
        self._backoffs.clear()
        saved = snapshot(core)
        self._every_prompt_is_in_one_place(core.state, saved)
        there = {group[0] for place in ("ready", "chunk", "accumulated") for group in saved[place]}
        wanted = {self.ledger.accepted[prompt] for prompt in there}
        if kept != len(there):
            self.found(f"{kept} rows are known at the end, and {len(there)} groups have data")
        rows = self.plane.rows
        last = set(self.ledger.history[-1]) if self.ledger.history else set()
        left = {row: at for row, at in rows.items() if at not in wanted and row not in undelivered}
        if more := [at for at in left.values() if at.prompt not in last or self.ledger.accepted[at.prompt] != at]:
            self.found(f"rows are left that nobody needs: {more}")
        if (missing := wanted - set(rows.values())) and len(missing) > len(self.plane.taken):
            self.found(f"data of groups that are left over is gone: {missing}")

    def _every_prompt_is_in_one_place(self, state: State, saved: Json) -> None:
        """X4."""
        sheet, fates = state.sheet, Counter(self.ledger.fates.values())
        seen = {fate: fates[fate] for fate in ("trained", "filtered", "dropped", "evicted", "aborted")}
        counted = {fate: sheet.as_counts()[fate] for fate in seen}
        if seen != counted:
            self.found(f"the balance sheet has {counted}, and {seen} were seen (X4)")
        in_hand = [each if isinstance(each, int) else each[0] for place in IN_HAND for each in saved[place]]
        everywhere = [*in_hand, *self.ledger.fates]
        if len(everywhere) != len(set(everywhere)) or len(everywhere) != sheet.pulled:
            self.found(f"of {sheet.pulled} prompts pulled, {sorted(in_hand)} are in hand, and {fates} (X4)")
