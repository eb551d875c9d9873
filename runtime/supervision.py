"""When a run is restarted from its last checkpoint: keys of the `cluster:` block (`runtime.launch.supervision`)."""

from pydantic import Field

from fsm.config.plain import LONGEST_S
from fsm.config.strict import Strict


class SupervisionConfig(Strict):
    """How often a run is restarted, and when one of its processes counts as frozen."""

    max_run_restarts: int = Field(
        default=3,
        ge=0,
        description="Restarts of a run from its last checkpoint after a trainer rank, the controller or Ray itself has "
        "died or frozen, or the trainer has missed a deadline. Two in a row without a new step are the last.",
    )
    frozen_timeout_s: float | None = Field(
        default=60.0,
        ge=5,
        le=LONGEST_S,
        description="A process of the run on this machine (controller, trainer rank, group store, Ray's own) in which "
        "no thread has run for so long counts as frozen, and the run is restarted; null: it is waited for.",
    )
