"""Looks for a counterexample: breadth-first over the real rules, so the first one found is the shortest.

There is no second model: states and transitions are made by the core's own functions, and rules are fired from the
same tables (`fsm.machines.table.fire`).

    result = explore(laws, World(), properties_of(laws))

`explore` visits every state that the world can lead to, and checks every property of `specs.properties.kinds`. It finds
what the plain search finds (`specs.checker.plain`), faster (`specs.engine` says how). A verdict has three values: holds
(for the laws, the world and the assumptions of `Model.finite`), violated (with the shortest counterexample, which is
first replayed through the functions themselves), and undetermined (a bound was hit), which is never a pass. `EXIT` has
their exit codes.

State properties are checked in every state once, edges in every transition. A broken `sometimes` has no
counterexample: it says that something never happens. `eventually` is decided at the end, on the graph of all
states (`specs.checker.liveness`), so it is worth its memory only where the rest holds.
"""

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from fsm.rules.laws import Laws
from specs.checker.liveness import Duties, find_lasso
from specs.counterexample import Unconfirmed, confirm
from specs.engine.parts import TooManyValues
from specs.engine.search import BoundHit, Bounds, Search, Violated
from specs.engine.steps import Steps
from specs.model import CORE, CORE_FAULTS, Answer, Model, WorldOptions
from specs.processes.hanging import nobody_asked
from specs.properties.kinds import REFUSED, Properties

HOLDS, VIOLATED, UNDETERMINED = "holds", "violated", "undetermined"

EXIT = {HOLDS: 0, VIOLATED: 2, UNDETERMINED: 3}
"""Exit codes by verdict; 1 is for the tool itself."""


class Result(NamedTuple):
    """What an exploration found."""

    verdict: str
    """holds, violated, or undetermined (a bound was hit): never a pass."""
    broken: str | None
    """The name of the property that is violated; `DEADLOCK` and `REFUSED` among them."""
    states: int
    transitions: int
    counterexample: tuple[Answer, ...] = ()
    """The shortest list of answers that leads to the violation; of a lasso, its stem and its cycle."""
    cycle_start: int | None = None
    """Where the cycle of a lasso starts; the length of the counterexample where the run just stays as it is."""
    why: str = ""
    """The bound that was hit, or what the core refused."""
    seconds: float = 0.0
    answers: tuple[str, ...] = ()
    """The names of the answers that occurred."""


def _result(search: Search, verdict: str, broken: str | None = None) -> Result:
    """What was found, without a counterexample."""
    return Result(
        verdict,
        broken,
        len(search.states),
        search.transitions,
        seconds=time.monotonic() - search.started_s,
        answers=tuple(sorted({search.steps.answers[number].name for number in search.given})),
    )


def explore(
    laws: Laws,
    world: WorldOptions,
    properties: Properties,
    *,
    model: Model = CORE,
    bounds: Bounds = Bounds(),  # noqa: B008  (a NamedTuple)
) -> Result:
    """Visit every state that the world can lead to.

    Raises `specs.counterexample.Unconfirmed` if a counterexample does not replay: then the checker itself is wrong,
    or a function of the model, such as a sampler, looks at more than its arguments. Raises ValueError for more than
    `MOST_EVENTUALLY` properties of that kind.
    """
    try:
        return _explored(laws, world, properties, model, bounds)
    except Unconfirmed as twofold:
        if laws.is_custom:
            raise Unconfirmed(
                f"{twofold}. Sampler {laws.sampler_name} gave different answers for the same view: a sampler must be a "
                f"function of its view and its options alone"
            ) from twofold
        raise Unconfirmed(f"{twofold}. This is a defect of evenstep; please report it") from twofold


def _explored(laws: Laws, world: WorldOptions, properties: Properties, model: Model, bounds: Bounds) -> Result:
    try:
        steps = Steps(laws, world, properties, model)
    except CORE_FAULTS as fault:
        confirm(laws, world, properties, model, REFUSED, (), None)
        return Result(VIOLATED, REFUSED, 0, 0, why=str(fault))
    search = Search(steps, bounds)
    with _uncollected():
        try:
            search.run()
        except (BoundHit, TooManyValues) as hit:
            return _result(search, UNDETERMINED)._replace(why=str(hit))
        except Violated as violation:
            story = tuple(steps.answers[number] for number in violation.answers)
            confirm(laws, world, properties, model, violation.broken, story, None)
            return _result(search, VIOLATED, violation.broken)._replace(counterexample=story, why=violation.why)
        return _at_the_end(search)


def _at_the_end(search: Search) -> Result:
    """What only the whole graph can tell: `sometimes` and `eventually`."""
    steps = search.steps
    properties = steps.properties
    for bit, sometimes in enumerate(properties.sometimes):
        if not search.happened >> bit & 1:
            return _result(search, VIOLATED, sometimes.name)._replace(why=f"never: {sometimes.sentence}")
    duties = Duties.of(steps.answers, steps.model)
    for bit, eventually in enumerate(properties.eventually):
        with nobody_asked():
            lasso = find_lasso(search.graph, duties, bit)
        if lasso is not None:
            stem = [steps.answers[number] for number in search.graph.path(lasso.start)]
            story = (*stem, *(steps.answers[number] for number in lasso.cycle))
            confirm(steps.laws, steps.world, properties, steps.model, eventually.name, story, len(stem))
            return _result(search, VIOLATED, eventually.name)._replace(counterexample=story, cycle_start=len(stem))
    return _result(search, HOLDS)


@contextmanager
def _uncollected() -> Iterator[None]:
    """No garbage collection meanwhile: states hold no cycles, and visiting millions of them is slow."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
