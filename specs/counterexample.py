"""Counterexamples replayed, answer by answer, through the model's functions themselves: nothing is remembered.

`replay` also serves to tell a counterexample: it returns every situation, and the changes that led to it.
"""

from collections.abc import Sequence
from typing import NamedTuple

from fsm.machines.prompt_group import BalanceSheet
from fsm.machines.table import Fairness
from fsm.rules.laws import Laws
from fsm.state import State, is_over
from specs.model import CORE_FAULTS, Answer, CrashFrom, Model, WorldOptions, canonical, deadlocked, initial
from specs.properties.kinds import DEADLOCK, REFUSED, Properties, Transition


class Unconfirmed(Exception):
    """A counterexample does not replay: the checker is wrong, or the model is not deterministic."""


class ReplayedState(NamedTuple):
    """Where a story is."""

    state: State
    """With the balance sheet of the whole story."""
    saved: State | None = None
    """The last checkpoint, in a world that has one."""


class ReplayedAnswer(NamedTuple):
    """One answer of a story."""

    transition: Transition
    situation: ReplayedState
    """After it."""


def follow(situation: ReplayedState, laws: Laws, world: WorldOptions, model: Model, answer: Answer) -> ReplayedAnswer:
    """The situation after an answer. Raises Unconfirmed if the answer is not possible, and what the core raises."""
    state = situation.state
    if answer.name == "save":
        saved = ReplayedState(state, state)
        return ReplayedAnswer(Transition(state, answer, (), state), saved)
    if answer not in set(model.possible(state, laws, world)):
        raise Unconfirmed(f"{answer} is not possible in {state}")
    before, saved_state = state, situation.saved
    if answer.name == "crash":
        if world.crash is CrashFrom.LAST_CHECKPOINT:
            before = saved_state if saved_state is not None else initial(laws, model)
        moved, done = model.resume(before, laws)
    else:
        moved, done = model.answer(state, laws, answer)
    after, own = model.settle(moved, laws)
    return ReplayedAnswer(Transition(before, answer, (*done, *own), after), ReplayedState(after, saved_state))


def replay(laws: Laws, world: WorldOptions, model: Model, answers: Sequence[Answer]) -> list[ReplayedAnswer]:
    """A story from the beginning."""
    situation = ReplayedState(initial(laws, model))
    told: list[ReplayedAnswer] = []
    for answer in answers:
        told.append(follow(situation, laws, world, model, answer))
        situation = told[-1].situation
    return told


def beginning(laws: Laws, model: Model) -> Transition:
    """The run's beginning as a transition: from nothing to the first state."""
    before = model.begin(laws)
    after, done = model.settle(before, laws)
    return Transition(before, Answer("begin"), done, after)


def confirm(
    laws: Laws,
    world: WorldOptions,
    properties: Properties,
    model: Model,
    broken: str,
    answers: Sequence[Answer],
    cycle_start: int | None,
) -> None:
    """Replay a counterexample and check that it breaks the property. Raises Unconfirmed."""
    if broken == REFUSED:
        _confirm_refused(laws, world, model, answers)
        return
    told = replay(laws, world, model, answers)
    last = told[-1].situation.state if told else initial(laws, model)
    if cycle_start is not None:
        _confirm_lasso(laws, world, properties, model, broken, told, cycle_start)
    elif broken == DEADLOCK:
        _require(deadlocked(last, laws, world, model), broken, last)
    elif any(prop.name == broken for prop in properties.always):
        shown = canonical(last)
        _require(any(p.name == broken and not p.holds(shown, laws) for p in properties.always), broken, last)
    else:
        final = told[-1].transition if told else beginning(laws, model)
        final = final._replace(before=canonical(final.before), after=_relative(final))
        _require(any(p.name == broken and not p.holds(final, laws) for p in properties.edges), broken, last)


def _relative(transition: Transition) -> State:
    """The state after, with the balance sheet of this transition alone, as the exploration judges it."""
    before, after = transition.before.sheet, transition.after.sheet
    gone = [now - then for now, then in zip(after[6:], before[6:], strict=True)]
    pulled = after.pulled - sum(before[6:11])
    return transition.after._replace(sheet=BalanceSheet(pulled, *after[1:6], *gone))


def _require(holds: bool, broken: str, state: State) -> None:
    if not holds:
        raise Unconfirmed(f"{broken} does not break where it was found broken, in {state}")


def _confirm_refused(laws: Laws, world: WorldOptions, model: Model, answers: Sequence[Answer]) -> None:
    try:
        told = replay(laws, world, model, answers)
        list(model.possible(told[-1].situation.state if told else initial(laws, model), laws, world))
    except CORE_FAULTS:
        return
    raise Unconfirmed("nothing was refused where a refusal was found")


def _confirm_lasso(
    laws: Laws,
    world: WorldOptions,
    properties: Properties,
    model: Model,
    broken: str,
    told: Sequence[ReplayedAnswer],
    cycle_start: int,
) -> None:
    """The cycle ends where it starts, never reaches, has no answer that is finite, and is fair."""
    [prop] = [prop for prop in properties.eventually if prop.name == broken]
    cycle = told[cycle_start:]
    start = told[cycle_start - 1].situation.state if cycle_start else initial(laws, model)
    states = [start, *(step.situation.state for step in cycle)]
    _require(canonical(states[-1]) == canonical(start), broken, start)
    _require(not any(is_over(state) for state in states), broken, start)
    _require(not any(prop.holds(step.transition, laws) for step in cycle), broken, start)
    _require(not any(step.transition.answer.name in model.finite for step in cycle), broken, start)
    taken = {_action(step.transition.answer) for step in cycle if _moves(step.transition)}
    owed = [_owed(state, laws, world, model) for state in states]
    weak = set.intersection(*({a for a, fair in now if fair is Fairness.WEAK} for now in owed))
    strong = set().union(*({a for a, fair in now if fair is Fairness.STRONG} for now in owed))
    _require((weak | strong) <= taken, broken, start)


Action = tuple[str, object]


def _action(answer: Answer) -> Action:
    return answer.name, answer.group_class


def _moves(transition: Transition) -> bool:
    return canonical(transition.before) != canonical(transition.after)


def _owed(state: State, laws: Laws, world: WorldOptions, model: Model) -> set[tuple[Action, Fairness]]:
    """The actions that fairness asks for in a state: those that change something."""
    owed: set[tuple[Action, Fairness]] = set()
    for answer in model.possible(state, laws, world):
        fairness = model.fairness[answer.name]
        if fairness is not Fairness.NONE and _moves(
            follow(ReplayedState(state), laws, world, model, answer).transition
        ):
            owed.add((_action(answer), fairness))
    return owed
