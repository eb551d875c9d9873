"""Mutants of what is decided when groups are lost, at the end and after a crash; and of the order of the core's moves.

The order is changed systematically: each pair of neighbours is swapped.
"""

from __future__ import annotations

from collections.abc import Callable
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
from fsm.rules.own_moves import OWN_MOVES
from fsm.state import NONE, Budgets, Counts, GroupClass, Limits, State, assembling_step
from fsm.values import pages
from specs.evidence.mutants.mutant import Mutant
from specs.evidence.mutants.replaced import (
    answering,
    changing,
    in_order_of,
    moved,
    only_if,
    resuming,
    swapped,
    under,
    whatever_the_trainer_does,
)
from specs.evidence.mutants.ways_in import WAYS_IN
from specs.model import CORE, Answer

# Losses (L)


def _row_goes_on(state: State, laws: Laws, given: Answer) -> Done:
    moved, done = CORE.answer(state, laws, given)
    return moved._replace(budgets=state.budgets), done


def _never_a_spare(state: State, laws: Laws, group_class: GroupClass) -> Done:
    return losses.lose(state, laws, group_class)


_replace_or_lose = losses.replace_or_lose


def _replaces_ever(state: State, laws: Laws, group_class: GroupClass) -> Done:
    return _replace_or_lose(state, laws, group_class._replace(replacements=0))


def _replaces_once_less(state: State, laws: Laws, group_class: GroupClass) -> Done:
    limits = laws.limits._replace(max_replacements=laws.limits.max_replacements - 1)
    return _replace_or_lose(state, laws._replace(limits=limits), group_class)


def _replacement_unstamped(state: State, laws: Laws, group_class: GroupClass) -> Done:
    return _replace_or_lose(state, laws, group_class._replace(target_step=NONE, bucket=NONE))


def _charge_assembling(state: State, laws: Laws, _: GroupClass) -> int:
    return assembling_step(state, laws.limits)


def _charge_the_last(state: State, _: Laws, __: GroupClass) -> int:
    return state.gate.dispatch_index


def _filter_of_the_version(state: State, laws: Laws, given: Answer) -> Done:
    """Counts the group for the step that the trainer is at."""
    moved, done = CORE.answer(state, laws, given)
    if laws.limits.max_filtered >= 0:
        moved = moved._replace(filtered=pages.add(state.filtered, state.trainer.version, 1))
    return moved, done


def _budget(change: Callable[[Limits], Limits]) -> Any:
    real = losses.spend_budget
    return lambda state, laws, kind, error: real(state, laws._replace(limits=change(laws.limits)), kind, error)


def _other_kind(state: State, laws: Laws, kind: Any, error: str) -> Done:
    return _spend_budget(state, laws, FailureKind.INFRA, error)


def _no_budget(state: State, _: Laws, __: Any, ___: str) -> Done:
    return state, []


_spend_budget = losses.spend_budget


def _free_claim(state: State, laws: Laws, given: Answer) -> Done:
    moved, done = CORE.answer(state, laws, given)
    return moved._replace(budgets=state.budgets), done


