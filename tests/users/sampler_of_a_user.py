"""A sampler as a user writes one: one class in one file."""

from fsm.samplers import GatedSampler, chunk
from fsm.state import GroupClass, View


class FreshestFirst(GatedSampler):
    """Trains the groups with the newest start weight first."""

    def select(self, view: View, min_groups: int, max_groups: int) -> list[tuple[GroupClass, int]]:
        freshest = sorted(view.ready_classes(), key=lambda pair: -pair[0].start_weight)
        return chunk(freshest, min_groups, max_groups)
