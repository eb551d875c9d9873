"""The core's state: a NamedTuple of NamedTuples of integers, and counts of groups per class.

Groups that no rule can tell apart are counted, not listed. The roster (`fsm.groups.roster`) knows which prompt is
which, and nothing here depends on it.
"""

from typing import NamedTuple

from fsm.machines.admission_gate import AdmissionGate
from fsm.machines.prompt_group import BalanceSheet
from fsm.machines.run import Run, RunState
from fsm.machines.shortfall_ledger import ShortfallLedger
from fsm.machines.source import Source
from fsm.machines.spare_pool import SparePool
from fsm.machines.step_assembly import StepAssembly
from fsm.machines.trainer import Trainer
from fsm.values import pages
from fsm.values.pages import Pages
from fsm.values.updates import fast_replace

_RUNNING = RunState.RUNNING  # an enum's members are slow to look up
NONE = -1
"""Stands for "none" in a class and in the limits, where every value is an integer."""


@fast_replace
class GroupClass(NamedTuple):
    """What a rule can see of a group; groups of one class are interchangeable.

    Classes sort by stamp, then by start weight. Start weights never fall from one attempt to the next, so
    within one stamp this is the order of dispatch (S3).
    """

    target_step: int = NONE
    """The step that it is stamped for (A2), or NONE."""
    bucket: int = NONE
    """weight_fifo: the version at its batch's admission (D3), or NONE."""
    start_weight: int = NONE
    """The version whose weights had last been synced when its attempt started; NONE while it waits to start."""
    replacements: int = 0
    """Replacements that its slot has had; 0 once ready, where it no longer matters (S5)."""
    label: int = 0
    """What else a custom sampler sees of it; given when the group commits."""


def starting(group_class: GroupClass, version: int) -> GroupClass:
    """The class of an attempt that starts under `version`, or waits to start (NONE)."""
    return group_class._replace(start_weight=version)


Counts = Pages[GroupClass, int]
"""Groups per class."""


class Queue(NamedTuple):
    """Prompts admitted and not yet dispatched. They are of one batch: the next is admitted when none is queued."""

    target_step: int = NONE
    bucket: int = NONE
    groups: int = 0


class Budgets(NamedTuple):
    """What is spent of the drop budgets (L7)."""

    consecutive_dropped: int = 0
    """Prompts given up on after infra failures since a group last finished."""
    skipped: int = 0
    """Prompts given up on after data failures in the whole run."""


@fast_replace
class State(NamedTuple):
    """Everything that the rules look at, besides the laws of the run."""

    run: Run = Run()
    source: Source = Source()
    pool: SparePool = SparePool()
    gate: AdmissionGate = AdmissionGate()
    trainer: Trainer = Trainer()
    step: StepAssembly = StepAssembly()
    """Of the step `trainer.version`, the one being trained."""
    ledgers: Pages[int, ShortfallLedger] = ()
    """Per open step that has a charge."""
    filtered: Pages[int, int] = ()
    """Per open step the groups filtered for it (L8); empty where no limit is set."""
    queue: Queue = Queue()
    backing_off: Counts = ()
    """In flight, between a failed attempt and its retry."""
    waiting: Counts = ()
    """In flight, to start as soon as no sync is under way (D2)."""
    running: Counts = ()
    """In flight, generating."""
    ready: Counts = ()
    chunk: Counts = ()
    """Selected, in training now."""
    accumulated: Counts = ()
    """Selected into the open step by earlier chunks."""
    budgets: Budgets = Budgets()
    sheet: BalanceSheet = BalanceSheet()


class Limits(NamedTuple):
    """The configuration as the rules see it: integers. Names are the configuration's where it has one."""

    size: int
    """N, num_prompts_per_step."""
    min_groups: int
    """min_groups_for_streaming_train."""
    max_inflight: int
    max_buffered: int
    reserve: int
    """replacement_reserve_prompts; 0 where no pool is used."""
    max_replacements: int
    """max_replacement_attempts; 0 where no pool is used."""
    floor: int
    """ceil(N × min_step_batch_fraction)."""
    max_steps: int
    """max_num_steps, or NONE."""
    max_filtered: int
    """dynamic_sampling_max_gen_batches × N, or NONE."""
    prompts_per_epoch: int
    epochs: int
    max_consecutive_dropped: int
    max_skipped: int
    dynamic_sampling: int
    """1 or 0."""
    closes_short: int
    """1 for a sampler that closes its last step short at exhaustion; A6 does not close its gate (X1)."""
    first_prompt: int = 0
    """The number of this data's first prompt; after a resume with other data it follows those of the old data (C3)."""

    @property
    def uses_pool(self) -> bool:
        """Lost groups are replaced from the spare pool."""
        return self.max_replacements > 0

    @property
    def skips_trailing(self) -> bool:
        """An epoch's trailing batch of fewer than N prompts is never pulled (A5)."""
        return not self.uses_pool and not self.closes_short


