"""The functions of a model on keys: what may come in a state, what it does, and what the properties say of it.

An answer's transition is remembered in parts, each by what it read of the state (`specs.engine.memo`): that the
attempt is over, the rest of the answer, the core's own moves, and that the groups which were started run.
`specs.engine.sweep` puts the parts together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

from fsm.rules import on_event
from fsm.rules.changes import Change, Done
from fsm.rules.laws import Laws
from fsm.state import GroupClass, State, is_over
from specs import model as core
from specs.engine.memo import Memo, of_state, of_two_states
from specs.engine.parts import RUNNING, Parts, TooManyValues
from specs.engine.reading import Additions, Elsewhere, Reading, Running, Starting, beside, written
from specs.model import (
    CORE_FAULTS,
    ENDS_ATTEMPT,
    IDLE,
    Answer,
    CrashFrom,
    Model,
    WorldOptions,
    arrive,
    canonical,
    leave,
)
from specs.properties.kinds import Properties, Transition

Answered = Callable[[State, Laws, Answer], Done]

SAVE = Answer("save")

_ELSEWHERE: Any = Elsewhere()
NONE = -1

NUMBER = 16
"""Bits of the number of an answer, or of a list of moves, of which there are hundreds."""


class Half(NamedTuple):
    """What a part of a transition does to a key."""

    kept: int
    """The bits that stay."""
    bits: int
    """What takes the place of the others."""
    done: int
    """The number of the moves that it made."""
    then: Memo[Half] | None
    """What adds the groups that it started to those that run, where it has not looked at these."""
    judgement: int
    """The number of the judgement on the transition where the core's own moves do nothing; NONE where that depends on
    more than this part does."""


class Offered(NamedTuple):
    """One answer that may come."""

    answer: int
    """Its number."""
    kept: int
    """The bits of a key that stay where the attempt that it ends is over."""
    bits: int
    """What takes the place of the others."""
    half: Memo[Half] | None
    """The rest of what it does; None of `crash` and `save`."""


class Offer(NamedTuple):
    """What may come in a state, or one kind of it."""

    answers: tuple[Offered, ...]
    gets_on: bool
    """One of them gets a run out of a deadlock."""
    over: bool
    """The run is over."""


class Judgement(NamedTuple):
    """What the properties say of a transition."""

    broken: str | None
    """The first `edge` that it breaks."""
    happens: int
    """The `sometimes` that it is, one bit each."""
    reached: int
    """The `eventually` that it reaches, one bit each."""


QUIET = Judgement(None, 0, 0)
"""What is said of most transitions: number 0."""


def _alike(move: Change) -> tuple[object, ...]:
    """What tells a move from others of its kind: errors are told apart by what they say."""
    return tuple((type(value), value.args) if isinstance(value, Exception) else value for value in move)


def _fits(number: int, what: str) -> int:
    if number >> NUMBER:
        raise TooManyValues(f"more than {1 << NUMBER:,} {what}")
    return number


def _unless_over(kind: core.Possible) -> core.Possible:
    def possible(state: State, laws: Laws, world: WorldOptions) -> Iterator[Answer]:
        return iter(()) if is_over(state) else kind(state, laws, world)

    return possible


class Steps:
    """All that a model does under given laws, in a given world."""

    def __init__(self, laws: Laws, world: WorldOptions, properties: Properties, model: Model) -> None:
        self.laws, self.world, self.properties, self.model = laws, world, properties, model
        self.checkpoints = world.crash is CrashFrom.LAST_CHECKPOINT
        """Whether a crash resumes from the last checkpoint, and not from a snapshot of its own."""
        self.parts = Parts()
        self.reading = Reading(self.parts)
        self._pair = (self.reading, Reading(self.parts))
        self._moving = Starting(self.parts)
        self._elsewhere = Elsewhere()
        self.answers: list[Answer] = []
        self.done: list[tuple[Change, ...]] = []
        """Every list of moves that a transition, or a part of one, has made."""
        self.judgements = [QUIET]
        """What has been said of transitions, by number."""
        self.begin = self.parts.pack(canonical(model.settle(model.begin(laws), laws)[0]))
        self.settle = of_state(self._moving, self._settle)
        stages = on_event.RESUME if model.resume is on_event.resume else (model.resume,)
        self.resume = [of_state(self._moving, partial(self._stage, stage)) for stage in stages]
        """What a resume does, one after the other: all of it together reads nearly all of a state."""
        own = model.possible is core.possible
        kinds = [_unless_over(kind) for kind in core.POSSIBLE] if own else [model.possible]
        offers: list[Callable[[State], Offer]] = [*(partial(self._offer, kind) for kind in kinds), self._ending]
        self.offers = [of_state(self.reading, offer) for offer in offers]
        """What may come in a state, kind by kind."""
        self._halves: dict[int, Memo[Half]] = {}
        self._wholes: dict[int, Memo[Half]] = {}
        self._starts: dict[Additions, Memo[Half]] = {}
        self._judges: dict[tuple[int, int, int], Memo[int]] = {}
        self._answer_numbers: dict[Answer, int] = {}
        self._done_numbers: dict[object, int] = {}
        self._judgement_numbers = {QUIET: 0}
        self._number_done(())
        self.crash = self._number(Answer("crash"))
        self.save = self._number(SAVE)

    def _number(self, given: Answer) -> int:
        number = self._answer_numbers.get(given)
        if number is None:
            number = self._answer_numbers[given] = _fits(len(self.answers), "answers")
            self.answers.append(given)
        return number

    def _number_done(self, done: Iterable[Change]) -> int:
        moves = tuple(done)
        kinds = tuple((type(move), _alike(move)) for move in moves)  # two kinds of moves may be equal as tuples
        number = self._done_numbers.get(kinds)
        if number is None:
            number = self._done_numbers[kinds] = _fits(len(self.done), "lists of moves")
            self.done.append(moves)
        return number

    def join(self, first: int, second: int) -> int:
        """The number of what two parts of a transition have done."""
        return self._number_done(self.done[first] + self.done[second]) if second else first

    def _ending(self, state: State) -> Offer:
        over = is_over(state)
        saves = self.checkpoints and not over
        return Offer((Offered(self.save, -1, 0, None),) if saves else (), False, over)

    def _offer(self, kind: core.Possible, state: State) -> Offer:
        given = list(kind(state, self.laws, self.world))
        lefts: dict[GroupClass, tuple[int, int] | None] = {}
        offered = tuple(self._offered(answer, lefts) for answer in given)
        return Offer(offered, any(answer.name not in IDLE for answer in given), False)

    def _offered(self, given: Answer, lefts: dict[GroupClass, tuple[int, int] | None]) -> Offered:
        """One answer of an offer. It is not taken apart where the model does not answer as the core does, where there
        is no attempt to end, or where more than the running ones change when one ends."""
        number, group_class = self._number(given), given.group_class
        if given.name in ("crash", "save"):
            return Offered(number, -1, 0, None)
        if self.model.answer is not core.answer or given.name not in ENDS_ATTEMPT or group_class is None:
            return Offered(number, -1, 0, self._half_of(number))
        if group_class not in lefts:
            lefts[group_class] = self._left(given)
        left = lefts[group_class]
        if left is None:
            return Offered(number, -1, 0, self._whole_of(number))
        return Offered(number, *left, self._half_of(number))

    def _left(self, given: Answer) -> tuple[int, int] | None:
        other = self._pair[1]  # the offer itself is being read
        try:
            left = written(leave(other.open(self.reading.key), given), other)
        except CORE_FAULTS:
            return None
        finally:
            self.reading.mask |= other.mask  # the offer depends on all that was read for it
        return (left.kept, left.bits) if left.kept in (-1, ~RUNNING) and not left.started else None

    def _half_of(self, number: int) -> Memo[Half]:
        half = self._halves.get(number)
        if half is None:
            apart = self.model.answer is core.answer
            answered = partial(self._answered, number, arrive if apart else self.model.answer, apart)
            half = self._halves[number] = of_state(self._moving, answered)
        return half

    def _whole_of(self, number: int) -> Memo[Half]:
        half = self._wholes.get(number)
        if half is None:
            answered = partial(self._answered, number, self.model.answer, False)
            half = self._wholes[number] = of_state(self._moving, answered)
        return half

    def _answered(self, number: int, answered: Answered, has_left: bool, state: State) -> Half:
        """`has_left`: the attempt is over in `state`, so what ran before is not to be had from it."""
        result = answered(state, self.laws, self.answers[number])
        half = self._half(result)
        elsewhere: Any = self._elsewhere
        elsewhere.looked_at = False
        before = self._moving.shown(state, elsewhere)
        if has_left:
            before = before._replace(running=elsewhere)
        try:
            said = self._judge(number, half.done, before, self._moving.shown(result[0], elsewhere))
        except Exception:  # NotHere, or the core's own moves follow and there is no such transition: it is judged later
            return half
        return half if elsewhere.looked_at else half._replace(judgement=said)

    def _settle(self, state: State) -> Half:
        return self._half(self.model.settle(state, self.laws))

    def _stage(self, stage: Callable[[State, Laws], Done], state: State) -> Half:
        return self._half(stage(state, self.laws))

    def _half(self, result: Done) -> Half:
        state, done = result
        kept, bits, started = written(state, self._moving)
        return Half(kept, bits, self._number_done(done), self._start(started), NONE)

    def _start(self, started: Additions) -> Memo[Half] | None:
        if not started:
            return None
        start = self._starts.get(started)
        if start is None:
            start = self._starts[started] = of_state(self._moving, partial(self._started, started))
        return start

    def _started(self, started: Additions, state: State) -> Half:
        running: Any = Running(self._moving, started).read()
        kept, bits, _ = written(state._replace(running=running), self._moving)
        return Half(kept, bits, 0, None, NONE)

    def judge(self, answer: int, done: int, own: int, changed: int) -> Memo[int]:
        """The number of what the properties say of transitions that answer so, do this, then make these moves of the
        core's own, and change these columns of the sheet (`specs.engine.reading.beside`): of the state before, and the
        state after with the sheet that the transition leaves. Under `crash` the state before is the one saved."""
        kind = answer, self.join(done, own), changed
        memo = self._judges.get(kind)
        if memo is None:
            after = beside(*self._pair, changed)
            memo = self._judges[kind] = of_two_states(self._pair, after, partial(self._judge, *kind[:2]))
        return memo

    def _judge(self, answer: int, done: int, before: State, after: State) -> int:
        transition = Transition(before, self.answers[answer], self.done[done], after)
        properties, laws = self.properties, self.laws
        broken = next((edge.name for edge in properties.edges if not edge.holds(transition, laws)), None)
        happens = sum(bool(prop.happens(transition, laws)) << bit for bit, prop in enumerate(properties.sometimes))
        reached = sum(bool(prop.reached(transition, laws)) << bit for bit, prop in enumerate(properties.eventually))
        judgement = Judgement(broken, happens, reached)
        number = self._judgement_numbers.get(judgement)
        if number is None:
            number = self._judgement_numbers[judgement] = len(self.judgements)
            self.judgements.append(judgement)
        return number
