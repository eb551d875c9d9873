"""Tiny models for tests of the checker: places, and answers that lead from one to another.

The place is the trainer's version of a State; `END` is a run that is over.
"""

from collections.abc import Iterator, Mapping

from fsm.machines.run import Run, RunState
from fsm.machines.table import Fairness
from fsm.machines.trainer import Trainer
from fsm.rules.changes import WeightsSynced
from fsm.state import State, is_over
from specs.checker.explore import Result, explore
from specs.model import CORE, FAIRNESS, Answer, CrashFrom, Model, WorldOptions
from specs.properties.kinds import Always, Edge, Eventually, Properties, Sometimes
from tests.specs.checker.small_runs import laws

END = 99
LAWS = laws("in_order", 1, 0, 1, "shrink", 1)

Ways = Mapping[tuple[int, str], int]
"""Where an answer leads from a place."""


def toy(ways: Ways, fairness: Mapping[str, Fairness] | None = None, finite: tuple[str, ...] = ()) -> Model:
    """A model that starts at place 0. Answers are owed nothing unless `fairness` says so."""

    def possible(state: State, _laws: object, _world: object) -> Iterator[Answer]:
        if not is_over(state):
            yield from (Answer(name) for place, name in ways if place == state.trainer.version)

    def answer(state: State, _laws: object, given: Answer) -> tuple[State, list[WeightsSynced]]:
        place = ways[state.trainer.version, given.name]
        run = Run(RunState.COMPLETED) if place == END else state.run
        return state._replace(trainer=Trainer(version=place), run=run), [WeightsSynced(place)]

    duties = dict.fromkeys([*FAIRNESS, *(name for _, name in ways)], Fairness.NONE) | dict(fairness or {})
    return CORE._replace(
        begin=lambda _: State(),
        possible=possible,
        answer=answer,
        settle=lambda state, _: (state, []),
        fairness=duties,
        finite=frozenset(finite),
    )


def find(model: Model, *properties: Always | Edge | Sometimes | Eventually) -> Result:
    """What the checker finds in a toy."""
    wanted = Properties(
        tuple(prop for prop in properties if isinstance(prop, Always)),
        tuple(prop for prop in properties if isinstance(prop, Edge)),
        tuple(prop for prop in properties if isinstance(prop, Sometimes)),
        tuple(prop for prop in properties if isinstance(prop, Eventually)),
    )
    return explore(LAWS, WorldOptions(crash=CrashFrom.NOTHING), wanted, model=model)


ENDS = Eventually("ends", "every run ends", ("X1",), lambda transition, _: is_over(transition.after))
