"""A custom sampler with a hang in it: it overlooks groups of earlier versions.

It admits like ready_first, but trains only groups that started under the very weights that are being trained. It never
takes a batch that was generated one version ahead, so the run waits forever for groups that are ready.

    $ evenstep check --sampler examples.shortsighted:Shortsighted

reports that before a GPU is paid for, with the shortest story of how it happens.
"""

from fsm.samplers import GatedSampler, chunk
from fsm.state import GroupClass, View


class Shortsighted(GatedSampler):
    """Lets dispatch lead the trainer by a window, and then takes nothing of what that brought."""

    def select(self, view: View, min_groups: int, max_groups: int) -> list[tuple[GroupClass, int]]:
        """Groups that started under the version alone; those of earlier weights are overlooked."""
        fresh = [pair for pair in view.ready_classes() if pair[0].start_weight == view.version]
        return chunk(fresh, min_groups, max_groups)

    @property
    def is_on_policy(self) -> bool:
        """Only groups that started under the version are trained."""
        return True
