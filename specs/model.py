"""What the checker explores: the core's own functions, and every answer that the world may give, at any time.

An answer names a class, not a group. The world also decides whether a failed attempt is retried or given up on,
since the counts do not hold a prompt's attempts. `CORE` is the real core. A broken variant is
`CORE._replace(answer=...)` (or `settle`, `resume`, `possible`, `begin`), another table through `with_tables`, or
another sampler in the laws.

A late answer is about an attempt that is over, so its class no longer counts it. If no other group is in that class,
the core's functions refuse the answer; `late` tries that for groups that back off or wait to start. If another group
of the class runs, the roster tells the two apart (D2), which is tested on `fsm.Core`.

Resuming from an earlier checkpoint leads nowhere that resuming from a state's own snapshot does not: a checkpoint is
a state that was reached, and the new process knows nothing else (C1). So `CrashFrom.OWN_SNAPSHOT` has every
state of `CrashFrom.LAST_CHECKPOINT`, which keeps the checkpoint with the state and tries every pair of the two.
"""

from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Any, NamedTuple, TypeVar

from fsm.errors import InvariantBroken
from fsm.events import FailureKind
from fsm.machines.prompt_group import PROMPT_GROUP, BalanceSheet
from fsm.machines.table import Fairness, Table, Value, fire
from fsm.machines.trainer import TRAINER, TrainerState
from fsm.rules import on_event, own_moves
from fsm.rules.changes import Done
from fsm.rules.laws import Laws
from fsm.samplers.protocol import labels_of
from fsm.state import GroupClass, State, is_over
from fsm.values import pages

CORE_FAULTS = (InvariantBroken, ValueError, KeyError)
"""What the core's functions raise if one of them asks for what another refuses."""


class Answer(NamedTuple):
    """One thing that the world may do."""

    name: str
    group_class: GroupClass | None = None
    """The class of the group that it is about; None if it is about none."""
    label: int = 0
    """What a custom sampler sees of a group that commits."""


class CrashFrom(Enum):
    """What a process that died resumes from."""

    NOTHING = "nothing"
    """No process dies."""
    OWN_SNAPSHOT = "own_snapshot"
    """A snapshot of the moment of the crash."""
    LAST_CHECKPOINT = "last_checkpoint"
    """The last checkpoint, taken at any moment; the run restarts if there is none. Squares the states."""


class WorldOptions(NamedTuple):
    """What the world may do besides the answers that every run needs. By default all of it."""

    fails: bool = True
    """Attempts fail, and are retried or given up on."""
    backs_off: bool = True
    """A retry waits for its backoff; else it starts at once, or after a sync, as after data failures."""
    claims_fail: bool = True
    """Data of selected groups turns out unreadable (S5)."""
    late: bool = True
    """Answers come for attempts that are over."""
    crash: CrashFrom = CrashFrom.OWN_SNAPSHOT


def world_of(base: WorldOptions, changes: Mapping[str, Any]) -> WorldOptions:
    """`base` with changes as a file has them."""
    world = base._replace(**changes)
    return world._replace(crash=CrashFrom(world.crash))


def _declared(table: Table[Any, Any], event: str) -> Fairness:
    """The fairness of the table's rules for the event, which is one for all of them."""
    [fairness] = {rule.fairness for rule in table.rules if rule.event == event}
    return fairness


FAIRNESS: Mapping[str, Fairness] = {
    "commit": _declared(PROMPT_GROUP, "commit"),
    "filter": _declared(PROMPT_GROUP, "filter"),
    "end_backoff": _declared(PROMPT_GROUP, "start"),
    "drop": _declared(PROMPT_GROUP, "drop"),
    "skip": _declared(PROMPT_GROUP, "drop"),
    "claim_failed": _declared(PROMPT_GROUP, "claim_failed"),
    "chunk_trained": _declared(TRAINER, "chunk_trained"),
    "step_finished": _declared(TRAINER, "step_finished"),
    "weights_synced": _declared(TRAINER, "weights_synced"),
    # No table has a rule for these, and no run can count on them:
    "retry": Fairness.NONE,
    "back_off": Fairness.NONE,
    "late": Fairness.NONE,
    "save": Fairness.NONE,
    "crash": Fairness.NONE,
}
"""What the world must do in the end if it stays possible, per class of groups; no run needs more than weak fairness."""

FINITE: frozenset[str] = frozenset({"retry", "back_off", "crash"})
"""Answers that no run has forever: each prompt has a budget of attempts (L7), the data ends, and a run that crashes
forever need not end. They are explored without a limit, but no cycle that refutes an `eventually` has one."""

IDLE: frozenset[str] = frozenset({"late", "save", "crash"})
"""Answers that do not get a run out of a deadlock."""


Possible = Callable[[State, Laws, WorldOptions], Iterator[Answer]]


