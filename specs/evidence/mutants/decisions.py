"""Mutants of the decisions that are in no table: a wrong comparison, a forgotten condition, another order.

They are the gaps that a loop written by hand is known to have, rule by rule: admission, dispatch, selection and
eviction (A, D, S, E), losses (L), the pool and the ends (P, X), resumes (C), and the order of the core's own moves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from fsm.events import FailureKind
from fsm.machines.prompt_group import TRANSFER
from fsm.machines.source import SourceState
from fsm.machines.spare_pool import PoolState
from fsm.machines.table import with_status
from fsm.machines.trainer import TrainerState
from fsm.rules import losses, on_event, own_moves
from fsm.rules.changes import Done, Made
from fsm.rules.laws import Laws
from fsm.rules.own_moves import (
    OWN_MOVES,
    admit,
    complete_at_step_limit,
    dispatch,
    end_at_exhaustion,
    evict,
    exhaust,
    finish_step,
    refill_pool,
    select,
    start_waiting,
    stop_below_floor,
    stop_search,
)
from fsm.samplers import protocol
from fsm.samplers.builtin import InOrder, ReadyFirst, WeightFifo, Windowed, count, take
from fsm.samplers.protocol import Admission
from fsm.state import NONE, Budgets, Counts, GroupClass, Limits, State, View, assembling_step
from fsm.values import pages
from specs.evidence.mutants.mutant import (
    Mutant,
    answered,
    at_any_time,
    during_a_sync,
    in_order_of,
    limited,
    moved,
    only_if,
    resumed,
    swapped,
    with_limits,
)
from specs.model import CORE, Answer, Model

Picks = list[tuple[GroupClass, int]]
ENOUGH = 1_000
"""More than any limit of the portfolio."""


# Admission (A)


def _stamps_the_step_before(self: InOrder, view: View) -> Admission | None:
    if view.dispatch_index >= view.version + self.window:
        return None
    return Admission(target_step=max(view.dispatch_index, view.version))


def _gate_context(bound: Callable[[Limits], int]) -> Callable[..., Any]:
    real = own_moves._gate_context
    return lambda state, admission, limits: real(
        state, admission, limits._replace(max_steps=bound(limits), closes_short=0)
    )


ADMISSION = (
    swapped("A1: window one batch wider", "admits a batch too early", protocol, "within_window",
            lambda dispatch_index, version, window: dispatch_index <= version + window),
    swapped("A1: window one batch narrower", "admits a batch too late", protocol, "within_window",
            lambda dispatch_index, version, window: dispatch_index + 1 < version + window),
    swapped("A2: stamp of the step before", "two batches share a target step", InOrder, "admit",
            _stamps_the_step_before),
    swapped("A6: step limit ignored", "generates for steps that will not be", own_moves, "_gate_context",
            _gate_context(lambda _: NONE)),
    swapped("A6: step limit one less", "the last step has no batch", own_moves, "_gate_context",
            _gate_context(lambda limits: NONE if limits.closes_short else limits.max_steps - (limits.max_steps > 0))),
    swapped("A6: step limit bounds windowed too", "windowed cannot make up for evictions", own_moves, "_gate_context",
            _gate_context(lambda limits: limits.max_steps)),
    swapped("A5: trailing batch pulled", "a batch of fewer than N prompts comes under shrink", Limits,
            "skips_trailing", False),
    moved("A3: the gate is never moved", "it stays as it begins", own_moves.move_gate),
)  # fmt: skip


# Dispatch (D)

DISPATCH = (
    limited("D1: max_inflight_prompts ignored", "more permits are taken than there are", dispatch,
            max_inflight=lambda _: ENOUGH),
    limited("D1: max_inflight_prompts one more", "one permit too many is taken", dispatch,
            max_inflight=lambda limits: limits.max_inflight + 1),
    limited("D1: max_inflight_prompts one less", "one permit is never taken", dispatch,
            max_inflight=lambda limits: limits.max_inflight - 1),
    limited("D1: max_buffered_rollouts ignored", "more slots are taken than there are", dispatch,
            max_buffered=lambda _: ENOUGH),
    limited("D1: max_buffered_rollouts one less", "one slot is never taken", dispatch,
            max_buffered=lambda limits: limits.max_buffered - 1),
    moved("D1: dispatch during a sync", "an attempt starts while weights are loaded", dispatch,
          during_a_sync(dispatch)),
    moved("D2: start during a sync", "a retry starts while weights are loaded", start_waiting,
          during_a_sync(start_waiting)),
    moved("D2: a retry waits for the trainer", "a retry starts only while the trainer assembles", start_waiting,
          only_if(start_waiting, lambda state, _: state.trainer.status == 0)),
    swapped("D2: a retry keeps the first weights", "its start weight is not its own", own_moves, "starting",
            lambda group_class, _: group_class._replace(start_weight=0)),
)  # fmt: skip


# Selection (S)


def _select_of(classes: Callable[[View], Sequence[tuple[GroupClass, int]]]) -> Callable[..., Picks]:
    return lambda _, view, min_groups, max_groups: _enough(classes(view), min_groups, max_groups)


def _enough(classes: Any, min_groups: int, max_groups: int) -> Picks:
    picks = take(classes, max_groups)
    return picks if count(picks) >= min_groups else []


def _ready(view: View) -> list[tuple[GroupClass, int]]:
    return list(pages.items(view.ready))


def _fifo_of(*, newest: bool = False, past: str = "") -> Callable[..., Picks]:
    """weight_fifo that takes the newest bucket first, or that looks past the groups of one place."""

    def classes(view: View) -> list[tuple[GroupClass, int]]:
        places: dict[str, Counts] = {
            "running": view.running, "waiting": view.waiting, "backing_off": view.backing_off, "ready": view.ready,
        }  # fmt: skip
        buckets = [c.bucket for place, counts in places.items() if place != past for c, _ in pages.items(counts)]
        if view.queue.groups and past != "queue":
            buckets.append(view.queue.bucket)
        chosen = max(buckets, default=NONE) if newest else min(buckets, default=NONE)
        return [pair for pair in _ready(view) if pair[0].bucket == chosen]

    return _select_of(classes)


def _windowed(extra: int, *, other_end: bool = False) -> Callable[..., Picks]:
    """windowed with another window, or that takes the freshest if not asked to, and the oldest if asked for them."""

    def select(self: Windowed, view: View, min_groups: int, max_groups: int) -> Picks:
        fits = [pair for pair in _ready(view) if pair[0].start_weight >= view.version - self.window - extra]
        freshest = self.sample_freshest_first is not other_end
        return _enough(reversed(fits) if freshest else fits, min_groups, max_groups)

    return select


SELECTION = (
    limited("S1: streaming minimum ignored", "a chunk of one group is taken", select, min_groups=lambda _: 1),
    limited("S1: chunks of whole steps only", "the streaming minimum is taken for N", select,
            min_groups=lambda limits: limits.size),
    swapped("S2: in_order takes any stamp", "groups of a later step are taken", InOrder, "select",
            _select_of(_ready)),
    swapped("S3: in_order takes the newest first", "within its step", InOrder, "select",
            _select_of(lambda view: [p for p in reversed(_ready(view)) if p[0].target_step == view.version])),
    swapped("S3: ready_first takes the newest first", "an old group may starve", ReadyFirst, "select",
            _select_of(lambda view: list(reversed(_ready(view))))),
    swapped("S3: windowed takes the other end first", "the freshest where not asked for, the oldest where asked for",
            Windowed, "select", _windowed(0, other_end=True)),
    swapped("S2: windowed takes one version more", "beyond the window", Windowed, "select", _windowed(1)),
    swapped("S2: windowed takes one version less", "the window's last version is never taken", Windowed, "select",
            _windowed(-1)),
    swapped("S2: weight_fifo takes the newest bucket", "the oldest starves", WeightFifo, "select",
            _fifo_of(newest=True)),
    *(swapped(f"S2: weight_fifo looks past {what}", "a later bucket is trained first", WeightFifo, "select",
              _fifo_of(past=place))
      for what, place in (("the queue", "queue"), ("what runs", "running"), ("what waits", "waiting"),
                          ("what backs off", "backing_off"))),
)  # fmt: skip


# Eviction (E)


def _below(extra: int) -> Callable[..., list[GroupClass]]:
    return lambda self, view: [c for c, _ in _ready(view) if c.start_weight < view.version - self.window + extra]


def _is_below(extra: int) -> Callable[..., bool]:
    return lambda self, view, group_class: bool(group_class.start_weight < view.version - self.window + extra)


EVICTION = (
    swapped("E1: nothing is evicted", "stale groups fill the buffer", Windowed, "evict", _below(-ENOUGH)),
    swapped("E1: evicted one version late", "stale groups stay", Windowed, "evict", _below(-1)),
    swapped("E1: evicted one version early", "groups of the window go", Windowed, "evict", _below(1)),
    swapped("E1: nothing is aborted", "stale rollouts go on", Windowed, "should_abort_inflight", _is_below(-ENOUGH)),
    swapped("E1: aborted one version late", "stale rollouts go on", Windowed, "should_abort_inflight", _is_below(-1)),
    swapped("E1: aborted one version early", "rollouts of the window go", Windowed, "should_abort_inflight",
            _is_below(1)),
    at_any_time("E1: evicted while the trainer is busy", "not only while it assembles", evict),
)  # fmt: skip


# Losses (L)

_spend_budget, _replace_or_lose = losses.spend_budget, losses.replace_or_lose


def _at_no_cost(state: State, laws: Laws, given: Answer) -> Done:
    moved, done = CORE.answer(state, laws, given)
    return moved._replace(budgets=state.budgets), done


def _replaced_as(change: Callable[[GroupClass], GroupClass]) -> Callable[..., Done]:
    return lambda state, laws, group_class: _replace_or_lose(state, laws, change(group_class))


def _filter_of_the_version(state: State, laws: Laws, given: Answer) -> Done:
    """Counts the group for the step that the trainer is at."""
    moved, done = CORE.answer(state, laws, given)
    if laws.limits.max_filtered >= 0:
        moved = moved._replace(filtered=pages.add(state.filtered, state.trainer.version, 1))
    return moved, done


def _budget(more: int) -> Callable[..., Done]:
    change = with_limits(
        max_consecutive_dropped=lambda limits: limits.max_consecutive_dropped + more,
        max_skipped=lambda limits: limits.max_skipped + more,
    )
    return lambda state, laws, kind, error: _spend_budget(state, change(laws), kind, error)


_one_replacement_less = with_limits(max_replacements=lambda limits: limits.max_replacements - 1)

LOSSES = (
    answered("L7: a filtered group does not end the row", "only a kept one resets max_consecutive_dropped_prompts",
             "filter", _at_no_cost),
    swapped("L7: no group ends the row", "drops add up over the whole run", on_event, "_answered", lambda b: b),
    swapped("L7: one more drop allowed", "in a row, and of data failures", losses, "spend_budget", _budget(1)),
    swapped("L7: one drop less allowed", "in a row, and of data failures", losses, "spend_budget", _budget(-1)),
    swapped("L7: drops cost nothing", "no budget stops the run", losses, "spend_budget",
            lambda state, *_: (state, [])),
    swapped("L7: a skip counts for the row", "data failures spend the budget of infra failures", losses,
            "spend_budget", lambda state, laws, _, error: _spend_budget(state, laws, FailureKind.INFRA, error)),
    answered("S5: an unreadable group costs nothing", "it does not count as given up on", "claim_failed", _at_no_cost),
    swapped("L2: never replaced", "spares are never drawn", losses, "replace_or_lose",
            lambda state, laws, group_class: losses.lose(state, laws, group_class)),
    swapped("L2: replaced without end", "max_replacement_attempts is ignored", losses, "replace_or_lose",
            _replaced_as(lambda group_class: group_class._replace(replacements=0))),
    swapped("L2: replaced once less", "than max_replacement_attempts", losses, "replace_or_lose",
            lambda state, laws, group_class: _replace_or_lose(state, _one_replacement_less(laws), group_class)),
    swapped("L2: a replacement loses its stamp", "it is of no step", losses, "replace_or_lose",
            _replaced_as(lambda group_class: group_class._replace(target_step=NONE, bucket=NONE))),
    swapped("L3: charged to the step being assembled", "whatever the stamp", losses, "ask_charge",
            lambda state, laws, _: assembling_step(state, laws.limits)),
    swapped("L3: charged to the last step admitted", "whatever the stamp", losses, "ask_charge",
            lambda state, *_: state.gate.dispatch_index),
    limited("L6: floor one group higher", "a step that the fraction allows is stopped", stop_below_floor,
            floor=lambda limits: limits.floor + 1),
    limited("L6: floor one group lower", "a step below the fraction is trained", stop_below_floor,
            floor=lambda limits: limits.floor - 1),
    moved("L6: floor ignored", "a step below the fraction is trained", stop_below_floor),
    at_any_time("L6: the floor is looked at at any time", "not only while the trainer assembles", stop_below_floor),
    moved("L8: search without a limit", "a step filters for ever", stop_search),
    limited("L8: search stopped one group early", "at k × N, not beyond", stop_search,
            max_filtered=lambda limits: limits.max_filtered - (limits.max_filtered >= 0)),
    answered("L8: counted for the trainer's step", "not for the step of the filtered group", "filter",
             _filter_of_the_version),
    moved("L5: a full step is never finished", "it waits for ever", finish_step),
)  # fmt: skip


# The pool (P) and the ends (X)


def _exhaust_with_spares(state: State, laws: Laws) -> Made | None:
    if state.sheet.in_flight:
        return None
    made = exhaust(state._replace(sheet=state.sheet._replace(spare=0), pool=state.pool._replace(spares=0)), laws)
    return None if made is None else (made[0]._replace(sheet=state.sheet, pool=state.pool), made[1])


def _admit_beside_flight(state: State, laws: Laws) -> Made | None:
    """P2 without its premise that nothing is in flight."""
    made = admit(state._replace(sheet=state.sheet._replace(in_flight=0)), laws)
    if made is None:
        return None
    return made[0]._replace(sheet=made[0].sheet._replace(in_flight=state.sheet.in_flight)), made[1]


def _refill_at_the_reserve(state: State, laws: Laws) -> Made | None:
    if state.pool.status is PoolState.STOCKED and state.pool.spares == laws.limits.reserve:
        state = state._replace(pool=state.pool._replace(status=PoolState.LOW))
    return refill_pool(state, laws)


POOL_AND_ENDS = (
    moved("P1: pool never filled", "no reserve is held back", refill_pool),
    moved("P1: a batch more than the reserve", "a batch is diverted at the reserve, not below it", refill_pool,
          _refill_at_the_reserve),
    moved("P1: refilled when empty", "not below the reserve", refill_pool,
          only_if(refill_pool, lambda state, _: state.pool.spares == 0)),
    moved("P1: refilled while the gate is open", "not at once", refill_pool,
          only_if(refill_pool, lambda state, _: state.gate.status == 0)),
    moved("P1: refilled when nothing is queued", "not at once", refill_pool,
          only_if(refill_pool, lambda state, _: state.queue.groups == 0)),
    moved("P2: spares never admitted", "whole batches of spares are left over", admit,
          only_if(admit, lambda state, _: state.source.status is SourceState.PRODUCING)),
    moved("P2: spares admitted beside what is in flight", "which may need them", admit, _admit_beside_flight),
    moved("X1: exhausted with a batch of spares", "it is left over", exhaust, _exhaust_with_spares),
    moved("X1: never exhausted", "the run does not end", exhaust),
    moved("X1: completed whatever is ready", "groups that a step could train on are left over", end_at_exhaustion,
          only_if(own_moves.complete, lambda state, _: state.source.status is SourceState.EXHAUSTED)),
    limited("X1: closed short below the floor", "a step of too few groups is trained", end_at_exhaustion,
            floor=lambda _: 1),
    limited("X1: closed short on a group more than the floor", "a step of enough groups is left over",
            end_at_exhaustion, floor=lambda limits: limits.floor + 1),
    limited("X3: completed a step beyond the limit", "one step too many is trained", complete_at_step_limit,
            max_steps=lambda limits: limits.max_steps + (limits.max_steps >= 0)),
    limited("X3: completed a step before the limit", "one step too few is trained", complete_at_step_limit,
            max_steps=lambda limits: limits.max_steps - (limits.max_steps > 0)),
    at_any_time("X3: completed before the weights are synced", "at the step limit", complete_at_step_limit),
)  # fmt: skip


# Resumes (C)


def _taken_for_trained(state: State) -> State:
    """What was selected into the open step counts as trained."""
    sheet = TRANSFER["train"](state.sheet, state.sheet.selected)
    return state._replace(chunk=(), accumulated=(), sheet=sheet)


def _under_old_weights(state: State, laws: Laws) -> Done:
    moved, done = CORE.resume(state, laws)
    places = (state.running, state.waiting, state.backing_off)
    return moved._replace(running=pages.of(pair for counts in places for pair in pages.items(counts))), done


def _with_its_sync(model: Model) -> Model:
    def resumes(state: State, laws: Laws) -> Done:
        moved, done = model.resume(state, laws)
        status = state.trainer.status if state.trainer.status is TrainerState.SYNCING else moved.trainer.status
        return moved._replace(trainer=with_status(moved.trainer, status)), done

    return model._replace(resume=resumes)


RESUME = (
    resumed("C2: the row of drops is forgotten", "budgets begin anew", lambda state: state._replace(budgets=Budgets())),
    resumed("C2: charges are forgotten", "steps wait for groups that are gone",
            lambda state: state._replace(ledgers=())),
    resumed("C2: selected groups count as trained", "though their optimizer step had not finished", _taken_for_trained),
    Mutant("C2: attempts resume under old weights", "not under the restored ones", "C2", model=lambda model: (
        model._replace(resume=_under_old_weights if model.resume is CORE.resume else model.resume))),
    Mutant("C2: a sync is resumed", "it was over with the process", "C2", model=_with_its_sync),
    resumed("C2: filtered groups are forgotten", "the search begins anew", lambda state: state._replace(filtered=())),
)  # fmt: skip


def _neighbours_swapped() -> list[Mutant]:
    """The core's own moves with each pair of neighbours in the other order."""
    mutants = []
    for number, (first, second) in enumerate(pairwise(OWN_MOVES)):
        order = (*OWN_MOVES[:number], second, first, *OWN_MOVES[number + 2 :])
        name = f"order: {second.__name__} before {first.__name__}"
        mutants.append(Mutant(name, "the core's own moves come in another order", "order", in_order_of(order)))
    return mutants


def decision_mutants() -> tuple[Mutant, ...]:
    """All of this module."""
    return (
        *ADMISSION, *DISPATCH, *SELECTION, *EVICTION, *LOSSES, *POOL_AND_ENDS, *RESUME, *_neighbours_swapped(),
    )  # fmt: skip
