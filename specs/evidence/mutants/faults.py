"""Faults that control loops of this kind are known to have, each with a run that shows it and the property it breaks.

Each is the core with one decision made as the faulty loop makes it; a fault that a table's guard would stop bypasses
the table. The core itself holds in the same run, or setup refuses the run.
"""

from __future__ import annotations

from typing import NamedTuple

from fsm.machines.prompt_group import TRANSFER, BalanceSheet
from fsm.machines.shortfall_ledger import ShortfallLedger
from fsm.machines.source import SourceState
from fsm.machines.spare_pool import SparePool
from fsm.machines.table import with_status
from fsm.rules import changes, losses, own_moves
from fsm.rules.changes import Done, Made
from fsm.rules.laws import Laws
from fsm.samplers.builtin import WeightFifo
from fsm.samplers.protocol import Admission
from fsm.state import GroupClass, State, View
from fsm.values import pages
from specs.evidence.mutants.mutant import Mutant, Swap, answering, instead, resuming, with_limits
from specs.evidence.small_run import CALM, SmallRun
from specs.model import CORE, Answer, CrashFrom
from specs.properties.kinds import DEADLOCK, REFUSED


class KnownFault(NamedTuple):
    """One known fault."""

    mutant: Mutant
    breaks: str
    """The property that finds it, looked for alone (deadlocks and refusals are looked for in any case)."""
    events: int
    """The length of the shortest counterexample."""
    scope: SmallRun
    """The smallest run that shows it."""
    refused_for: str | None = None
    """If setup refuses the run, a word of its message; None if the core holds in the run."""


def _charged_to_the_trainers_step(state: State, laws: Laws, _: GroupClass) -> Done:
    """Does not look whether the step has a place left: that is the fault."""
    del laws
    step = state.trainer.version
    ledger = pages.get(state.ledgers, step, ShortfallLedger())
    charged = ledger._replace(charged=ledger.charged + 1)
    return state._replace(ledgers=pages.put(state.ledgers, step, charged)), [changes.GroupLost(step)]


_drop = TRANSFER["drop"]


def _keeps_the_permit(sheet: BalanceSheet, groups: int) -> BalanceSheet:
    """The group stays in the column that its permit is counted by."""
    _drop(sheet, groups)
    return sheet


class _Unstamping(WeightFifo):
    """A batch has no bucket until its attempts start: one behind all others stands in."""

    def admit(self, view: View) -> Admission | None:
        return None if super().admit(view) is None else Admission(bucket=1_000_000)


def _with_unstamping(laws: Laws) -> Laws:
    assert isinstance(laws.sampler, WeightFifo)
    return laws._replace(sampler=_Unstamping(laws.sampler.window))


def _dispatch_stamped(state: State, laws: Laws) -> Made | None:
    bucket = state.trainer.version
    return own_moves.dispatch(state._replace(queue=state.queue._replace(bucket=bucket)), laws)


def _start_stamped(state: State, laws: Laws) -> Made | None:
    waiting = pages.of((c._replace(bucket=state.trainer.version), groups) for c, groups in pages.items(state.waiting))
    return own_moves.start_waiting(state._replace(waiting=waiting), laws)


def _exhausted_early(state: State, laws: Laws) -> Made | None:
    """As soon as nothing is queued, whatever is in flight."""
    sheet = state.sheet
    if state.source.status is not SourceState.DRAINING_SPARES or sheet.queued or sheet.spare >= laws.limits.size:
        return None
    return state._replace(source=with_status(state.source, SourceState.EXHAUSTED)), changes.SourceExhausted()


def _commit_stamped(state: State, laws: Laws, given: Answer) -> Done:
    """The start weight of a ready group is the version at the attempt's end."""
    moved, [move] = CORE.answer(state, laws, given)
    assert isinstance(move, changes.GroupCommitted)
    now = move.after._replace(start_weight=state.trainer.version)
    ready = pages.add(pages.add(moved.ready, move.after, -1), now, 1)
    return moved._replace(ready=ready), [move._replace(after=now)]


def _late_applied(state: State, laws: Laws, given: Answer) -> Done:
    assert given.group_class is not None
    as_if_running = state._replace(running=pages.add(state.running, given.group_class, 1))
    return CORE.answer(as_if_running, laws, given._replace(name="commit"))


def _without_pool(state: State) -> State:
    sheet = state.sheet
    return state._replace(pool=SparePool(), sheet=sheet._replace(spare=0, pulled=sheet.pulled - sheet.spare))


def _without_flight(state: State) -> State:
    sheet = state.sheet._replace(in_flight=0, pulled=state.sheet.pulled - state.sheet.in_flight)
    return state._replace(running=(), waiting=(), backing_off=(), sheet=sheet)


_TO_NO_STEP = Swap(losses, "ask_charge", lambda *_: None)
_FAILS = CALM._replace(fails=True)
_CRASHES = CALM._replace(crash=CrashFrom.OWN_SNAPSHOT)
_DROP = {"max_consecutive_dropped_prompts": 1}
_REPLACE = {"on_dropped_prompt": "replace"}
_DYNAMIC = {"use_dynamic_sampling": True}
_SHRINKS = SmallRun("ready_first, N=2, one drop", "ready_first", 2, 1, 4, _FAILS, rollout_failure=_DROP)
_REPLACES = SmallRun(
    "ready_first, N=1, replace", "ready_first", 1, 1, 3, CALM, grpo=_DYNAMIC, rollout_failure=_REPLACE
)  # fmt: skip
_FIFO = SmallRun("weight_fifo, N=2, one permit", "weight_fifo", 2, 1, 4, async_rl={"max_inflight_prompts": 1})
_FIFO_RETRIES = SmallRun("weight_fifo, N=2, retries", "weight_fifo", 2, 1, 4, _FAILS)
_WINDOWED = SmallRun("windowed, N=2, no staleness", "windowed", 2, 0, 4)

