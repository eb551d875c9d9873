"""Whether the step being assembled can still close, from the state that a live run is in.

`outlook` continues from that state by the core's own functions. First every attempt in flight finishes and is kept, and
the trainer answers too; in a healthy run this closes the step. If nothing can happen any more after that, `outlook`
tries every other continuation, up to a bound: losses, retries, unreadable groups.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from fsm.machines.table import fire
from fsm.rules.changes import Change, RunCompleted, StepClosed
from fsm.rules.laws import Laws
from fsm.state import GroupClass, State, is_over
from fsm.values import pages
from specs.model import CORE, CORE_FAULTS, Answer, CrashFrom, WorldOptions, after, canonical

KIND = WorldOptions(fails=False, backs_off=False, claims_fail=False, late=False, crash=CrashFrom.NOTHING)
"""Nothing fails."""
ANY = WorldOptions(fails=True, backs_off=False, claims_fail=True, late=False, crash=CrashFrom.NOTHING)
"""Every answer that gets a run on. A backoff leads nowhere that an immediate retry does not."""

_ANSWERS_MAX = 50_000
"""So many answers are tried for a run in which everything is kept."""


class Outlook(NamedTuple):
    """How the step can end."""

    closes: bool | None
    """A continuation closes it, or ends the run; None if the bound was hit first."""
    states: int
    """States that were visited."""
    dead_end: State | None
    """The last state if everything in flight is kept and the step does not close; else None."""


def outlook(state: State, laws: Laws, held: Mapping[GroupClass, int], states_max: int) -> Outlook:
    """Whether the step being trained can close.

    Args:
        state: Any state of a run that is not over.
        laws: Of the run; rules are fired from the tables, whatever it fires them by.
        held: Per running class the attempts that never answer.
        states_max: Where the search among all continuations gives up.
    """
    laws = laws._replace(fire=fire)
    try:
        state, done = CORE.settle(state, laws)
        if _ends(state, done):
            return Outlook(True, 1, None)
        end = _kept(state, laws, held)
    except CORE_FAULTS:
        return Outlook(None, 1, None)
    if end is None or is_over(end):
        return Outlook(True, 1, None)
    if next(_answers(end, laws, held, KIND), None) is not None:
        return Outlook(None, 1, None)
    found, states = _search(state, laws, held, states_max)
    return Outlook(found, states, end)


def _ends(state: State, done: list[Change]) -> bool:
    return is_over(state) or any(isinstance(move, StepClosed) for move in done)


def _kept(state: State, laws: Laws, held: Mapping[GroupClass, int]) -> State | None:
    """The last state if every attempt that may answer is kept; None if the step closes on the way."""
    for _ in range(_ANSWERS_MAX):
        given = next(_answers(state, laws, held, KIND), None)
        if given is None:
            break
        state, done = after(state, laws, given)
        if _ends(state, done):
            return None
    return state


def _search(state: State, laws: Laws, held: Mapping[GroupClass, int], states_max: int) -> tuple[bool | None, int]:
    """Whether any continuation closes the step, and how many states were visited."""
    seen = {canonical(state)}
    pending = [state]
    while pending:
        here = pending.pop()
        for given in _answers(here, laws, held, ANY):
            try:
                there, done = after(here, laws, given)
            except CORE_FAULTS:
                continue
            if any(isinstance(move, StepClosed | RunCompleted) for move in done):
                return True, len(seen)
            there = canonical(there)
            if there not in seen and not is_over(there):  # a run that a failure stops closes no step
                if len(seen) >= states_max:
                    return None, len(seen)
                seen.add(there)
                pending.append(there)
    return False, len(seen)


def _answers(state: State, laws: Laws, held: Mapping[GroupClass, int], world: WorldOptions) -> Iterator[Answer]:
    for given in CORE.possible(state, laws, world):
        group_class = given.group_class
        kept_back = 0 if group_class is None else held.get(group_class, 0)
        if not kept_back or given.name == "end_backoff" or pages.get(state.running, group_class, 0) > kept_back:
            yield given
