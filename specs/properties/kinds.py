"""The kinds of properties, and how a function becomes one.

`Always` holds of every state, `Edge` of every transition ("this step closes" cannot be said of a state). `Sometimes`
happens in some transition: it guards against properties that hold because nothing happens. `Eventually` is reached:
from every state, under fairness, a transition that reaches it comes, or the run is over. The checker looks for two
more, which need no predicate: `DEADLOCK` and `REFUSED`.

    @edge("L5")
    def closes_full(transition: Transition, laws: Laws) -> bool:
        '''A step closes with selected + charged = N.'''
        return all(change.selected + change.charged == laws.limits.size for change in transition.all_of(StepClosed))

A predicate is deterministic, looks at its arguments alone, and raises nothing.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

from fsm.rules.changes import Change
from fsm.rules.laws import Laws
from fsm.state import State
from specs.model import Answer

C = TypeVar("C")
K = TypeVar("K")
P = TypeVar("P", bound=Callable[..., bool])

DEADLOCK = "deadlock"
"""The run is not over, and nothing can ever happen again."""
REFUSED = "refused"
"""A rule refuses what another asks of it (InvariantBroken, X2 among them)."""


class Transition(NamedTuple):
    """One answer of the world and all that followed from it."""

    before: State
    """After a crash: the state that was saved."""
    answer: Answer
    done: Sequence[Change]
    """The changes, in order: those of the answer, then those of the core's own moves."""
    after: State

    def all_of(self, kind: type[C]) -> list[C]:
        """The changes of one kind, in order."""
        return [change for change in self.done if isinstance(change, kind)]


OfState = Callable[[State, Laws], bool]
OfTransition = Callable[[Transition, Laws], bool]


class _Property(NamedTuple, Generic[P]):
    name: str
    sentence: str
    rules: tuple[str, ...]
    holds: P


class Always(_Property[OfState]):
    """Holds of every state."""


class Edge(_Property[OfTransition]):
    """Holds of every transition."""


class Sometimes(_Property[OfTransition]):
    """Holds of some transition."""


class Eventually(_Property[OfTransition]):
    """From every state, under fairness, a transition comes of which it holds, unless the run is over before."""


Property = Always | Edge | Sometimes | Eventually


def _decorator(kind: Callable[[str, str, tuple[str, ...], P], K]) -> Callable[..., Callable[[P], K]]:
    """Makes a function a property of this kind: its name is the property's, its docstring the sentence."""
    return lambda *rules: lambda holds: kind(holds.__name__, _sentence(holds), rules, holds)


always, edge = _decorator(Always), _decorator(Edge)
sometimes, eventually = _decorator(Sometimes), _decorator(Eventually)


def _sentence(function: Callable[..., bool]) -> str:
    """The docstring's first line as a clause: no capital, no full stop."""
    first = (inspect.getdoc(function) or function.__name__.replace("_", " ")).partition("\n")[0]
    return f"{first[0].lower()}{first[1:]}".rstrip(".")


class Properties(NamedTuple):
    """What an exploration looks for."""

    always: tuple[Always, ...] = ()
    edges: tuple[Edge, ...] = ()
    sometimes: tuple[Sometimes, ...] = ()
    eventually: tuple[Eventually, ...] = ()

    def all(self) -> tuple[Property, ...]:
        """Every one of them, kind by kind."""
        return (*self.always, *self.edges, *self.sometimes, *self.eventually)

    def and_also(self, others: Sequence[Property]) -> "Properties":
        """These, and then others of any kind."""
        return Properties(
            (*self.always, *(prop for prop in others if isinstance(prop, Always))),
            (*self.edges, *(prop for prop in others if isinstance(prop, Edge))),
            (*self.sometimes, *(prop for prop in others if isinstance(prop, Sometimes))),
            (*self.eventually, *(prop for prop in others if isinstance(prop, Eventually))),
        )

    def without(self, *names: str) -> "Properties":
        """All but these. A property that is violated first hides those that come later."""
        return Properties().and_also([prop for prop in self.all() if prop.name not in names])

    def sentence_of(self, name: str) -> str:
        """What the property of that name says; of one that must happen, that it never does."""
        if name == DEADLOCK:
            return "the run is not over, and nothing can ever happen again"
        if name == REFUSED:
            return "a rule refuses what another asks of it"
        return next(prop.sentence for prop in self.all() if prop.name == name)
