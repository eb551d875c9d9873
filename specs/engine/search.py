"""One exploration: every state, level by level, with every property that one state or one transition can break."""

import resource
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fsm.state import is_over
from specs.counterexample import Unconfirmed, beginning
from specs.engine.graph import MOST_EVENTUALLY, Graph
from specs.engine.lookup import Lookup, LookupFault, Memo, of_state
from specs.engine.parts import WORDS
from specs.engine.rows import Column, Numbers, Rows, RowSet, keys_of, places, rows_of, taken
from specs.engine.steps import Steps
from specs.engine.sweep import Flags, Led, Sweep, Transitions
from specs.processes.hanging import alive
from specs.properties.kinds import DEADLOCK, REFUSED, Always

_BLOCK = 8_192
"""States that are explored at once, between two checks of the clock and the memory."""


class Bounds(NamedTuple):
    """Where an exploration gives up: undetermined."""

    states: int = 1_000_000
    seconds: float | None = None
    """None for no limit."""
    resident_bytes: int | None = None
    """Of the process, at its peak; None for no limit."""


class Violated(Exception):
    """A property is violated, by the transitions with these answers from the initial state on."""

    def __init__(self, broken: str, answers: list[int], why: str = "") -> None:
        super().__init__(broken)
        self.broken, self.answers, self.why = broken, answers, why


class BoundHit(Exception):
    """The exploration gives up."""


class _StateProperties:
    """The `always` properties, together where one reads what another reads too: each group is one look-up."""

    def __init__(self, steps: Steps, look: Callable[[], None]) -> None:
        self._steps = steps
        self._lookup: Lookup[bool] = Lookup(self._store, look)
        self._hold = Column(np.empty(0, np.bool_))
        self._groups = np.array([self._lookup.function(self._memo(group)) for group in self._grouped()], np.int64)

    def _store(self, hold: list[bool]) -> None:
        self._hold.extend(np.array(hold))

    def _grouped(self) -> list[list[Always]]:
        steps = self._steps
        reads: list[tuple[int, Always]] = []
        groups: list[tuple[int, list[Always]]] = []
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
        laws = self._steps.laws
        return of_state(self._steps.reading, lambda state: all(prop.holds(state, laws) for prop in group))

    def broken_in(self, rows: Rows) -> Numbers:
        """The places of the states in which one does not hold. Raises what a property does: it may say no, not fail."""
        try:
            entries = self._lookup(np.repeat(self._groups, len(rows)), np.tile(rows, (len(self._groups), 1)))
        except LookupFault as fault:
            raise fault.fault from None
        hold: Flags = np.logical_and.reduce(taken(self._hold.all, entries).reshape(len(self._groups), len(rows)))
        return places(~hold)

    def broken(self, key: int) -> str:
        """The first that does not hold in a state."""
        state, laws = self._steps.reading.open(key), self._steps.laws
        for prop in self._steps.properties.always:
            if not prop.holds(state, laws):
                return prop.name
        raise Unconfirmed("a state property broke where it holds now")


