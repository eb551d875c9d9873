"""The transitions of a model on keys: remembered, canonical, and judged against the properties.

An answer's transition is remembered in two halves, the answer itself and the core's own moves, each by the parts of
the state that it read (`specs.memo`). Where the first half leads to a state that is known already, that state is
settled and the second half does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple, Protocol

from fsm.answers import Done
from fsm.laws import Laws
from fsm.moves import Move
from fsm.state import State, is_over
from specs.memo import BranchingMemo, Memo, PairMemo
from specs.model import IDLE, Answer, CrashFrom, Model, World, canonical, canonical_tally
from specs.parts import CHECKPOINT, FIELDS, PART, STATE, Parts, Reading, written
from specs.properties import Properties, Transition

Half = tuple[int, int, int, int]
"""The bits of a key that stay; what takes the place of the others, and that in canonical form; the number of what was
done."""

First = tuple[int, int, int, int, "Judgement"]
"""The same of an answer, and the judgement on it where nothing follows."""

_TALLY = FIELDS.index("tally")

SAVE = Answer("save")


class FirstHalf(Protocol):
    """What an answer does before the core's own moves follow: a Memo, or the same without a memory."""

    tables: list[tuple[int, dict[int, First]]]

    def learn(self, key: int) -> First:
        """Where nothing is remembered."""


class Jump:
    """A first half that is not remembered, or that goes by the checkpoint, which is no part of the state."""

    __slots__ = ("learn", "tables")

    def __init__(self, leap: Callable[[int], First]) -> None:
        self.learn = leap
        self.tables: list[tuple[int, dict[int, First]]] = []


class Offer(NamedTuple):
    """What may come in a state."""

    answers: tuple[tuple[int, FirstHalf], ...]
    """The number of each answer, and its first half."""
    deadlocked: bool
    over: bool


class Judgement(NamedTuple):
    """What the properties say of a transition."""

    broken: str | None
    """The first `edge` that it breaks."""
    happens: int
    """The `sometimes` that it is, one bit each."""
    reached: int
    """The `eventually` that it reaches, one bit each."""


QUIET = Judgement(None, 0, 0)
"""What is said of most transitions: this very object."""


