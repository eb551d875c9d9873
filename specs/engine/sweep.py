"""The transitions of many states at once: `specs.engine.steps` on rows.

Each part of a transition is looked up for all rows (`specs.engine.lookup`), and then put into them: the bits of a row
that stay, and those that replace the others.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specs.engine.lookup import Lookup, LookupFault, Memo
from specs.engine.parts import CANONICAL, CHECKPOINT, KEY, PART, SHIFTS, STATE, WORD, WORDS
from specs.engine.reading import SHEET_PARTS
from specs.engine.rows import Column, Numbers, Rows, RowSet, places, rows_of, taken
from specs.engine.steps import NONE, NUMBER, Moved, Offer, Steps

Flags = NDArray[np.bool_]
Look = Callable[[], None]

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

    def before(self, place: int) -> "Transitions":
        """Those before one of them."""
        return Transitions(self.source[:place], self.answer[:place])


class Prospect(NamedTuple):
    """What may come in some states, and per state whether the run is over, or deadlocked."""

    transitions: "Transitions"
    over: Flags
    stuck: Flags


class Led(NamedTuple):
    """Where transitions lead."""

    rows: Rows
    """In canonical form."""
    judgements: Numbers
    """The judgement on each, by number (`Steps.judgements`)."""


class _Applied(NamedTuple):
    """What functions made of rows."""

    rows: Rows
    done: Numbers
    judgements: Numbers
    changed: Flags
    """Whether anything was done, or changed silently."""


class _Moves:
    """Functions from states to states, and what they make of rows."""

    def __init__(self, steps: Steps, look: Look) -> None:
        self._steps = steps
        self._lookup: Lookup[Moved] = Lookup(self._store, look)
        self._kept, self._bits, self._changes = _words(), _words(), _flags()
        self._done, self._judgements = _numbers(), _numbers()
        self._settle = self._lookup.function(steps.settle)
        self._answers = _numbers()
        """Per answer its function."""

    def _store(self, moved: list[Moved]) -> None:
        self._kept.extend(rows_of([one.kept for one in moved], WORDS))
        self._bits.extend(rows_of([one.bits for one in moved], WORDS))
        self._done.extend(np.array([one.done for one in moved]))
        self._judgements.extend(np.array([one.judgement for one in moved]))
        self._changes.extend(np.array([bool(one.done) or one.kept != -1 for one in moved]))

    def answer(self, answers: Numbers, rows: Rows) -> _Applied:
        """What each answer makes of its row, before the core's own moves. Raises LookupFault."""
        new = range(self._answers.size, len(self._steps.answers))
        self._answers.extend(np.array([self._lookup.function(self._steps.answer(number)) for number in new], np.int64))
        return self._apply(taken(self._answers.all, answers), rows)

    def settle(self, rows: Rows) -> _Applied:
        """What the core's own moves make of rows. Raises LookupFault."""
        return self._apply(np.full(len(rows), self._settle), rows)

    def _apply(self, functions: Numbers, rows: Rows) -> _Applied:
        entries = self._lookup(functions, rows)
        led = taken(self._kept.all, entries)
        led &= rows
        led |= taken(self._bits.all, entries)
        return _Applied(led, *(taken(column.all, entries) for column in (self._done, self._judgements, self._changes)))


class _Offers:
    """What may come in states."""

    def __init__(self, steps: Steps, look: Look) -> None:
        self._lookup: Lookup[Offer] = Lookup(self._store, look)
        self._function = self._lookup.function(steps.offers)
        self._count, self._start, self._answer = _numbers(), _numbers(), _numbers()
        self._over, self._stuck = _flags(), _flags()

    def _store(self, offers: list[Offer]) -> None:
        counts = np.array([len(offer.answers) for offer in offers])
        self._count.extend(counts)
        self._start.extend(self._answer.size + counts.cumsum() - counts)
        self._answer.extend(np.array([answer for offer in offers for answer in offer.answers], np.int64))
        self._over.extend(np.array([offer.over for offer in offers]))
        self._stuck.extend(np.array([offer.stuck for offer in offers]))

    def prospect(self, rows: Rows) -> Prospect:
        """What may come in the states of these rows. Raises LookupFault for one of them."""
        entries = self._lookup(np.full(len(rows), self._function), rows)
        counts = taken(self._count.all, entries)
        first = taken(self._start.all, entries) + counts - counts.cumsum()
        source = np.repeat(np.arange(len(rows)), counts)
        answer = self._answer.all[np.repeat(first, counts) + np.arange(len(source))]
        return Prospect(Transitions(source, answer), taken(self._over.all, entries), taken(self._stuck.all, entries))


class _Judges:
    """What the properties say of transitions."""

    def __init__(self, steps: Steps, look: Look) -> None:
        self._steps = steps
        self._lookup: Lookup[int] = Lookup(self._store, look, 2 * WORDS)
        self._judgements = _numbers()
        self._functions: dict[Memo[int], int] = {}
        self._by_code: dict[int, int] = {}

    def _store(self, judgements: list[int]) -> None:
        self._judgements.extend(np.array(judgements))

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
        """The numbers of the judgements on transitions with these answers, their changes and those of the core's own
        moves. Raises what a property does: it may say no, not fail."""
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
        return taken(self._judgements.all, entries)


class Sweep:
    """All transitions of many states at once."""

    def __init__(self, steps: Steps, look: Look) -> None:
        """`look` is called before every run of a function (`Lookup`)."""
        self._steps = steps
        self._moves = _Moves(steps, look)
        self._judges = _Judges(steps, look)
        self.prospect = _Offers(steps, look).prospect
        self._begin = rows_of([steps.begin], WORDS)
        self._checkpoints = RowSet(WORDS)

    def follow(self, rows: Rows, transitions: "Transitions") -> Led:
        """Where transitions from the states of these rows lead. Raises LookupFault for one of them."""
        answer = transitions.answer
        before = taken(rows, transitions.source)
        if self._steps.checkpoints:
            crashing = places(answer == self._steps.crash)
            before[crashing] = self._saved(before[crashing])
        led, done, judgements, _ = self._moves.answer(answer, before)
        if self._steps.checkpoints:
            saving = places(answer == self._steps.save)
            led[saving] = self._saving(led[saving])
        led, own, _, changed = self._moves.settle(led)
        judgements[changed] = NONE
        unknown = places(judgements == NONE)
        if self._steps.judges_nothing:
            judgements[:] = 0
        elif unknown.size:
            judgements[unknown] = self._judges.judged(
                answer[unknown], done[unknown], own[unknown], before[unknown], led[unknown]
            )
        led &= _CANONICAL
        return Led(led, judgements)

    def _saving(self, rows: Rows) -> Rows:
        """States whose last checkpoint they are themselves."""
        states: Rows = rows & _STATE
        numbers = self._checkpoints.add(states).numbers + 1
        states[:, -1] |= numbers.astype(np.uint64) << _FIRST_BIT
        return states

    def _saved(self, rows: Rows) -> Rows:
        """The states of the last checkpoints, which stay that: the initial one where there is none, since resuming
        that is to start again."""
        numbers = (rows[:, -1] >> _FIRST_BIT).astype(np.int64)
        saved: Rows = taken(np.concatenate([self._begin, self._checkpoints.rows]), numbers)
        saved |= rows & _CHECKPOINT
        return saved
