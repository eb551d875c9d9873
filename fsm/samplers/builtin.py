"""The four samplers that come with evenstep, written against the same protocol as a custom one."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile

from fsm.samplers.promises import NO_LIMIT, Eligible, SelectionOrder, Stamp
from fsm.samplers.protocol import Admission, BaseSampler, GatedSampler
from fsm.state import GroupClass, View
from fsm.values import pages

Picks = list[tuple[GroupClass, int]]


def take(classes: Iterable[tuple[GroupClass, int]], max_groups: int) -> Picks:
    """Up to `max_groups` groups, class by class in the order given."""
    picks: Picks = []
    left = max_groups
    for group_class, groups in classes:
        if left == 0:
            break
        taken = min(groups, left)
        picks.append((group_class, taken))
        left -= taken
    return picks


def count(picks: Iterable[tuple[GroupClass, int]]) -> int:
    """How many groups a selection takes."""
    return sum(groups for _, groups in picks)


def chunk(classes: Iterable[tuple[GroupClass, int]], min_groups: int, max_groups: int) -> Picks:
    """Up to `max_groups` groups in the order given; none if there are fewer than `min_groups`."""
    picks = take(classes, max_groups)
    return picks if count(picks) >= min_groups else []


class InOrder(GatedSampler):
    """Trains exactly the batch stamped for the step (A2, S2). Staleness is at most the lookahead."""

    batch_stamp = Stamp.TARGET_STEP
    selects_from = Eligible.STAMPED
    selection_order = SelectionOrder.DISPATCH

    def __init__(self, max_lookahead_versions: int = 1) -> None:
        super().__init__(max_lookahead_versions)

    @property
    def staleness_bound(self) -> int:
        return self.window

    def select(self, view: View, min_groups: int, max_groups: int) -> Picks:
        """Groups stamped for the version."""
        version = view.version
        stamped = takewhile(
            lambda pair: pair[0].target_step == version,
            pages.items_from(view.ready, GroupClass(target_step=version)),
        )
        return chunk(stamped, min_groups, max_groups)


class ReadyFirst(GatedSampler):
    """Trains any group that is ready, stragglers of older versions included (S2)."""

    selects_from = Eligible.ANY
    selection_order = SelectionOrder.DISPATCH

    def select(self, view: View, min_groups: int, max_groups: int) -> Picks:
        """Any ready group, in order of dispatch."""
        return take(pages.items(view.ready), max_groups) if view.ready_groups >= min_groups else []


class WeightFifo(GatedSampler):
    """Trains bucket by bucket: a batch's bucket is the version at its admission (D3, S2)."""

    batch_stamp = Stamp.BUCKET
    selects_from = Eligible.OLDEST_BUCKET
    selection_order = SelectionOrder.DISPATCH

    @property
    def staleness_bound(self) -> int:
        return self.window

    def select(self, view: View, min_groups: int, max_groups: int) -> Picks:
        """Groups of the oldest bucket that has any queued, in flight or ready."""
        oldest = pages.first(view.ready)
        if oldest is None:
            return []
        bucket = oldest[0].bucket
        if view.queue.groups and view.queue.bucket < bucket:
            return []
        for counts in (view.running, view.waiting, view.backing_off):
            earlier = pages.first(counts)
            if earlier is not None and earlier[0].bucket < bucket:
                return []
        of_bucket = takewhile(lambda pair: pair[0].bucket == bucket, pages.items(view.ready))
        return chunk(of_bucket, min_groups, max_groups)


class Windowed(BaseSampler):
    """Never waits for the trainer; trains what is fresh enough and evicts or aborts the rest (S2, E1)."""

    uses_replacement_pool = False
    closes_short_at_exhaustion = True
    batch_stamp = Stamp.NOTHING
    max_lead_versions = NO_LIMIT
    selects_from = Eligible.FRESH
    evicts_stale = True
    charges_losses = False

    def __init__(self, max_staleness_versions: int = 1, sample_freshest_first: bool = False) -> None:
        self.window = max_staleness_versions
        self.sample_freshest_first = sample_freshest_first

    @property
    def staleness_bound(self) -> int:
        return self.window

    @property
    def selection_order(self) -> SelectionOrder:
        """The order that the option asks for (S3)."""
        return SelectionOrder.FRESHEST_FIRST if self.sample_freshest_first else SelectionOrder.DISPATCH

    def admit(self, view: View) -> Admission | None:
        """Always (A1)."""
        return Admission()

    def select(self, view: View, min_groups: int, max_groups: int) -> Picks:
        """Ready groups of the window; the smallest staleness first where asked for."""
        oldest = GroupClass(start_weight=view.version - self.window)
        eligible = list(pages.items_from(view.ready, oldest))
        if self.sample_freshest_first:
            eligible.reverse()
        return chunk(eligible, min_groups, max_groups)

    def evict(self, view: View) -> Sequence[GroupClass]:
        """Ready groups that fell out of the window."""
        oldest = view.version - self.window
        below: list[GroupClass] = []
        for group_class, _ in pages.items(view.ready):
            if group_class.start_weight >= oldest:
                break
            below.append(group_class)
        return below

    def should_abort_inflight(self, view: View, group_class: GroupClass) -> bool:
        """Attempts that started below the window."""
        return group_class.start_weight < view.version - self.window

    @property
    def is_on_policy(self) -> bool:
        """Without a window only groups that started under the version are trained."""
        return self.window == 0

    def required_buffer_capacity(self, groups_per_step: int) -> int:
        """0: no more than every sampler needs, which is a chunk (A4)."""
        return 0

    def default_buffer_capacity(self, groups_per_step: int) -> int:
        """A step in training, the versions of the window, and one that is generated."""
        return groups_per_step * (self.window + 2)

    def charge_step_for_lost_group(
        self,
        target_step: int | None,
        assembling_version: int,
    ) -> int | None:
        """None: generation goes on and makes up for it (L3)."""
        return None


BUILTIN: Mapping[str, type[BaseSampler]] = {
    "in_order": InOrder,
    "ready_first": ReadyFirst,
    "weight_fifo": WeightFifo,
    "windowed": Windowed,
}
"""The built-in samplers by the name that a configuration gives them; its other options go to the constructor."""