FAULTS: tuple[KnownFault, ...] = (
    KnownFault(
        Mutant("charged to the trainer's step", "every unstamped loss is charged to the step the trainer is at, which "
               "shrinks a full step past its selected groups", "L3 L4",
               swaps=(Swap(losses, "lose", _charged_to_the_trainers_step),)),
        "balance", 3, _SHRINKS,
    ),
    KnownFault(
        Mutant("bucket stamped at dispatch", "a sync between two dispatches of one batch leaves a bucket that nothing "
               "can fill: it hangs with no failure at all", "D3",
               swaps=instead(own_moves.dispatch, _dispatch_stamped), laws=_with_unstamping),
        DEADLOCK, 7, _FIFO,
    ),
    KnownFault(
        Mutant("bucket stamped at each attempt", "one retry after a sync leaves a bucket that nothing can fill", "D3",
               swaps=instead(own_moves.start_waiting, _start_stamped)),
        DEADLOCK, 8, _FIFO_RETRIES,
    ),
    KnownFault(
        Mutant("weight_fifo filters and replaces late", "a replacement that comes after its bucket's batch was trained "
               "leaves a bucket that nothing can fill", "Refused at setup"),
        DEADLOCK, 13,
        SmallRun("weight_fifo, N=2, filter, replace", "weight_fifo", 2, 1, 8, CALM, grpo=_DYNAMIC,
              rollout_failure=_REPLACE, is_checked=False),
        "weight_fifo",
    ),
    KnownFault(
        Mutant("windowed without the short close", "evicted and aborted groups leave the last step short, and the "
               "run raises at exhaustion instead of closing it", "X1", laws=with_limits(closes_short=lambda _: 0)),
        REFUSED, 5, _WINDOWED,
    ),
    KnownFault(
        Mutant("windowed with a buffer below the streaming minimum", "no chunk is ever large enough", "A4"),
        DEADLOCK, 1,
        SmallRun("windowed, N=2, buffer of 1", "windowed", 2, 1, 4, async_rl={"max_buffered_rollouts": 1},
              is_checked=False),
        refused_for="max_buffered_rollouts",
    ),
    KnownFault(
        Mutant("charged to no step", "a step waits for ever for a group that is gone", "L3",
               swaps=(_TO_NO_STEP,)),
        "slots", 1, _SHRINKS,
    ),
    KnownFault(
        Mutant("charged to no step, seen as a hang", "the same, found by what the owner of the run would see", "L3",
               swaps=(_TO_NO_STEP,)),
        DEADLOCK, 2, _SHRINKS._replace(num_prompts=2),
    ),
    KnownFault(
        Mutant("permit leaked on a drop", "a group that is given up on keeps its permit of max_inflight_prompts", "D1",
               swaps=(Swap(TRANSFER, "drop", _keeps_the_permit),)),
        "permits", 1, _SHRINKS,
    ),
    KnownFault(
        Mutant("filtered group keeps its slot", "a filtered group keeps its place in the buffer", "D1 L1",
               swaps=(Swap(TRANSFER, "filter", TRANSFER["commit"]),)),
        "columns", 1, _REPLACES,
    ),
    KnownFault(
        Mutant("checkpoint forgets the pool", "the spares are gone after a crash", "C1",
               model=resuming(_without_pool)),
        "resumed", 1, _REPLACES._replace(world=_CRASHES),
    ),
    KnownFault(
        Mutant("checkpoint forgets what is in flight", "no one starts it again", "C1",
               model=resuming(_without_flight)),
        "resumed", 1, _SHRINKS._replace(world=_CRASHES, num_prompts=6),
    ),
    KnownFault(
        Mutant("checkpoint forgets the charges", "steps wait for groups that are gone", "C1",
               model=resuming(lambda state: state._replace(ledgers=()))),
        "resumed", 2, _SHRINKS._replace(world=_FAILS._replace(crash=CrashFrom.OWN_SNAPSHOT)),
    ),
    KnownFault(
        Mutant("version stamped at completion", "a group looks as fresh as the moment it finished, whatever weights "
               "generated it", "D2", model=answering("commit", _commit_stamped)),
        "stamps", 5, _SHRINKS._replace(world=CALM),
    ),
    KnownFault(
        Mutant("late answer applied", "an answer for an attempt that is over makes its group ready", "D2",
               model=answering("late", _late_applied)),
        "late", 2, _SHRINKS._replace(world=_FAILS._replace(backs_off=True, late=True)),
    ),
    KnownFault(
        Mutant("exhausted before the last loss", "the run completes while the last rollouts are in flight", "X1",
               swaps=instead(own_moves.exhaust, _exhausted_early)),
        "ends_when_due", 5, _SHRINKS._replace(window=0),
    ),
)  # fmt: skip
