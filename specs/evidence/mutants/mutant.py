"""What a mutant is, and how it takes the place of the core while it is explored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

from fsm.errors import InvariantBroken
from fsm.rules import own_moves
from fsm.rules.changes import Change, Done
from fsm.rules.laws import Laws
from fsm.state import State
from specs.checker.explore import Result, explore
from specs.engine.search import Bounds
from specs.evidence.mutants.scopes import MutantScope
from specs.model import Model
from specs.properties.kinds import Properties


class Coverage(NamedTuple):
    """Of one run, or of several together."""

    fired: Counter[tuple[str, str]]
    """Per table and event: how often it was asked for, each thing that it reads counted once."""
    taken: Counter[tuple[str, str]]
    """Per table and rule: how often it was the one."""
    decides: Counter[tuple[str, str, int]]
    """Per table, rule and position of a guard: how often it was the only one that was false, with no rule before it
    taking the event. Where it never is, a table without it is the same table."""

    @classmethod
    def none(cls) -> Coverage:
        """Of nothing yet."""
        return cls(Counter(), Counter(), Counter())

    def add(self, other: Coverage) -> None:
        """Take another run's in."""
        self.fired.update(other.fired)
        self.taken.update(other.taken)
        self.decides.update(other.decides)


class Swap(NamedTuple):
    """One function that another takes the place of: an attribute of a module or a class, or an item of a dict."""

    owner: Any
    name: str
    other: Any


def _itself(laws: Laws) -> Laws:
    return laws


def _as_it_is(model: Model) -> Model:
    return model


def _anywhere(_: Coverage) -> bool:
    return True


class Mutant(NamedTuple):
    """One small change to the core."""

    name: str
    sentence: str
    """What it does, or no longer does."""
    where: str
    """The machine whose table is changed, or the rules that the decision carries out."""
    swaps: tuple[Swap, ...] = ()
    laws: Callable[[Laws], Laws] = _itself
    """Other tables, or another sampler."""
    model: Callable[[Model], Model] = _as_it_is
    """Other answers of the world."""
    differs: Callable[[Coverage], bool] = _anywhere
    """Whether it may differ from the core in a run of which the core's own coverage is given. Where it is false, each
    function does in the mutant what it does in the core, and there is nothing to explore."""


@contextmanager
def in_place(mutant: Mutant) -> Iterator[None]:
    """While it lasts, the mutant's functions take the place of the core's, for whoever asks, properties too."""
    with ExitStack() as stack:
        for owner, name, other in mutant.swaps:
            if isinstance(owner, dict):
                stack.enter_context(patch.dict(owner, {name: other}))
            else:
                stack.enter_context(patch.object(owner, name, other))
        yield


MOVES_MAX = 100
"""No state of the portfolio has the core make more moves of its own in a row."""


def settle_or_refuse(state: State, laws: Laws) -> Done:
    """The core's own moves, and a refusal where they do not come to an end."""
    done: list[Change] = []
    while (made := own_moves.next_move(state, laws)) is not None:
        state, move = made
        done.append(move)
        if len(done) > MOVES_MAX:
            raise InvariantBroken(f"the core's own moves do not come to an end: {[type(move) for move in done[-4:]]}")
    return state, done


def hunt(mutant: Mutant, scope: MutantScope, properties: Properties, bounds: Bounds) -> Result:
    """Explore a mutant in a scope."""
    laws = mutant.laws(scope.laws())
    model = mutant.model(scope.model._replace(settle=settle_or_refuse))
    with in_place(mutant):
        return explore(laws, scope.world, properties, model=model, bounds=bounds)