class Steps:
    """All transitions of a model under given laws, in a given world."""

    def __init__(self, laws: Laws, world: World, properties: Properties, model: Model) -> None:
        self.laws, self.world, self.properties, self.model = laws, world, properties, model
        self.parts = Parts()
        self.reading = Reading(self.parts)
        self._pair = (self.reading, Reading(self.parts))
        self.answers: list[Answer] = []
        self.done: list[tuple[Move, ...]] = []
        """Every list of moves that a transition, or half of one, has made."""
        self.begin = self.parts.pack(canonical(model.settle(model.begin(laws), laws)[0]))
        self.offer = Memo(self.reading, self._offer)
        self.settle = BranchingMemo(self.reading, self._settle)
        self._halves: list[FirstHalf] = []
        self._answer_numbers: dict[Answer, int] = {}
        self._done_numbers: dict[object, int] = {}
        self._joined: dict[tuple[int, int], int] = {}
        self.judges: dict[tuple[int, int], PairMemo[Judgement]] = {}
        self._checkpoints: list[int] = []
        self._checkpoint_numbers: dict[int, int] = {}
        self._kept: dict[int, int] = {}
        self._number_done(())
        self.crash = self.number(Answer("crash"))
        self.save = self.number(SAVE)

    def number(self, given: Answer) -> int:
        """The number of an answer."""
        number = self._answer_numbers.get(given)
        if number is None:
            number = self._answer_numbers[given] = len(self.answers)
            self.answers.append(given)
            self._halves.append(self._first_half(number, given))
        return number

    def _first_half(self, number: int, given: Answer) -> FirstHalf:
        if given.name == "save":
            return Jump(self._save)
        if given.name == "crash":
            return Jump(self._resume if self.world.crash is CrashFrom.OWN_SNAPSHOT else self._crash)
        return Memo(self.reading, partial(self._answered, number, given))

    def _answered(self, number: int, given: Answer, state: State) -> First:
        return self._first(number, state, self.model.answer(state, self.laws, given))

    def _resume(self, key: int) -> First:
        """A resume reads nearly all of the state: it is not worth remembering."""
        state = self.reading.open(key)
        return self._first(self.crash, state, self.model.resume(state, self.laws))

    def _first(self, number: int, state: State, result: Done) -> First:
        half = self._half(result)
        return *half, self._judge(number, half[3], state, result[0])

    def _settle(self, state: State) -> Half:
        moved, done = self.model.settle(state, self.laws)
        return self._half((moved._replace(tally=moved.tally), done))  # which is canonical only once written

    def _half(self, result: Done) -> Half:
        state, done = result
        kept, raw = written(state, self.reading)
        kept = self._kept.setdefault(kept, kept)  # there are few, and many halves that hold one
        if kept & PART[_TALLY]:  # left as it was: canonical
            return kept, raw, raw, self._number_done(done)
        shown = raw & ~PART[_TALLY] | self.parts.bits(_TALLY, canonical_tally(state.tally))
        return kept, raw, shown, self._number_done(done)

    def _number_done(self, done: Iterable[Move]) -> int:
        moves = tuple(done)
        kinds = (tuple(type(move) for move in moves), moves)  # two kinds of moves may be equal as tuples
        number = self._done_numbers.get(kinds)
        if number is None:
            number = self._done_numbers[kinds] = len(self.done)
            self.done.append(moves)
        return number

    def join(self, first: int, second: int) -> int:
        """The number of what two halves have done."""
        if not second:
            return first
        number = self._joined.get((first, second))
        if number is None:
            number = self._joined[first, second] = self._number_done(self.done[first] + self.done[second])
        return number

    def _offer(self, state: State) -> Offer:
        given = list(self.model.possible(state, self.laws, self.world))
        over = is_over(state)
        numbers = [self.number(answer) for answer in given]
        if self.world.crash is CrashFrom.LAST_CHECKPOINT and not over:
            numbers.append(self.save)
        deadlocked = not over and all(answer.name in IDLE for answer in given)
        return Offer(tuple((number, self._halves[number]) for number in numbers), deadlocked, over)

    def _save(self, key: int) -> First:
        state = key & STATE
        number = self._checkpoint_numbers.get(state)
        if number is None:
            self._checkpoints.append(state)
            number = self._checkpoint_numbers[state] = len(self._checkpoints)
        return STATE, number << CHECKPOINT, number << CHECKPOINT, 0, QUIET

    def saved(self, key: int) -> int:
        """The state that a crash resumes from, as a key; the initial one where there is no checkpoint."""
        number = key >> CHECKPOINT
        return self._checkpoints[number - 1] if number else self.begin

    def _crash(self, key: int) -> First:
        """Resume from the checkpoint, which stays; a run without one starts anew, which is to resume its beginning."""
        saved = self.saved(key)
        kept, raw, shown, done, judgement = self._resume(saved)
        rest = saved & kept & STATE
        return ~STATE, rest | raw, rest | shown, done, judgement

    def judge(self, answer: int, done: int) -> PairMemo[Judgement]:
        """What the properties say of transitions that answer and do this: of the state before, and the state after
        with the balance sheet that the transition leaves. Under `crash` the state before is the one saved."""
        memo = self.judges.get((answer, done))
        if memo is None:
            memo = self.judges[answer, done] = PairMemo(self._pair, partial(self._judge, answer, done))
        return memo

    def _judge(self, answer: int, done: int, before: State, after: State) -> Judgement:
        transition = Transition(before, self.answers[answer], self.done[done], after)
        properties, laws = self.properties, self.laws
        broken = next((edge.name for edge in properties.edges if not edge.holds(transition, laws)), None)
        happens = sum(prop.happens(transition, laws) << bit for bit, prop in enumerate(properties.sometimes))
        reached = sum(prop.reached(transition, laws) << bit for bit, prop in enumerate(properties.eventually))
        judgement = Judgement(broken, happens, reached)
        return QUIET if judgement == QUIET else judgement