LOSSES = (
    Mutant("L7: a filtered group does not end the row", "only a kept one resets max_consecutive_dropped_prompts", "L7",
           model=answering("filter", _row_goes_on)),
    swapped("no group ends the row", "drops add up over the whole run", "L7", on_event, "_answered", lambda b: b),
    swapped("one more drop allowed", "in a row, and of data failures", "L7", losses, "spend_budget",
             _budget(changing(max_consecutive_dropped=lambda limits: limits.max_consecutive_dropped + 1,
                             max_skipped=lambda limits: limits.max_skipped + 1))),
    swapped("one drop less allowed", "in a row, and of data failures", "L7", losses, "spend_budget",
             _budget(changing(max_consecutive_dropped=lambda limits: limits.max_consecutive_dropped - 1,
                             max_skipped=lambda limits: limits.max_skipped - 1))),
    swapped("drops cost nothing", "no budget stops the run", "L7", losses, "spend_budget", _no_budget),
    swapped("a skip counts for the row", "data failures spend the budget of infra failures", "L7", losses,
             "spend_budget", _other_kind),
    Mutant("S5: an unreadable group costs nothing", "it does not count as given up on", "S5",
           model=answering("claim_failed", _free_claim)),
    swapped("never replaced", "spares are never drawn", "L2", losses, "replace_or_lose", _never_a_spare),
    swapped("replaced without end", "max_replacement_attempts is ignored", "L2", losses, "replace_or_lose",
             _replaces_ever),
    swapped("replaced once less", "than max_replacement_attempts", "L2", losses, "replace_or_lose",
             _replaces_once_less),
    swapped("a replacement loses its stamp", "it is of no step", "L2", losses, "replace_or_lose",
             _replacement_unstamped),
    swapped("charged to the step being assembled", "whatever the stamp", "L3", losses, "ask_charge",
             _charge_assembling),
    swapped("charged to the last step admitted", "whatever the stamp", "L3", losses, "ask_charge", _charge_the_last),
    moved("floor one group higher", "a step that the fraction allows is stopped", "L6", own_moves.stop_below_floor,
           under(own_moves.stop_below_floor, changing(floor=lambda limits: limits.floor + 1))),
    moved("floor one group lower", "a step below the fraction is trained", "L6", own_moves.stop_below_floor,
           under(own_moves.stop_below_floor, changing(floor=lambda limits: limits.floor - 1))),
    moved("floor ignored", "a step below the fraction is trained", "L6", own_moves.stop_below_floor),
    Mutant("L6: the floor is looked at at any time", "not only while the trainer assembles", "L6",
           whatever_the_trainer_does(own_moves.stop_below_floor)),
    moved("search without a limit", "a step filters for ever", "L8", own_moves.stop_search),
    moved("search stopped one group early", "at k × N, not beyond", "L8", own_moves.stop_search,
           under(own_moves.stop_search, changing(max_filtered=lambda it: it.max_filtered - (it.max_filtered >= 0)))),
    Mutant("L8: counted for the trainer's step", "not for the step of the filtered group", "L8",
           model=answering("filter", _filter_of_the_version)),
    moved("a full step is never finished", "it waits for ever", "L5", own_moves.finish_step),
)  # fmt: skip


# The pool (P) and the ends (X)


def _exhaust_with_spares(state: State, laws: Laws) -> Made | None:
    if state.tally.in_flight:
        return None
    made = own_moves.exhaust(
        state._replace(tally=state.tally._replace(spare=0), pool=state.pool._replace(spares=0)), laws
    )
    return None if made is None else (made[0]._replace(tally=state.tally, pool=state.pool), made[1])


def _admit_beside_flight(state: State, laws: Laws) -> Made | None:
    """P2 without its premise that nothing is in flight."""
    made = own_moves.admit(state._replace(tally=state.tally._replace(in_flight=0)), laws)
    if made is None:
        return None
    tally = made[0].tally
    return made[0]._replace(tally=tally._replace(in_flight=state.tally.in_flight)), made[1]


def _no_data_left(state: State, _: Laws) -> bool:
    return state.source.status is not SourceState.PRODUCING


def _end_early(state: State, laws: Laws) -> Made | None:
    """Completes at exhaustion whatever is ready."""
    if state.source.status is not SourceState.EXHAUSTED:
        return None
    return own_moves.complete(state, laws)


def _refill_at_the_reserve(state: State, laws: Laws) -> Made | None:
    if state.pool.status is PoolState.STOCKED and state.pool.spares == laws.limits.reserve:
        low = state.pool._replace(status=PoolState.LOW)
        return own_moves.refill_pool(state._replace(pool=low), laws)
    return own_moves.refill_pool(state, laws)


