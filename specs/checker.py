"""Looks for a counterexample: breadth-first over the real rules, so the first one found is the shortest.

There is no second model: states are the core's own, transitions its own functions, rules fired from the same tables
(`fsm.table.fire`).

    result = explore(laws, World(), properties_of(laws))

`explore` goes through every state that the world can lead to, with every property of `specs.properties`. A verdict has
three values: holds (for the laws, the world and the assumptions of `Model.finite`), violated (with the shortest
counterexample, which is replayed through the functions themselves before it is reported), and undetermined (a bound
was hit), which is never a pass. `EXIT` has their exit codes.

State properties are checked in every state once, edges in every transition. A broken `sometimes` has no
counterexample: it says that something never happens. `eventually` is decided at the end, on the graph of all
states (`specs.liveness`), so it is worth its memory only where the rest holds.
"""

from __future__ import annotations

import gc
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from fsm.laws import Laws
from fsm.state import is_over
from specs.graph import MOST_EVENTUALLY, Graph
from specs.liveness import Duties, find_lasso
from specs.memo import Memo
from specs.model import CORE, CORE_FAULTS, Answer, CrashFrom, Model, World
from specs.parts import CANONICAL, TooManyValues, noting_reads
from specs.properties import DEADLOCK, REFUSED, Always, Properties
from specs.replay import Unconfirmed, beginning, confirm
from specs.steps import QUIET, FirstHalf, Judgement, Offer, Steps

HOLDS, VIOLATED, UNDETERMINED = "holds", "violated", "undetermined"

EXIT = {HOLDS: 0, VIOLATED: 2, UNDETERMINED: 3}
"""Exit codes by verdict; 1 is for the tool itself."""

_LOOK_EVERY = 1_024
"""States between two looks at the clock and the memory."""


class Bounds(NamedTuple):
    """Where an exploration gives up: undetermined."""

    states: int = 1_000_000
    seconds: float | None = None
    """None for no limit."""
    resident_bytes: int | None = None
    """Of the process, at its peak; None for no limit."""


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
    moves: tuple[str, ...] = ()
    """The kinds of moves that were made."""


class _Violated(Exception):
    """A property is violated."""

    def __init__(self, broken: str, answers: list[int], why: str = "") -> None:
        super().__init__(broken)
        self.broken, self.answers, self.why = broken, answers, why


class _BoundHit(Exception):
    """The exploration gives up."""


