"""What a mutant is, and how it takes the core's place while it is explored."""

import ast
import inspect
import pkgutil
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import CodeType, FunctionType
from typing import Any, NamedTuple, cast
from unittest.mock import patch

from fsm.errors import InvariantBroken
from fsm.rules import own_moves
from fsm.rules.changes import Change, Done
from fsm.rules.laws import Laws
from fsm.state import State
from specs.checker.explore import Result, explore
from specs.engine.search import Bounds
from specs.evidence.small_run import SmallRun
from specs.model import Model
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


class Edit(NamedTuple):
    """A function, and what it runs instead, wherever it is called from."""

    function: FunctionType
    code: CodeType


class Mutant(NamedTuple):
    """One small change to the core."""

    name: str
    sentence: str
    """What it does, or no longer does."""
    where: str
    """The machine whose table is changed, or the rules that the decision carries out."""
    swaps: tuple[Swap, ...] = ()
    edits: tuple[Edit, ...] = ()
    laws: Callable[[Laws], Laws] = lambda laws: laws
    """Other tables, or other limits."""
    model: Callable[[Model], Model] = lambda model: model
    """Other answers of the world."""
    differs: Callable[[Coverage], bool] = lambda _: True
    """Whether it may differ from the core in a run, by the core's coverage there. If it is False, every function does
    in the mutant what it does in the core, and there is nothing to explore."""


def edited(edits: Mapping[str, str | Mapping[str, str]]) -> tuple[Edit, ...]:
    """Per function, as "module:name", texts of its source and what stands there instead, or another body.

    Raises ValueError for a text that is not in the source exactly once: the core has changed, and the mutant has not.
    """
    return tuple(_edit(path, change) for path, change in edits.items())


def _edit(path: str, change: str | Mapping[str, str]) -> Edit:
    function = _function(pkgutil.resolve_name(path))
    source = textwrap.dedent(inspect.getsource(function))
    if isinstance(change, str):
        [defined] = ast.parse(source).body
        assert isinstance(defined, ast.FunctionDef)
        head = source.splitlines()[: defined.body[0].lineno - 1]
        source = "\n".join([*head, textwrap.indent(change, "    ")])
    else:
        for old, new in change.items():
            if source.count(old) != 1:
                raise ValueError(f"{path} has {source.count(old)} times {old!r}; an edit's text must be there once")
            source = source.replace(old, new)
    scope = dict(function.__globals__)
    exec(compile(source, path, "exec"), scope)
    return Edit(function, _function(scope[function.__name__]).__code__)


def _function(found: Any) -> FunctionType:
    """The function of a property, or the function itself."""
    return cast(FunctionType, found.fget if isinstance(found, property) else found)


@contextmanager
def in_place(mutant: Mutant) -> Iterator[None]:
    """In here the mutant's functions replace the core's, for the properties too."""
    with ExitStack() as stack:
        for owner, name, other in mutant.swaps:
            in_dict = isinstance(owner, dict)
            stack.enter_context(patch.dict(owner, {name: other}) if in_dict else patch.object(owner, name, other))
        for function, code in mutant.edits:
            stack.callback(setattr, function, "__code__", function.__code__)
            function.__code__ = code
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
