"""What a mutant is, how it takes the core's place while it is explored, and short ways to write one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

from fsm.errors import InvariantBroken
from fsm.machines.table import with_status
from fsm.machines.trainer import TrainerState
from fsm.rules import own_moves
from fsm.rules.changes import Change, Done, Made
from fsm.rules.laws import Laws
from fsm.rules.own_moves import OwnMove
from fsm.state import Limits, State
from specs.checker.explore import Result, explore
from specs.engine.search import Bounds
from specs.evidence.small_run import SmallRun
from specs.model import CORE, Answer, Model
from specs.properties.kinds import Properties


class Coverage(NamedTuple):
    """What the core fires in a run, and which guards decide."""

    fired: Counter[tuple[str, str]]
    """Per table and event: how often it was asked for, each thing that it reads counted once."""
    taken: Counter[tuple[str, str]]
    """Per table and rule: how often it fired."""
    decides: Counter[tuple[str, str, int]]
    """Per table, rule and position of a guard: how often it was the only one that was false, with no rule before it
    taking the event. If that is 0, a table without the guard is the same table."""


class Swap(NamedTuple):
    """A function and its replacement: an attribute of a module or a class, or an item of a dict."""

    owner: Any
    name: str
    other: Any


class Mutant(NamedTuple):
    """One small change to the core."""

    name: str
    sentence: str
    """What it does, or no longer does."""
    where: str
    """The machine whose table is changed, or the rules that the decision carries out."""
    swaps: tuple[Swap, ...] = ()
    laws: Callable[[Laws], Laws] = lambda laws: laws
    """Other tables, or another sampler."""
    model: Callable[[Model], Model] = lambda model: model
    """Other answers of the world."""
    differs: Callable[[Coverage], bool] = lambda _: True
    """Whether it may differ from the core in a run, by the core's coverage there. If it is False, every function does
    in the mutant what it does in the core, and there is nothing to explore."""


@contextmanager
def in_place(mutant: Mutant) -> Iterator[None]:
    """In here the mutant's functions replace the core's, for the properties too."""
    with ExitStack() as stack:
        for owner, name, other in mutant.swaps:
            in_dict = isinstance(owner, dict)
            stack.enter_context(patch.dict(owner, {name: other}) if in_dict else patch.object(owner, name, other))
        yield


MOVES_MAX = 100
"""No state of the portfolio has the core make more moves of its own in a row."""


def settle_or_refuse(state: State, laws: Laws) -> Done:
    """The core's own moves, and a refusal if they do not come to an end."""
    done: list[Change] = []
    while (made := own_moves.next_move(state, laws)) is not None:
        state, move = made
        done.append(move)
        if len(done) > MOVES_MAX:
            raise InvariantBroken(f"the core's own moves do not come to an end: {[type(move) for move in done[-4:]]}")
    return state, done


def hunt(mutant: Mutant, scope: SmallRun, properties: Properties, bounds: Bounds) -> Result:
    """Explore a mutant in a scope."""
    laws = mutant.laws(scope.laws())
    model = mutant.model(scope.model._replace(settle=settle_or_refuse))
    with in_place(mutant):
        return explore(laws, scope.world, properties, model=model, bounds=bounds)


# Mutants that are written by hand. A name begins with the rules: "A1: …".


def _where(name: str) -> str:
    return name.partition(":")[0]


def swapped(name: str, sentence: str, owner: Any, attribute: str, other: Any) -> Mutant:
    """Another function takes the place of one."""
    return Mutant(name, sentence, _where(name), (Swap(owner, attribute, other),))


def instead(own_move: OwnMove, *others: OwnMove) -> tuple[Swap, ...]:
    """Swaps that have others of the core's own moves, or none, in the place of `own_move`."""

    def changed(own: tuple[OwnMove, ...]) -> tuple[OwnMove, ...]:
        return tuple(move for each in own for move in (others if each is own_move else (each,)))

    return (
        Swap(own_moves, "OWN_MOVES", changed(own_moves.OWN_MOVES)),
        Swap(own_moves, "ALWAYS", changed(own_moves.ALWAYS)),
    )


def moved(name: str, sentence: str, own_move: OwnMove, *others: OwnMove) -> Mutant:
    """Others of the core's own moves, or none, take the place of one."""
    return Mutant(name, sentence, _where(name), instead(own_move, *others))


def with_limits(**changes: Callable[[Limits], int]) -> Callable[[Laws], Laws]:
    """Laws with these limits changed."""
    return lambda laws: laws._replace(
        limits=laws.limits._replace(**{name: change(laws.limits) for name, change in changes.items()})
    )


def limited(name: str, sentence: str, own_move: OwnMove, **changes: Callable[[Limits], int]) -> Mutant:
    """One of the core's own moves is made under other limits."""
    change = with_limits(**changes)
    return moved(name, sentence, own_move, lambda state, laws: own_move(state, change(laws)))


def at_any_time(name: str, sentence: str, own_move: OwnMove) -> Mutant:
    """One of the core's own moves applies in every state of the trainer."""
    return Mutant(name, sentence, _where(name), (Swap(own_moves, "ALWAYS", (own_move, *own_moves.ALWAYS)),))


def in_order_of(own: tuple[OwnMove, ...]) -> tuple[Swap, ...]:
    """Swaps that have the core's own moves in another order."""
    always = tuple(move for move in own if move in own_moves.ALWAYS)
    return Swap(own_moves, "OWN_MOVES", own), Swap(own_moves, "ALWAYS", always)


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
    """`own_move` only if the condition holds too."""
    return lambda state, laws: own_move(state, laws) if condition(state, laws) else None


def answering(name: str, other: Callable[[State, Laws, Answer], Done]) -> Callable[[Model], Model]:
    """A model that has another function for the answer of that name."""

    def answer(state: State, laws: Laws, given: Answer) -> Done:
        return other(state, laws, given) if given.name == name else CORE.answer(state, laws, given)

    return lambda model: model._replace(answer=answer)


def answered(name: str, sentence: str, answer: str, other: Callable[[State, Laws, Answer], Done]) -> Mutant:
    """Another function takes the place of what the core makes of one answer."""
    return Mutant(name, sentence, _where(name), model=answering(answer, other))


def resuming(forget: Callable[[State], State]) -> Callable[[Model], Model]:
    """A model whose checkpoints hold less, or something else."""
    return lambda model: model._replace(resume=lambda state, laws: model.resume(forget(state), laws))


def resumed(name: str, sentence: str, forget: Callable[[State], State]) -> Mutant:
    """Checkpoints hold less, or something else."""
    return Mutant(name, sentence, _where(name), model=resuming(forget))
