"""The transitions of many states at once: `specs.engine.steps` on rows.

Each part of a transition is looked up for all rows that it concerns (`specs.engine.lookup`), and then put into them:
the bits of a row that stay, and those that take the place of the others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specs.engine.lookup import Lookup, LookupFault, at
from specs.engine.memo import Memo
from specs.engine.parts import CANONICAL, CHECKPOINT, KEY, PART, SHIFTS, STATE, WORD, WORDS
from specs.engine.reading import SHEET_PARTS
from specs.engine.rows import Column, Numbers, Rows, RowSet, places, rows_of, taken
from specs.engine.steps import NONE, NUMBER, Half, Offer, Steps

Flags = NDArray[np.bool_]
Look = Callable[[], None]

_CRASH, _SAVE = -2, -3
"""In the place of a function: what needs the checkpoint, which is no part of a state."""

_STATE, _CANONICAL, _CHECKPOINT = rows_of([STATE, CANONICAL, KEY & ~STATE], WORDS)
_FIRST_BIT = np.uint64(CHECKPOINT % WORD)
_SHEET = [(SHIFTS[part] // WORD, np.uint64(PART[part] >> SHIFTS[part] // WORD * WORD)) for part in SHEET_PARTS]
"""Per column of the sheet its word and its bits there."""


def _flags() -> Column:
    return Column(np.empty(0, np.bool_))


def _numbers() -> Column:
    return Column(np.empty(0, np.int64))


def _words() -> Column:
    return Column(np.empty((0, WORDS), np.uint64))


class Transitions(NamedTuple):
    """What may come in some states, in the order of these."""

    source: Numbers
    """Per transition the place of its state."""
    answer: Numbers
    half: Numbers
    """The function of the rest of the answer, or _CRASH or _SAVE."""
    rows: Rows
    """The state as that function finds it."""

    def before(self, place: int) -> Transitions:
        """Those before one of them."""
        return Transitions(self.source[:place], self.answer[:place], self.half[:place], self.rows[:place])


class Prospect(NamedTuple):
    """What may come in some states."""

    transitions: Transitions
    over: Flags
    """Per state whether the run is over."""
    stuck: Flags
    """Per state whether nothing comes that gets the run on."""


class Led(NamedTuple):
    """Where transitions lead."""

    rows: Rows
    """In canonical form."""
    judgements: Numbers
    """What the properties say of each, by number (`Steps.judgements`)."""


class _Applied(NamedTuple):
    """What functions made of rows."""

    rows: Rows
    done: Numbers
    said: Numbers
    changed: Flags
    """Whether anything was done, or changed silently."""


class _Halves:
    """Parts of transitions, and what they make of rows."""

    def __init__(self, look: Look) -> None:
        self._lookup: Lookup[Half] = Lookup(self._store, look)
        self._functions: dict[Memo[Half], int] = {}
        self._kept, self._bits = _words(), _words()
        self._done, self._then, self._said, self._changes = _numbers(), _numbers(), _numbers(), _flags()

    def function(self, memo: Memo[Half]) -> int:
        """The number of a function."""
        number = self._functions.get(memo)
        if number is None:
            number = self._functions[memo] = self._lookup.function(memo)
        return number

    def _store(self, halves: list[Half]) -> None:
        self._kept.extend(rows_of([half.kept for half in halves], WORDS))
        self._bits.extend(rows_of([half.bits for half in halves], WORDS))
        self._done.extend(np.array([half.done for half in halves]))
        self._then.extend(np.array([NONE if half.then is None else self.function(half.then) for half in halves]))
        self._said.extend(np.array([half.judgement for half in halves]))
        self._changes.extend(np.array([bool(half.done) or half.kept != -1 or half.then is not None for half in halves]))

    def apply(self, functions: Numbers, rows: Rows) -> _Applied:
        """What each function makes of its row. Raises Fault."""
        entries = self._lookup(functions, rows)
        led = self._put(entries, rows)
        then = taken(self._then.all, entries)
        more = places(then != NONE)
        if more.size:
            starting = led[more]
            with at(more):
                led[more] = self._put(self._lookup(then[more], starting), starting)
        done, said, changed = (taken(column.all, entries) for column in (self._done, self._said, self._changes))
        return _Applied(led, done, said, changed)

    def _put(self, entries: Numbers, rows: Rows) -> Rows:
        led = taken(self._kept.all, entries)
        led &= rows
        led |= taken(self._bits.all, entries)
        return led


class _Offers:
    """What may come in states."""

    def __init__(self, steps: Steps, halves: _Halves, look: Look) -> None:
        self._steps, self._halves = steps, halves
        self._lookup: Lookup[Offer] = Lookup(self._store, look)
        self._kinds = np.array([self._lookup.function(kind) for kind in steps.offers])
        self._count, self._start, self._gets_on, self._over = _numbers(), _numbers(), _flags(), _flags()
        self._answer, self._half, self._kept, self._bits = _numbers(), _numbers(), _words(), _words()

    def _store(self, offers: list[Offer]) -> None:
        counts = np.array([len(offer.answers) for offer in offers])
        self._count.extend(counts)
        self._start.extend(self._answer.size + counts.cumsum() - counts)
        self._gets_on.extend(np.array([offer.gets_on for offer in offers]))
        self._over.extend(np.array([offer.over for offer in offers]))
        special = {self._steps.crash: _CRASH, self._steps.save: _SAVE}
        given = [one for offer in offers for one in offer.answers]
        halves = [special[one.answer] if one.half is None else self._halves.function(one.half) for one in given]
        self._answer.extend(np.array([one.answer for one in given], np.int64))
        self._half.extend(np.array(halves, np.int64))
        self._kept.extend(rows_of([one.kept for one in given], WORDS))
        self._bits.extend(rows_of([one.bits for one in given], WORDS))

    def prospect(self, rows: Rows) -> Prospect:
        """What may come in the states of these rows. Raises Fault for one of them."""
        states = len(rows)
        entries = self._lookup(np.repeat(self._kinds, states), np.tile(rows, (len(self._kinds), 1)))
        over: Flags = np.logical_or.reduce(taken(self._over.all, entries).reshape(len(self._kinds), states))
        gets_on: Flags = np.logical_or.reduce(taken(self._gets_on.all, entries).reshape(len(self._kinds), states))
        counts = taken(self._count.all, entries)
        first = taken(self._start.all, entries) + counts - counts.cumsum()
        source = np.repeat(np.tile(np.arange(states), len(self._kinds)), counts)
        number = np.repeat(first, counts) + np.arange(len(source))
        order = np.argsort(
            source.astype(np.uint16) if states <= 1 << 16 else source, kind="stable"
        )  # radix sorts short numbers
        source, number = source[order], number[order]
        left = taken(rows, source)
        left &= self._kept.all[number]
        left |= self._bits.all[number]
        transitions = Transitions(source, self._answer.all[number], self._half.all[number], left)
        return Prospect(transitions, over, ~over & ~gets_on)


class _Judges:
    """What the properties say of transitions."""

    def __init__(self, steps: Steps, look: Look) -> None:
        self._steps = steps
        self._lookup: Lookup[int] = Lookup(self._store, look, 2 * WORDS)
        self._said = _numbers()
        self._functions: dict[Memo[int], int] = {}
        self._by_code: dict[int, int] = {}

    def _store(self, judgements: list[int]) -> None:
        self._said.extend(np.array(judgements))

    def _function(self, code: int) -> int:
        number = self._by_code.get(code)
        if number is None:
            part = (1 << NUMBER) - 1
            memo = self._steps.judge(code & part, code >> NUMBER & part, code >> 2 * NUMBER & part, code >> 3 * NUMBER)
            number = self._functions.get(memo)
            if number is None:
                number = self._functions[memo] = self._lookup.function(memo)
            self._by_code[code] = number
        return number

    def judged(self, answer: Numbers, done: Numbers, own: Numbers, before: Rows, after: Rows) -> Numbers:
        """The numbers of what is said of transitions that answer so, do this and then make these own moves. Raises what
        a property does: it may say no, not fail."""
        codes = answer | (done << NUMBER) | (own << 2 * NUMBER)
        differs = before ^ after
        for bit, (word, part) in enumerate(_SHEET):
            codes |= ((differs[:, word] & part) != 0).astype(np.int64) << 3 * NUMBER + bit
        codes, which = np.unique(codes, return_inverse=True)
        functions = np.array([self._function(code) for code in codes.tolist()], np.int64)
        try:
            entries = self._lookup(functions[which], np.concatenate([before, after], axis=1))
        except LookupFault as fault:
            raise fault.fault from None
        return taken(self._said.all, entries)


class Sweep:
    """All transitions of many states at once."""

    def __init__(self, steps: Steps, look: Look) -> None:
        """`look` is called before every run of a function (`Lookup`)."""
        self._steps = steps
        self._halves = _Halves(look)
        self._settle = self._halves.function(steps.settle)
        self._resume = [self._halves.function(stage) for stage in steps.resume]
        self._offers = _Offers(steps, self._halves, look)
        self._judges = _Judges(steps, look)
        properties = steps.properties
        self._says_nothing = not (properties.edges or properties.sometimes or properties.eventually)
        self._begin = rows_of([steps.begin], WORDS)
        self._checkpoints = RowSet(WORDS)

    def prospect(self, rows: Rows) -> Prospect:
        """What may come in the states of these rows. Raises Fault for one of them."""
        return self._offers.prospect(rows)

    def follow(self, rows: Rows, transitions: Transitions) -> Led:
        """Where transitions from the states of these rows lead. Raises Fault for one of them."""
        led, done, said, _ = self._answered(transitions)
        led, own, _, changed = self._halves.apply(np.full(len(led), self._settle), led)
        said[changed] = NONE
        open_ = places(said == NONE)
        if self._says_nothing:
            said[:] = 0
        elif open_.size:
            answer, before = transitions.answer[open_], taken(rows, transitions.source[open_])
            crashed = places(answer == self._steps.crash)
            before[crashed] = self._saved(before[crashed])
            said[open_] = self._judges.judged(answer, done[open_], own[open_], before, led[open_])
        led &= _CANONICAL
        return Led(led, said)

    def _answered(self, transitions: Transitions) -> _Applied:
        """The states after the answers, before the core's own moves."""
        half, rows = transitions.half, transitions.rows
        usual, crashing, saving = places(half >= 0), places(half == _CRASH), places(half == _SAVE)
        if len(usual) == len(half):
            return self._halves.apply(half, rows)
        with at(usual):
            applied = self._halves.apply(half[usual], rows[usual])
        whole = _Applied(rows.copy(), np.zeros(len(half), np.int64), np.zeros(len(half), np.int64), half < 0)
        for column, part in zip(whole, applied, strict=True):
            column[usual] = part
        with at(crashing):
            whole.rows[crashing], whole.done[crashing] = self._resumed(rows[crashing])
        whole.said[crashing] = NONE
        whole.rows[saving] = self._saving(rows[saving])
        return whole

    def _saving(self, rows: Rows) -> Rows:
        states: Rows = rows & _STATE
        numbers = self._checkpoints.add(states).numbers + 1
        states[:, -1] |= numbers.astype(np.uint64) << _FIRST_BIT
        return states

    def _saved(self, rows: Rows) -> Rows:
        """The states that a crash resumes from: those of the checkpoints, the initial one where there is none, and the
        states themselves in a world without checkpoints."""
        if self._steps.checkpoints:
            numbers = (rows[:, -1] >> _FIRST_BIT).astype(np.int64)
            return taken(np.concatenate([self._begin, self._checkpoints.rows]), numbers)
        return rows

    def _resumed(self, rows: Rows) -> tuple[Rows, Numbers]:
        """Resume from what was saved, which stays; a run without a checkpoint starts anew, which is to resume its
        beginning. Stage by stage, since all of a resume reads nearly all of a state."""
        led, done = self._saved(rows) & _STATE, np.zeros(len(rows), np.int64)
        for stage in self._resume:
            led, made, _, _ = self._halves.apply(np.full(len(led), stage), led)
            done = self._join(done, made)
        return led | (rows & _CHECKPOINT), done

    def _join(self, first: Numbers, second: Numbers) -> Numbers:
        codes, which = np.unique((first << NUMBER) | second, return_inverse=True)
        part = (1 << NUMBER) - 1
        return np.array([self._steps.join(code >> NUMBER, code & part) for code in codes.tolist()], np.int64)[which]
