"""The portfolio, portfolio.yaml: small runs that together reach every rule."""

from pathlib import Path

from fsm.rules import on_event
from fsm.rules.laws import Laws
from fsm.state import State
from specs.evidence.small_run import CALM, SmallRun, runs_in
from specs.model import CORE, Model, after, canonical, initial, possible

REGENERATES: Model = CORE._replace(resume=on_event.regenerate)
"""Every resume is under another sampler or N (C3)."""


def _after_another_size(laws: Laws) -> State:
    """A run that trained four of five prompts with N = 1 goes on with another N (C3)."""
    earlier = SmallRun("in_order, N=1", "in_order", 1, 0, 5).laws()
    state = initial(earlier)
    while state.trainer.version < 4:
        given = next(possible(state, earlier, CALM))
        state, _ = after(state, earlier, given)
    return on_event.regenerate(canonical(state), laws)[0]


_MODELS = {
    "ready_first, N=1, resumed otherwise": REGENERATES,
    "ready_first, N=2, after another N": CORE._replace(begin=_after_another_size),
}

PORTFOLIO = tuple(
    run._replace(model=_MODELS.get(run.name, CORE)) for run in runs_in(Path(__file__).with_name("portfolio.yaml"))
)
"""In the order in which mutants meet them."""