POOL_AND_ENDS = (
    moved("pool never filled", "no reserve is held back", "P1", own_moves.refill_pool),
    moved("a batch more than the reserve", "a batch is diverted at the reserve, not below it", "P1",
           own_moves.refill_pool, _refill_at_the_reserve),
    moved("refilled when empty", "not below the reserve", "P1", own_moves.refill_pool,
           only_if(own_moves.refill_pool, lambda state, _: state.pool.spares == 0)),
    moved("refilled while the gate is open", "not at once", "P1", own_moves.refill_pool,
           only_if(own_moves.refill_pool, lambda state, _: state.gate.status == 0)),
    moved("refilled when nothing is queued", "not at once", "P1", own_moves.refill_pool,
           only_if(own_moves.refill_pool, lambda state, _: state.queue.groups == 0)),
    moved("spares never admitted", "whole batches of spares are left over", "P2", own_moves.admit,
           only_if(own_moves.admit, lambda state, laws: not _no_data_left(state, laws))),
    moved("spares admitted beside what is in flight", "which may need them", "P2", own_moves.admit,
           _admit_beside_flight),
    moved("exhausted with a batch of spares", "it is left over", "X1", own_moves.exhaust, _exhaust_with_spares),
    moved("never exhausted", "the run does not end", "X1", own_moves.exhaust),
    moved("completed whatever is ready", "groups that a step could train on are left over", "X1",
           own_moves.end_at_exhaustion, _end_early),
    moved("closed short below the floor", "a step of too few groups is trained", "X1", own_moves.end_at_exhaustion,
           under(own_moves.end_at_exhaustion, changing(floor=lambda _: 1))),
    moved("closed short on a group more than the floor", "a step of enough groups is left over", "X1",
           own_moves.end_at_exhaustion,
           under(own_moves.end_at_exhaustion, changing(floor=lambda limits: limits.floor + 1))),
    moved("completed a step beyond the limit", "one step too many is trained", "X3",
           own_moves.complete_at_step_limit,
           under(own_moves.complete_at_step_limit,
                 changing(max_steps=lambda limits: limits.max_steps + (limits.max_steps >= 0)))),
    moved("completed a step before the limit", "one step too few is trained", "X3",
           own_moves.complete_at_step_limit,
           under(own_moves.complete_at_step_limit,
                 changing(max_steps=lambda limits: limits.max_steps - (limits.max_steps > 0)))),
    Mutant("X3: completed before the weights are synced", "at the step limit", "X3",
           whatever_the_trainer_does(own_moves.complete_at_step_limit)),
)  # fmt: skip


# Resume (C)


def _no_charges(state: State) -> State:
    return state._replace(ledgers=())


def _taken_for_trained(state: State) -> State:
    """What was selected into the open step counts as trained."""
    tally = TRANSFER["train"](state.tally, state.tally.selected)
    return state._replace(chunk=(), accumulated=(), tally=tally)


def _under_old_weights(state: State, laws: Laws) -> Done:
    moved, done = CORE.resume(state, laws)
    return moved._replace(running=_together(state.running, state.waiting, state.backing_off)), done


def _with_its_sync(resume: Callable[[State, Laws], Done]) -> Callable[[State, Laws], Done]:
    def resumes(state: State, laws: Laws) -> Done:
        moved, done = resume(state, laws)
        status = state.trainer.status if state.trainer.status is TrainerState.SYNCING else moved.trainer.status
        return moved._replace(trainer=with_status(moved.trainer, status)), done

    return resumes


def _together(*places: Counts) -> Counts:
    return pages.of(pair for counts in places for pair in pages.items(counts))


RESUME = (
    Mutant("C2: the row of drops is forgotten", "budgets begin anew", "C2",
           model=resuming(lambda state: state._replace(budgets=Budgets()))),
    Mutant("C2: charges are forgotten", "steps wait for groups that are gone", "C2", model=resuming(_no_charges)),
    Mutant("C2: selected groups count as trained", "though their optimizer step had not finished", "C2",
           model=resuming(_taken_for_trained)),
    Mutant("C2: attempts resume under old weights", "not under the restored ones", "C2",
           model=lambda model: model._replace(
               resume=_under_old_weights if model.resume is CORE.resume else model.resume)),
    Mutant("C2: a sync is resumed", "it was over with the process", "C2",
           model=lambda model: model._replace(resume=_with_its_sync(model.resume))),
    Mutant("C2: filtered groups are forgotten", "the search begins anew", "C2",
           model=resuming(lambda state: state._replace(filtered=()))),
)  # fmt: skip


# The order of the core's own moves


def _neighbours() -> tuple[Mutant, ...]:
    mutants = []
    for number in range(len(OWN_MOVES) - 1):
        first, second = OWN_MOVES[number], OWN_MOVES[number + 1]
        order = (*OWN_MOVES[:number], second, first, *OWN_MOVES[number + 2 :])
        mutants.append(
            Mutant(
                f"order: {second.__name__} before {first.__name__}",
                "the core's own moves come in another order",
                "order",
                in_order_of(order),
            )
        )
    return tuple(mutants)


def decision_mutants() -> tuple[Mutant, ...]:
    """All of them."""
    return (*WAYS_IN, *LOSSES, *POOL_AND_ENDS, *RESUME, *_neighbours())
