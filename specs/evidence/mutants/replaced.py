"""Ways to have a decision made otherwise, for whoever writes a mutant by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fsm.machines.table import with_status
from fsm.machines.trainer import TrainerState
from fsm.rules import own_moves
from fsm.rules.changes import Done, Made
from fsm.rules.laws import Laws
from fsm.rules.own_moves import OwnMove
from fsm.state import Limits, State
from specs.evidence.mutants.mutant import Mutant, Swap
from specs.model import CORE, Answer, Model


def instead(own_move: OwnMove, *others: OwnMove) -> tuple[Swap, ...]:
    """Swaps that have others of the core's own moves, or none, in the place of `own_move`."""

    def changed(own: tuple[OwnMove, ...]) -> tuple[OwnMove, ...]:
        return tuple(move for each in own for move in (others if each is own_move else (each,)))

    return (
        Swap(own_moves, "OWN_MOVES", changed(own_moves.OWN_MOVES)),
        Swap(own_moves, "ALWAYS", changed(own_moves.ALWAYS)),
    )


def in_order_of(own: tuple[OwnMove, ...]) -> tuple[Swap, ...]:
    """Swaps that have the core's own moves in another order."""
    always = tuple(move for move in own if move in own_moves.ALWAYS)
    return Swap(own_moves, "OWN_MOVES", own), Swap(own_moves, "ALWAYS", always)


def whatever_the_trainer_does(own_move: OwnMove) -> tuple[Swap, ...]:
    """Swaps that have a move apply in every state of the trainer."""
    return (Swap(own_moves, "ALWAYS", (own_move, *own_moves.ALWAYS)),)


def under(own_move: OwnMove, change: Callable[[Limits], Limits]) -> OwnMove:
    """`own_move` under other limits."""
    return lambda state, laws: own_move(state, laws._replace(limits=change(laws.limits)))


def during_a_sync(own_move: OwnMove) -> OwnMove:
    """`own_move` as if no sync were under way."""

    def apply(state: State, laws: Laws) -> Made | None:
        trainer = state.trainer
        if trainer.status is not TrainerState.SYNCING:
            return own_move(state, laws)
        made = own_move(state._replace(trainer=with_status(trainer, TrainerState.ASSEMBLING)), laws)
        return None if made is None else (made[0]._replace(trainer=trainer), made[1])

    return apply


def only_if(own_move: OwnMove, condition: Callable[[State, Laws], bool]) -> OwnMove:
    """`own_move` where the condition holds too."""
    return lambda state, laws: own_move(state, laws) if condition(state, laws) else None


def answering(name: str, other: Callable[[State, Laws, Answer], Done]) -> Callable[[Model], Model]:
    """A model that has another function for the answer of that name."""

    def answer(state: State, laws: Laws, given: Answer) -> Done:
        return other(state, laws, given) if given.name == name else CORE.answer(state, laws, given)

    return lambda model: model._replace(answer=answer)


def resuming(forget: Callable[[State], State]) -> Callable[[Model], Model]:
    """A model whose checkpoints hold less, or something else."""

    def changed(model: Model) -> Model:
        resume = model.resume
        return model._replace(resume=lambda state, laws: resume(forget(state), laws))

    return changed


def moved(name: str, sentence: str, rules: str, own_move: OwnMove, *others: OwnMove) -> Mutant:
    """A mutant that has others of the core's own moves, or none, in the place of one."""
    return Mutant(f"{rules}: {name}", sentence, rules, instead(own_move, *others))


def swapped(name: str, sentence: str, rules: str, owner: Any, attribute: str, other: Any) -> Mutant:
    """A mutant that has another function in the place of one."""
    return Mutant(f"{rules}: {name}", sentence, rules, (Swap(owner, attribute, other),))


def changing(**changes: Callable[[Limits], int]) -> Callable[[Limits], Limits]:
    """Limits with these changed."""
    return lambda limits: limits._replace(**{name: change(limits) for name, change in changes.items()})