def charged(state: State, step: int) -> int:
    """The shortfall of an open step."""
    if not state.ledgers:
        return 0
    ledger = pages.get(state.ledgers, step, None)
    return ledger.charged if ledger is not None else 0


def selected(state: State, step: int) -> int:
    """Groups selected into an open step."""
    return state.step.selected if step == state.trainer.version else 0


def assembling_step(state: State, limits: Limits) -> int:
    """The earliest step with selected + charged < N, whether or not the trainer is still busy (L3)."""
    step = state.trainer.version
    if state.step.selected + charged(state, step) < limits.size:
        return step
    while charged(state, step + 1) >= limits.size:
        step += 1
    return step + 1


def slots_accounted(state: State, limits: Limits) -> bool:
    """X2: under a gated sampler every admitted slot is in hand, selected, or charged to an open step."""
    sheet = state.sheet
    admitted = (state.gate.dispatch_index + 1 - state.trainer.version) * limits.size
    lost = sum(ledger.charged for _, ledger in pages.items(state.ledgers))
    return admitted == sheet.queued + sheet.in_flight + sheet.ready + sheet.selected + lost


def is_over(state: State) -> bool:
    """The run is completed or stopped."""
    return state.run.status is not _RUNNING


class View:
    """What a sampler may look at: read-only, and valid only during the call that it is passed to."""

    __slots__ = ("_state", "limits")

    def __init__(self, state: State, limits: Limits) -> None:
        self._state = state
        self.limits = limits

    @property
    def version(self) -> int:
        """Optimizer steps done; also the number of the step being trained."""
        return self._state.trainer.version

    @property
    def dispatch_index(self) -> int:
        """Batches admitted, less one."""
        return self._state.gate.dispatch_index

    @property
    def groups_per_step(self) -> int:
        """N."""
        return self.limits.size

    @property
    def assembling_step(self) -> int:
        """The earliest step with selected + charged < N."""
        return assembling_step(self._state, self.limits)

    def selected(self, step: int) -> int:
        """Groups selected into an open step."""
        return selected(self._state, step)

    def charged(self, step: int) -> int:
        """Groups charged to an open step."""
        return charged(self._state, step)

    @property
    def queue(self) -> Queue:
        """The batch that is admitted and not yet wholly dispatched."""
        return self._state.queue

    @property
    def ready(self) -> Counts:
        """Ready groups per class, in pages; `fsm.values.pages` reads them: `items`, `items_from`, `first`, `get`."""
        return self._state.ready

    @property
    def running(self) -> Counts:
        """Groups whose attempt runs, per class, in pages."""
        return self._state.running

    @property
    def waiting(self) -> Counts:
        """Groups in flight that wait to start, per class, in pages."""
        return self._state.waiting

    @property
    def backing_off(self) -> Counts:
        """Groups in flight between two attempts, per class, in pages."""
        return self._state.backing_off

    @property
    def ready_groups(self) -> int:
        """How many groups are ready, over all classes."""
        return self._state.sheet.ready

    @property
    def in_flight_groups(self) -> int:
        """How many groups are in flight, over all classes."""
        return self._state.sheet.in_flight

    def ready_classes(self) -> list[tuple[GroupClass, int]]:
        """Ready groups per class, in order of dispatch within a stamp."""
        return list(pages.items(self._state.ready))

    def in_flight_classes(self) -> list[tuple[GroupClass, int]]:
        """Groups in flight per class: running, waiting, backing off."""
        return [
            pair
            for counts in (self._state.running, self._state.waiting, self._state.backing_off)
            for pair in pages.items(counts)
        ]