def possible(state: State, laws: Laws, world: WorldOptions) -> Iterator[Answer]:
    """Every answer that may come in this state, except `save`."""
    if is_over(state):
        return
    labels = labels_of(laws.sampler)
    for group_class, _ in pages.items(state.running):
        yield from _rollout_answers(group_class, laws, world, labels)
    for group_class, _ in pages.items(state.backing_off):
        yield Answer("end_backoff", group_class)
        if world.late:
            yield Answer("late", group_class)
    if world.late:
        for group_class, _ in pages.items(state.waiting):
            yield Answer("late", group_class)
    match state.trainer.status:
        case TrainerState.TRAINING:
            yield Answer("chunk_trained")
            if world.claims_fail:
                for group_class, _ in pages.items(state.chunk):
                    yield Answer("claim_failed", group_class)
        case TrainerState.FINISHING:
            yield Answer("step_finished")
        case TrainerState.SYNCING:
            yield Answer("weights_synced")
    if world.crash is not CrashFrom.NOTHING:
        yield Answer("crash")


def _rollout_answers(group_class: GroupClass, laws: Laws, world: WorldOptions, labels: int) -> Iterator[Answer]:
    """What a running attempt of the class may answer."""
    for label in range(labels):
        yield Answer("commit", group_class, label)
    if laws.limits.dynamic_sampling:
        yield Answer("filter", group_class)
    if world.fails:
        yield Answer("back_off" if world.backs_off else "retry", group_class)
        yield Answer("drop", group_class)
        if laws.limits.max_skipped:
            yield Answer("skip", group_class)


def answer(state: State, laws: Laws, given: Answer) -> Done:
    """Apply an answer by the core's functions, before the core's own moves. The checker handles `crash` and `save`."""
    group_class = given.group_class or GroupClass()
    match given.name:
        case "commit":
            return on_event.commit(state, laws, group_class, given.label)
        case "filter":
            return on_event.filter_group(state, laws, group_class)
        case "retry":
            return on_event.retry(state, laws, group_class, FailureKind.DATA, backs_off=False)
        case "back_off":
            return on_event.retry(state, laws, group_class, FailureKind.INFRA, backs_off=True)
        case "end_backoff":
            return on_event.end_backoff(state, laws, group_class)
        case "drop":
            return on_event.give_up(state, laws, group_class, FailureKind.INFRA, "an attempt failed")
        case "skip":
            return on_event.give_up(state, laws, group_class, FailureKind.DATA, "an attempt failed")
        case "late":
            return _late(state, laws, group_class)
        case "claim_failed":
            return on_event.fail_claim(state, laws, group_class, "a group is unreadable")
        case "chunk_trained":
            return on_event.finish_chunk(state, laws)
        case "step_finished":
            return on_event.close_step(state, laws)
        case "weights_synced":
            return on_event.finish_sync(state, laws)
    raise ValueError(f"{given.name} is no answer of the world")


def _late(state: State, laws: Laws, group_class: GroupClass) -> Done:
    """A commit of a class that no running attempt is in: refused, or applied if the core is broken."""
    try:
        return on_event.commit(state, laws, group_class, 0)
    except ValueError:
        return state, []


class Model(NamedTuple):
    """The functions that are explored. Each is deterministic and looks at its arguments alone."""

    begin: Callable[[Laws], State] = on_event.begin
    possible: Possible = possible
    answer: Callable[[State, Laws, Answer], Done] = answer
    settle: Callable[[State, Laws], Done] = own_moves.settle
    """All of the core's own moves. Settling a state that it returns must do nothing."""
    resume: Callable[[State, Laws], Done] = on_event.resume
    """After a crash: from the state that was saved to the one in which the new process begins."""
    fairness: Mapping[str, Fairness] = FAIRNESS
    finite: frozenset[str] = FINITE


CORE = Model()
"""The real core."""


def initial(laws: Laws, model: Model = CORE) -> State:
    """The state after Begin."""
    return canonical(model.settle(model.begin(laws), laws)[0])


def after(state: State, laws: Laws, given: Answer) -> Done:
    """The state after an answer and all of the core's own moves; `crash` resumes from `state` itself."""
    moved, done = CORE.resume(state, laws) if given.name == "crash" else CORE.answer(state, laws, given)
    moved, own = CORE.settle(moved, laws)
    return moved, done + own


_NOTHING_OVER = (0,) * (len(BalanceSheet._fields) - 6)


def canonical(state: State) -> State:
    """The state without the balance sheet's columns of groups that are gone for good, which no rule reads."""
    sheet = state.sheet
    hands = sheet[1:6]
    in_hand = sum(hands)
    if sheet[6:] == _NOTHING_OVER and sheet[0] == in_hand:
        return state
    return state._replace(sheet=BalanceSheet(in_hand, *hands))


def deadlocked(state: State, laws: Laws, world: WorldOptions, model: Model = CORE) -> bool:
    """The run is not over, and nothing that could come would ever change that."""
    return not is_over(state) and all(given.name in IDLE for given in model.possible(state, laws, world))


V = TypeVar("V", bound=Value)
C = TypeVar("C")


def with_tables(laws: Laws, *tables: Table[Any, Any]) -> Laws:
    """Laws under which these tables take the place of those of the same name."""
    others = {table.name: table for table in tables}

    def fire_other(table: Table[V, C], event: str, value: V, context: C) -> V:
        moved: V = fire(others.get(table.name, table), event, value, context)
        return moved

    return laws._replace(fire=fire_other)