class _Search:
    """One exploration."""

    def __init__(self, steps: Steps, bounds: Bounds) -> None:
        self.steps, self.bounds = steps, bounds
        self.graph = Graph()
        self.index: dict[int, int] = {steps.begin: 0}
        self.transitions = 0
        self.happened = 0
        self.started_s = time.monotonic()
        properties = steps.properties
        self.keeps = bool(properties.eventually)
        self.judges = bool(properties.edges or properties.sometimes or properties.eventually)
        if len(properties.eventually) > MOST_EVENTUALLY:
            raise ValueError(f"{len(properties.eventually)} eventually properties; at most {MOST_EVENTUALLY} at a time")
        self.crashes_to_checkpoint = steps.world.crash is CrashFrom.LAST_CHECKPOINT
        self.always = [self._memo(group) for group in self._groups()]

    def _groups(self) -> list[list[Always]]:
        """The `always` properties, together where one reads what another reads too: each group is one look-up."""
        steps = self.steps
        reads: list[tuple[int, Always]] = []
        groups: list[tuple[int, list[Always]]] = []
        with noting_reads():
            for prop in steps.properties.always:
                prop.holds(steps.reading.open(steps.begin), steps.laws)
                reads.append((steps.reading.mask, prop))
        for mask, prop in sorted(reads, key=lambda read: -read[0].bit_count()):
            for covered, group in groups:
                if mask & ~covered == 0:
                    group.append(prop)
                    break
            else:
                groups.append((mask, [prop]))
        return [group for _, group in groups]

    def _memo(self, group: list[Always]) -> Memo[bool]:
        laws = self.steps.laws
        return Memo(self.steps.reading, lambda state: all(prop.holds(state, laws) for prop in group))

    def _broken(self, key: int) -> str:
        """The first `always` that does not hold in a state."""
        state, laws = self.steps.reading.open(key), self.steps.laws
        for prop in self.steps.properties.always:
            if not prop.holds(state, laws):
                return prop.name
        raise Unconfirmed("a state property broke where it holds now")

    def look(self) -> None:
        """Raise _BoundHit where a bound is hit."""
        bounds = self.bounds
        if len(self.index) > bounds.states:
            raise _BoundHit(f"more than {bounds.states:,} states")
        if bounds.seconds is not None and time.monotonic() - self.started_s > bounds.seconds:
            raise _BoundHit(f"more than {bounds.seconds:g} s")
        if bounds.resident_bytes is not None:
            resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1_024
            if resident > bounds.resident_bytes:
                raise _BoundHit(f"more than {bounds.resident_bytes:,} bytes resident")

    def run(self) -> None:
        """Find every state, level by level. Raises _Violated or _BoundHit."""
        self._judge_beginning()
        frontier = [self.steps.begin]
        while frontier:
            frontier = self._level(frontier)

    def _judge_beginning(self) -> None:
        """A beginning that ends the run is judged like any transition; nothing else would be."""
        steps = self.steps
        begun = beginning(steps.laws, steps.model)
        if is_over(begun.after):
            for edge in steps.properties.edges:
                if not edge.holds(begun, steps.laws):
                    raise _Violated(edge.name, [])
            for bit, prop in enumerate(steps.properties.sometimes):
                self.happened |= prop.happens(begun, steps.laws) << bit

    def _level(self, frontier: list[int]) -> list[int]:
        """Check the states of one level, and find those of the next. One loop, since calls take most of its time."""
        graph, known_states, offers, settled = self.graph, self.index, self.steps.offer, self.steps.settle
        found: list[int] = []
        first_node, node, answer = len(known_states) - len(frontier), 0, -1
        try:
            for node, key in enumerate(frontier, first_node):
                answer = -1
                if node % _LOOK_EVERY == 0:
                    self.look()
                for holds in self.always:
                    for mask, known in holds.tables:
                        held = known.get(key & mask)
                        if held is not None:
                            break
                    else:
                        held = holds.learn(key)
                    if not held:
                        raise _Violated(self._broken(key), graph.path(node))
                answers = self._open(offers(key), node)
                self.transitions += len(answers)
                for answer, kept, bits, half in answers:
                    left = key & kept | bits
                    for mask, table in half.tables:
                        first = table.get(left & mask)
                        if first is not None:
                            break
                    else:
                        first = half.learn(left)
                    kept, raw, shown, done, judgement = first
                    number = known_states.get(left & kept | shown)
                    if number is None:  # else that state is settled, and the transition ends there
                        raw |= left & kept
                        kept, bits, own = settled(raw)
                        raw = raw & kept | bits
                        target = raw & CANONICAL
                        number = known_states.get(target)
                        if number is None:
                            number = known_states[target] = len(known_states)
                            graph.parents.append(node)
                            graph.by.append(answer)
                            found.append(target)
                        if own or kept != -1 or judgement is None:  # a settle may change something and not say so
                            judgement = self._judge(key, answer, done, own, raw)
                    elif judgement is None:
                        judgement = self._judge(key, answer, done, 0, left & kept | raw)
                    if judgement is not QUIET:
                        self._note(node, answer, judgement)
                    if self.keeps:
                        graph.targets.append(number)
                        graph.answers.append(answer)
                        graph.reached.append(judgement[2])
        except CORE_FAULTS as fault:
            story = graph.path(node) if answer < 0 else [*graph.path(node), answer]
            raise _Violated(REFUSED, story, str(fault)) from fault
        return found

    def _open(self, offer: Offer, node: int) -> tuple[tuple[int, int, int, FirstHalf], ...]:
        """The answers of a state. Raises _Violated where there are none that get the run on."""
        if offer.deadlocked:
            raise _Violated(DEADLOCK, self.graph.path(node))
        if self.keeps:
            self.graph.offsets.append(len(self.graph.targets))
            self.graph.over.append(offer.over)
        return offer.answers

    def _judge(self, key: int, answer: int, done: int, own: int, raw: int) -> Judgement:
        steps = self.steps
        if not self.judges:
            return QUIET
        memo = steps.judges.get((answer, done, own)) or steps.judge(answer, done, own)
        before = steps.saved(key) if self.crashes_to_checkpoint and answer == steps.crash else key
        for first, second, known in memo.tables:
            found = known.get((before & first, raw & second))
            if found is not None:
                return found
        return memo.learn(before, raw)

    def _note(self, node: int, answer: int, judgement: Judgement) -> None:
        if judgement.broken is not None:
            raise _Violated(judgement.broken, [*self.graph.path(node), answer])
        self.happened |= judgement.happens

    def result(self, verdict: str, broken: str | None = None) -> Result:
        """What was found, without a counterexample."""
        return Result(
            verdict,
            broken,
            len(self.index),
            self.transitions,
            seconds=time.monotonic() - self.started_s,
            answers=tuple(sorted({answer.name for answer in self._taken()})),
            moves=tuple(sorted({type(move).__name__ for moves in self.steps.done for move in moves})),
        )

    def _taken(self) -> Iterator[Answer]:
        crash_or_save = (self.steps.crash, self.steps.save)
        used = set(self.graph.by[1:])
        for number, answer in enumerate(self.steps.answers):
            if number not in crash_or_save or number in used:
                yield answer


