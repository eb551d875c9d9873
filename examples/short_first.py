"""A custom sampler: groups with short completions first.

Long completions take longest to train on, and the step waits for the last of them. This sampler takes short groups as
soon as they are ready and leaves long ones for a later step, but never for longer than its window: a group that has
reached the edge of the window goes before all others.

    async_rl:
      sampler: {name: custom, target: "examples.short_first:ShortFirst", max_staleness_versions: 1, short_tokens: 2048}

The core counts groups per class and does not know their tokens. So the sampler declares a label, which is given when a
group finishes and becomes part of its class.
"""

from fsm.events import GroupRecord
from fsm.samplers import GatedSampler, chunk
from fsm.state import GroupClass, View

SHORT, LONG = range(2)


class ShortFirst(GatedSampler):
    """Takes groups at the edge of the window first, then short ones, then long ones."""

    labels = 2

    def __init__(self, max_staleness_versions: int = 1, short_tokens: int = 1024) -> None:
        """A group is short if all its completions have at most `short_tokens` tokens together."""
        super().__init__(max_staleness_versions)
        self.short_tokens = short_tokens

    def label(self, record: GroupRecord) -> int:
        """SHORT or LONG, by the tokens of all rollouts of the group."""
        return SHORT if record.completion_tokens <= self.short_tokens else LONG

    def select(self, view: View, min_groups: int, max_groups: int) -> list[tuple[GroupClass, int]]:
        """All ready groups are eligible; within a class the core takes them in order of dispatch."""
        edge = view.version - self.window

        def place(entry: tuple[GroupClass, int]) -> tuple[bool, int, int]:
            group_class = entry[0]
            return group_class.start_weight > edge, group_class.label, group_class.start_weight

        return chunk(sorted(view.ready_classes(), key=place), min_groups, max_groups)
