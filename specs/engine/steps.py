"""The functions of a model on keys: what may come in a state, what it does, and what the properties say of it.

Each is remembered by what it read of the state (`specs.engine.lookup`): what may come, each answer, the core's own
moves, a resume, and per kind of transition the judgement. `specs.engine.sweep` puts transitions together from them.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast

from fsm.machines.table import Fire, Table, Value
from fsm.rules.changes import Change
from fsm.rules.laws import Laws
from fsm.state import State, is_over
from specs.engine.lookup import Memo, of_state, of_two_states
from specs.engine.parts import Parts, TooManyValues
from specs.engine.reading import Reading, second_of, written
from specs.model import IDLE, Answer, CrashFrom, Model, WorldOptions, initial
from specs.properties.kinds import Properties, Transition

V = TypeVar("V", bound=Value)
C = TypeVar("C")

CRASH, SAVE = Answer("crash"), Answer("save")

NONE = -1
"""No judgement yet."""

NUMBER = 16
"""Bits of the number of an answer, or of a list of changes, of which there are hundreds."""


class Moved(NamedTuple):
    """What a function does to a key."""

    kept: int
    """The bits that stay."""
    bits: int
    """What replaces the others."""
    done: int
    """The number of the changes that it made."""
    judgement: int
    """The number of the judgement on the transition if the core's own moves do nothing after it; NONE if that is
    not known."""


class Offer(NamedTuple):
    """What may come in a state."""

    answers: tuple[int, ...]
    """By number."""
    over: bool
    """The run is over."""
    stuck: bool
    """The run is not over, and no answer gets it on: a deadlock."""


class Judgement(NamedTuple):
    """What the properties say of a transition."""

    broken: str | None
    """The first `edge` that it breaks."""
    happens: int
    """The `sometimes` that it is, one bit each."""
    reached: int
    """The `eventually` that it reaches, one bit each."""


QUIET = Judgement(None, 0, 0)
"""The judgement on most transitions: number 0."""


def _alike(change: Change) -> tuple[object, ...]:
    """What tells a change from others of its kind: errors are told apart by their arguments."""
    return tuple((type(value), value.args) if isinstance(value, Exception) else value for value in change)


def _fits(number: int, what: str) -> int:
    if number >> NUMBER:
        raise TooManyValues(f"more than {1 << NUMBER:,} {what}")
    return number


def _remembered(fire: Fire) -> Fire:
    """`fire`, called once for each table, event, value and context; what it refuses is asked again."""
    known: dict[Any, Any] = {}

    def remembered(table: Table[V, C], event: str, value: V, context: C) -> V:
        asked = (table.name, event, value, context)
        moved = known.get(asked)
        if moved is None:
            moved = known[asked] = fire(table, event, value, context)
        return cast(V, moved)

    return remembered


class Steps:
    """All that a model does under given laws, in a given world."""

    def __init__(self, laws: Laws, world: WorldOptions, properties: Properties, model: Model) -> None:
        self.laws = laws._replace(fire=_remembered(laws.fire))
        self.world, self.properties, self.model = world, properties, model
        self.judges_nothing = not (properties.edges or properties.sometimes or properties.eventually)
        """No property is about transitions: the judgement on all of them is `QUIET`."""
        self.checkpoints = world.crash is CrashFrom.LAST_CHECKPOINT
        """Whether a crash resumes from the last checkpoint, and not from a snapshot of that moment."""
        self.parts = Parts()
        self.reading = Reading(self.parts)
        self._pair = (self.reading, Reading(self.parts))
        self.answers: list[Answer] = []
        self.done: list[tuple[Change, ...]] = []
        """Every list of changes that a transition, or a part of one, has made."""
        self.judgements = [QUIET]
        """Every judgement on a transition, by number."""
        self.begin = self.parts.pack(initial(laws, model))
        self.offers = of_state(self.reading, self._offer)
        self.settle = of_state(self.reading, self._settle)
        self._judges: dict[tuple[int, int, int], Memo[int]] = {}
        self._answer_numbers: dict[Answer, int] = {}
        self._done_numbers: dict[object, int] = {}
        self._judgement_numbers = {QUIET: 0}
        self._number_done(())
        self.crash = self._number(CRASH)
        self.save = self._number(SAVE)

    def _number(self, given: Answer) -> int:
        number = self._answer_numbers.get(given)
        if number is None:
            number = self._answer_numbers[given] = _fits(len(self.answers), "answers")
            self.answers.append(given)
        return number

    def _number_done(self, done: Iterable[Change]) -> int:
        changes = tuple(done)
        if not changes and self.done:
            return 0
        kinds = tuple((type(change), _alike(change)) for change in changes)  # two kinds may be equal as tuples
        number = self._done_numbers.get(kinds)
        if number is None:
            number = self._done_numbers[kinds] = _fits(len(self.done), "lists of changes")
            self.done.append(changes)
        return number

    def _offer(self, state: State) -> Offer:
        given = list(self.model.possible(state, self.laws, self.world))
        over = is_over(state)
        stuck = not over and all(answer.name in IDLE for answer in given)
        if self.checkpoints and not over:
            given.append(SAVE)
        return Offer(tuple(map(self._number, given)), over, stuck)

    def answer(self, number: int) -> Memo[Moved]:
        """What the answer of that number does, before the core's own moves; `save` does nothing to the state."""
        if number == self.save:
            return of_state(self.reading, lambda _: Moved(-1, 0, 0, 0))
        return of_state(self.reading, partial(self._answered, number))

    def _answered(self, number: int, state: State) -> Moved:
        model = self.model
        if number == self.crash:
            after, done = model.resume(state, self.laws)
        else:
            after, done = model.answer(state, self.laws, self.answers[number])
        moved = self._moved(after, done)
        try:
            return moved._replace(judgement=self._judge(number, moved.done, state, after))
        except Exception:  # the core's own moves follow, and there is no such transition: it is judged with them
            return moved

    def _settle(self, state: State) -> Moved:
        return self._moved(*self.model.settle(state, self.laws))

    def _moved(self, state: State, done: Iterable[Change]) -> Moved:
        kept, bits = written(state, self.reading)
        return Moved(kept, bits, self._number_done(done), NONE)

    def judge(self, answer: int, done: int, own: int, changed: int) -> Memo[int]:
        """The number of the judgement on transitions with this answer, its changes and those of the core's own moves,
        that change these columns of the sheet (`second_of`): a function of the state before, and of
        the state after with the sheet that the transition leaves. After `crash` the state before is the one saved."""
        done = self._number_done(self.done[done] + self.done[own]) if own else done
        kind = answer, done, changed
        memo = self._judges.get(kind)
        if memo is None:
            after = second_of(*self._pair, changed)
            memo = self._judges[kind] = of_two_states(self._pair, after, partial(self._judge, answer, done))
        return memo

    def _judge(self, answer: int, done: int, before: State, after: State) -> int:
        if self.judges_nothing:
            return 0
        transition = Transition(before, self.answers[answer], self.done[done], after)
        properties, laws = self.properties, self.laws
        broken = next((edge.name for edge in properties.edges if not edge.holds(transition, laws)), None)
        happens = sum(bool(prop.holds(transition, laws)) << bit for bit, prop in enumerate(properties.sometimes))
        reached = sum(bool(prop.holds(transition, laws)) << bit for bit, prop in enumerate(properties.eventually))
        judgement = Judgement(broken, happens, reached)
        number = self._judgement_numbers.get(judgement)
        if number is None:
            number = self._judgement_numbers[judgement] = len(self.judgements)
            self.judgements.append(judgement)
        return number