def explore(
    laws: Laws,
    world: World,
    properties: Properties,
    *,
    model: Model = CORE,
    bounds: Bounds = Bounds(),  # noqa: B008  (a NamedTuple)
) -> Result:
    """Go through every state that the world can lead to.

    Raises `specs.replay.Unconfirmed` where a counterexample does not replay: the checker itself is wrong then, or a
    function of the model, such as a sampler, looks at more than its arguments. Raises ValueError for more than
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


def _explored(laws: Laws, world: World, properties: Properties, model: Model, bounds: Bounds) -> Result:
    try:
        steps = Steps(laws, world, properties, model)
    except CORE_FAULTS as fault:
        confirm(laws, world, properties, model, REFUSED, (), None)
        return Result(VIOLATED, REFUSED, 0, 0, why=str(fault))
    search = _Search(steps, bounds)
    with _uncollected():
        try:
            with noting_reads():
                search.run()
        except (_BoundHit, TooManyValues) as hit:
            return search.result(UNDETERMINED)._replace(why=str(hit))
        except _Violated as violation:
            story = tuple(steps.answers[number] for number in violation.answers)
            confirm(laws, world, properties, model, violation.broken, story, None)
            return search.result(VIOLATED, violation.broken)._replace(counterexample=story, why=violation.why)
        return _at_the_end(search)


def _at_the_end(search: _Search) -> Result:
    """What only the whole graph can tell: `sometimes` and `eventually`."""
    steps = search.steps
    properties = steps.properties
    for bit, sometimes in enumerate(properties.sometimes):
        if not search.happened >> bit & 1:
            return search.result(VIOLATED, sometimes.name)._replace(why=f"never: {sometimes.sentence}")
    duties = Duties.of(steps.answers, steps.model)
    for bit, eventually in enumerate(properties.eventually):
        lasso = find_lasso(search.graph, duties, bit)
        if lasso is not None:
            stem = [steps.answers[number] for number in search.graph.path(lasso.start)]
            story = (*stem, *(steps.answers[number] for number in lasso.cycle))
            confirm(steps.laws, steps.world, properties, steps.model, eventually.name, story, len(stem))
            return search.result(VIOLATED, eventually.name)._replace(counterexample=story, cycle_start=len(stem))
    return search.result(HOLDS)


@contextmanager
def _uncollected() -> Iterator[None]:
    """States hold no cycles, and going through millions of them for garbage is slow."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