class Search:
    """One exploration, from its initial state on."""

    def __init__(self, steps: Steps, bounds: Bounds) -> None:
        """Raises ValueError for more than `MOST_EVENTUALLY` properties of that kind."""
        eventually = len(steps.properties.eventually)
        if eventually > MOST_EVENTUALLY:
            raise ValueError(f"{eventually} eventually properties; at most {MOST_EVENTUALLY} at a time")
        self.steps, self.bounds = steps, bounds
        self.graph = Graph()
        self.states = RowSet(WORDS)
        self.states.add(rows_of([steps.begin], WORDS))
        self.transitions = 0
        self.happened = 0
        """The `sometimes` that were, one bit each."""
        self.given: set[int] = set()
        """The answers that occurred."""
        self.started_s = time.monotonic()
        self._keeps = bool(eventually)
        self._sweep = Sweep(steps, self._look)
        self._always = _StateProperties(steps, self._look)

    def run(self) -> None:
        """Find every state, level by level. Raises Violated or BoundHit."""
        self._judge_beginning()
        level = range(1)
        while level:
            blocks = [range(first, min(first + _BLOCK, level.stop)) for first in level[::_BLOCK]]
            for block in blocks:
                self._look()
                self._check(block, self.states.rows[block.start : block.stop])
            for block in blocks:
                self._look()
                self._expand(block, self.states.rows[block.start : block.stop])
            level = range(level.stop, len(self.states))

    def _look(self) -> None:
        bounds = self.bounds
        left_s = None if bounds.seconds is None else self.started_s + bounds.seconds - time.monotonic()
        alive(left_s)
        if len(self.states) > bounds.states:
            raise BoundHit(f"more than {bounds.states:,} states")
        if left_s is not None and left_s < 0:
            raise BoundHit(f"more than {bounds.seconds:g} s")
        if bounds.resident_bytes is not None:
            resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1_024
            if resident > bounds.resident_bytes:
                raise BoundHit(f"more than {bounds.resident_bytes:,} bytes resident")

    def _judge_beginning(self) -> None:
        """A beginning that ends the run is judged like any transition; nothing else would be."""
        steps = self.steps
        begun = beginning(steps.laws, steps.model)
        if is_over(begun.after):
            for edge in steps.properties.edges:
                if not edge.holds(begun, steps.laws):
                    raise Violated(edge.name, [])
            for bit, prop in enumerate(steps.properties.sometimes):
                self.happened |= prop.holds(begun, steps.laws) << bit

    def _check(self, block: range, rows: Rows) -> None:
        """The state properties in the states of a block."""
        broken = self._always.broken_in(rows)
        if broken.size:
            place = int(broken[0])
            raise Violated(self._always.broken(*keys_of(rows[place : place + 1])), self.graph.path(block[place]))

    def _expand(self, block: range, rows: Rows) -> None:
        """All transitions from the states of a block."""
        try:
            prospect = self._sweep.prospect(rows)
        except LookupFault as fault:
            place = fault.place
            self._expand(block[:place], rows[:place])
            raise Violated(REFUSED, self.graph.path(block[place]), str(fault.fault)) from fault.fault
        stuck = places(prospect.stuck)
        if stuck.size:
            place = int(stuck[0])
            self._expand(block[:place], rows[:place])
            raise Violated(DEADLOCK, self.graph.path(block[place]))
        transitions = prospect.transitions
        self.given.update(places(np.bincount(transitions.answer) > 0).tolist())
        led = self._follow(block, rows, transitions)
        added = self.states.add(led.rows)
        self.transitions += len(transitions.source)
        self.graph.found(block.start + transitions.source[added.new], transitions.answer[added.new])
        if self._keeps:
            reached = np.array([judgement.reached for judgement in self.steps.judgements], np.uint8)[led.judgements]
            counts = np.bincount(transitions.source, minlength=len(block))
            self.graph.keep(prospect.over, counts, added.numbers, transitions.answer, reached)

    def _follow(self, block: range, rows: Rows, transitions: Transitions) -> Led:
        try:
            led = self._sweep.follow(rows, transitions)
        except LookupFault as fault:
            self._follow(block, rows, transitions.before(fault.place))
            story = self._story(block, transitions, fault.place)
            raise Violated(REFUSED, story, str(fault.fault)) from fault.fault
        judgements = self.steps.judgements
        said = places(np.bincount(led.judgements, minlength=len(judgements)) > 0).tolist()
        broken = [number for number in said if judgements[number].broken is not None]
        if broken:
            place = int(places(np.isin(led.judgements, broken))[0])
            judgement = judgements[led.judgements[place]]
            raise Violated(str(judgement.broken), self._story(block, transitions, place))
        for number in said:
            self.happened |= judgements[number].happens
        return led

    def _story(self, block: range, transitions: Transitions, place: int) -> list[int]:
        """The answers that lead to a transition, and its own."""
        state = block[int(transitions.source[place])]
        return [*self.graph.path(state), int(transitions.answer[place])]
