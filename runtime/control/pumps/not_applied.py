"""Optimizer steps that were not applied, since a number of theirs was not finite.

Such a step closes like any other and the version moves, while weights, AdamW's moments and the schedule stay. The
recorder reports it. After `optimizer.stop_after_steps_not_finite` of them in a row, the run stops with the next chunk.
From the first of a row on, nothing shows that the weights are sound: until a step is applied, they are not saved.
"""

from dataclasses import dataclass

from fsm.errors import LimitReached
from runtime.training.step_metrics import NOT_FINITE_REMEDY, StepMetrics


class NumbersNotFinite(LimitReached):
    """As many steps in a row as `optimizer.stop_after_steps_not_finite` allows were not applied."""


@dataclass(slots=True)
class StepsNotApplied:
    """The steps in a row, up to the last one, that were not applied."""

    stop_after: int | None = None
    """How many of them stop the run; None: no number does."""
    in_a_row: int = 0
    first_cause: str = ""
    in_doubt: bool = False
    """The weights may be the cause: they are not to be saved."""

    def finished(self, metrics: StepMetrics) -> None:
        """A step is finished, with these metrics."""
        if not metrics.not_finite:
            self.in_a_row, self.first_cause, self.in_doubt = 0, "", False
            return
        if not self.in_a_row:
            self.first_cause = str(metrics.not_finite)
        self.in_a_row += 1
        self.in_doubt |= metrics.not_finite.doubts_weights

    def refuse_to_go_on(self, step: int) -> None:
        """Raise NumbersNotFinite if too many steps before this one were not applied.

        A run whose last steps they were just completes.
        """
        if self.in_a_row != self.stop_after:
            return
        first = step - self.in_a_row
        which = f"step {first}" if self.in_a_row == 1 else f"steps {first} to {step - 1}"
        raise NumbersNotFinite(
            f"{which} had numbers that are not finite and were not applied, and optimizer.stop_after_steps_not_finite "
            f"is {self.stop_after}. The first, in step {first}: {self.first_cause}. {NOT_FINITE_REMEDY}; then resume, "
            "from an earlier checkpoint if the last one fails alike"
        )
