"""A custom sampler with a hang in it: it is short-sighted about versions.

It admits like ready_first, but trains only groups that started under the very weights that are being trained. A batch
that was generated one version ahead is then never taken: the run waits for groups that it has, for ever.

    $ evenstep check --sampler examples.shortsighted:Shortsighted

says so before a GPU is paid for, with the shortest story of how it comes to that.
"""

from __future__ import annotations

from fsm.machines.admission_gate import within_window
from fsm.samplers.builtin import count, take
from fsm.samplers.protocol import Admission, GatedSampler
from fsm.state import GroupClass, View


class Shortsighted(GatedSampler):
    """Lets dispatch lead the trainer by a window, and then takes nothing of what that brought."""

    def __init__(self, max_staleness_versions: int = 1) -> None:
        self.window = max_staleness_versions

    def admit(self, view: View) -> Admission | None:
        """A batch without a stamp, while dispatch leads the version by no more than the window."""
        return Admission() if within_window(view.dispatch_index, view.version, self.window) else None

    def select(self, view: View, min_groups: int, max_groups: int) -> list[tuple[GroupClass, int]]:
        """Groups that started under the version alone; those of earlier weights are overlooked."""
        fresh = [pair for pair in view.ready_classes() if pair[0].start_weight == view.version]
        picks = take(fresh, max_groups)
        return picks if count(picks) >= min_groups else []

    @property
    def is_on_policy(self) -> bool:
        """Only groups that started under the version are trained."""
        return True

    def required_buffer_capacity(self, groups_per_step: int) -> int:
        """Room for every batch that may be admitted."""
        return groups_per_step * (self.window + 1)
