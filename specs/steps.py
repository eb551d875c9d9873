"""The transitions of a model on keys: remembered, canonical, and judged against the properties.

An answer's transition is remembered in two halves, the answer itself and the core's own moves, each by the parts of
the state that it read (`specs.memo`). Where the first half leads to a state that is known already, that state is
settled and the second half does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple, Protocol

from fsm import answers
from fsm.answers import Done
from fsm.laws import Laws
from fsm.moves import Move
from fsm.state import State, is_over
from specs.memo import BranchingMemo, Memo, PairMemo
from specs.model import CORE_FAULTS, IDLE, Answer, CrashFrom, Model, World, answer, arrive, canonical, leave
from specs.parts import CANONICAL, CHECKPOINT, RUNNING, STATE, Elsewhere, NotHere, Parts, Reading, written
from specs.properties import Properties, Transition

Half = tuple[int, int, int]
"""The bits of a key that stay; what takes the place of the others; the number of what was done."""

First = tuple[int, int, int, int, "Judgement | None"]
"""Of an answer the bits that stay; what takes the place of the others, and that in canonical form; the number of what
was done; and the judgement on it where nothing follows, or None where that depends on more than the answer does."""

Answered = Callable[[State, Laws, Answer], Done]

SAVE = Answer("save")

_ELSEWHERE: Any = Elsewhere()


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

    answers: tuple[tuple[int, int, int, FirstHalf], ...]
    """The number of each answer; the bits that stay where the attempt that it ends is over, and what takes the place of
    the others; and its first half, which goes on from there."""
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
        stages = answers.RESUME if model.resume is answers.resume else (model.resume,)
        self._resume_stages = [Memo(self.reading, partial(self._stage, stage)) for stage in stages]
        self._halves: list[FirstHalf] = []
        self._left: list[Memo[tuple[int, int]]] = []
        self._wholes: dict[int, FirstHalf] = {}
        self._answer_numbers: dict[Answer, int] = {}
        self._done_numbers: dict[object, int] = {}
        self._joined: dict[tuple[int, int], int] = {}
        self.judges: dict[tuple[int, int, int], PairMemo[Judgement]] = {}
        """What `judge` has given, by what it was asked for."""
        self._judges: dict[tuple[int, int], PairMemo[Judgement]] = {}
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
            other = self._pair[1]  # an offer is being read
            self._left.append(Memo(other, lambda state: written(leave(state, given), other)))
        return number

    def _first_half(self, number: int, given: Answer) -> FirstHalf:
        if given.name == "save":
            return Jump(self._save)
        if given.name == "crash":
            return Jump(self._crash if self.world.crash is CrashFrom.LAST_CHECKPOINT else self._resume)
        answered, before = self.model.answer, self.reading.state
        if answered is answer:
            answered, before = arrive, before._replace(running=_ELSEWHERE)
        return Memo(self.reading, partial(self._answered, number, given, answered, before))

    def _answered(self, number: int, given: Answer, answered: Answered, before: State, state: State) -> First:
        result = answered(state, self.laws, given)
        kept, raw, done = self._half(result)
        try:
            judgement = self._judge(number, done, before, result[0])
        except NotHere:
            judgement = None
        return kept, raw, raw & CANONICAL, done, judgement

    def _resume(self, key: int) -> First:
        """Stage by stage, since all of a resume reads nearly all of the state."""
        moved, done = key & STATE, 0
        for stage in self._resume_stages:
            kept, raw, made = stage(moved)
            moved = moved & kept | raw
            done = self.join(done, made)
        return ~STATE, moved, moved & CANONICAL, done, self.judge(self.crash, done, 0)(key & STATE, moved)

    def _stage(self, stage: Callable[[State, Laws], Done], state: State) -> Half:
        return self._half(stage(state, self.laws))

    def _settle(self, state: State) -> Half:
        return self._half(self.model.settle(state, self.laws))

    def _half(self, result: Done) -> Half:
        state, done = result
        kept, raw = written(state, self.reading)
        kept = self._kept.setdefault(kept, kept)  # there are few, and many halves that hold one
        return kept, raw, self._number_done(done)

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
        return Offer(tuple(self._offered(number) for number in numbers), deadlocked, over)

    def _offered(self, number: int) -> tuple[int, int, int, FirstHalf]:
        """One answer of an offer. It is not taken apart where the model does not answer as the core does, where there
        is no attempt to end, or where more than the running ones change when one ends."""
        half = self._halves[number]
        if self.model.answer is not answer or isinstance(half, Jump):
            return number, -1, 0, half
        left = self._left[number]
        try:
            kept, bits = left(self.reading.key)
        except CORE_FAULTS:
            self.reading.mask |= self._pair[1].mask  # the offer depends on all that was read for it
            return number, -1, 0, self._whole(number)
        for mask, _ in left.tables:
            self.reading.mask |= mask
        if kept not in (-1, ~RUNNING):
            return number, -1, 0, self._whole(number)
        return number, kept, bits, half

    def _whole(self, number: int) -> FirstHalf:
        half = self._wholes.get(number)
        if half is None:
            given = self.answers[number]
            answered = partial(self._answered, number, given, self.model.answer, self.reading.state)
            half = self._wholes[number] = Memo(self.reading, answered)
        return half

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
        return self._resume(self.saved(key))

    def judge(self, answer: int, done: int, own: int) -> PairMemo[Judgement]:
        """What the properties say of transitions that answer so, do this and then make these moves of the core's own:
        of the state before, and the state after with the balance sheet that the transition leaves. Under `crash` the
        state before is the one saved."""
        both = answer, self.join(done, own)
        memo = self._judges.get(both)
        if memo is None:
            memo = self._judges[both] = PairMemo(self._pair, partial(self._judge, *both))
        self.judges[answer, done, own] = memo
        return memo

    def _judge(self, answer: int, done: int, before: State, after: State) -> Judgement:
        transition = Transition(before, self.answers[answer], self.done[done], after)
        properties, laws = self.properties, self.laws
        broken = next((edge.name for edge in properties.edges if not edge.holds(transition, laws)), None)
        happens = sum(prop.happens(transition, laws) << bit for bit, prop in enumerate(properties.sometimes))
        reached = sum(prop.reached(transition, laws) << bit for bit, prop in enumerate(properties.eventually))
        judgement = Judgement(broken, happens, reached)
        return QUIET if judgement == QUIET else judgement
