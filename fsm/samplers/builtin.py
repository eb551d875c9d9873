"""The four samplers that come with evenstep, written against the same protocol as a custom one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile

from fsm.machines.admission_gate import within_window
from fsm.samplers.protocol import Admission, GatedSampler
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


def _enough(picks: Picks, min_groups: int) -> Picks:
    return picks if count(picks) >= min_groups else []


class InOrder(GatedSampler):
    """Trains exactly the batch stamped for the step (A2, S2). Staleness is at most the lookahead."""

    def __init__(self, max_lookahead_versions: int = 1) -> None:
        self.window = max_lookahead_versions

    def admit(self, view: View) -> Admission | None:
        """The next batch is stamped for the next step."""
        if not within_window(view.dispatch_index, view.version, self.window):
            return None
        return Admission(target_step=view.dispatch_index + 1)

    def select(self, view: View, min_groups: int, max_groups: int) -> Picks:
        """Groups stamped for the version."""
        version = view.version
        stamped = takewhile(
            lambda pair: pair[0].target_step == version,
            pages.items_from(view.ready, GroupClass(target_step=version)),
        )
        return _enough(take(stamped, max_groups), min_groups)

    @property
    def is_on_policy(self) -> bool:
        """Without lookahead a batch starts under the weights that it trains."""
        return self.window == 0

    def required_buffer_capacity(self, groups_per_step: int) -> int:
        """Room for every batch that may be admitted."""
        return groups_per_step * (self.window + 1)


class ReadyFirst(GatedSampler):
    """Trains whatever is ready, stragglers of older versions included (S2)."""

    def __init__(self, max_staleness_versions: int = 1) -> None:
        self.window = max_staleness_versions

    def admit(self, view: View) -> Admission | None:
        """No stamp."""
        return Admission() if within_window(view.dispatch_index, view.version, self.window) else None

    def select(self, view: View, min_groups: int, max_groups: int) -> Picks:
        """Any ready group, in order of dispatch."""
        return take(pages.items(view.ready), max_groups) if view.ready_groups >= min_groups else []

    @property
    def is_on_policy(self) -> bool:
        """Without a window no batch starts before the one before is accounted for."""
        return self.window == 0

    def required_buffer_capacity(self, groups_per_step: int) -> int:
        """Room for every batch that may be admitted."""
        return groups_per_step * (self.window + 1)


class WeightFifo(ReadyFirst):
    """Trains bucket by bucket: a batch's bucket is the version at its admission (D3, S2)."""

    def admit(self, view: View) -> Admission | None:
        """The bucket is fixed here, whatever is synced while the batch is dispatched."""
        if not within_window(view.dispatch_index, view.version, self.window):
            return None
        return Admission(bucket=view.version)

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
        return _enough(take(of_bucket, max_groups), min_groups)


class Windowed(GatedSampler):
    """Never waits for the trainer; trains what is fresh enough and evicts or aborts the rest (S2, E1)."""

    uses_replacement_pool = False
    closes_short_at_exhaustion = True

    def __init__(
        self,
        max_staleness_versions: int = 1,
        sample_freshest_first: bool = False,
        min_groups_for_streaming_train: int | None = None,
    ) -> None:
        self.window = max_staleness_versions
        self.sample_freshest_first = sample_freshest_first
        self.min_groups = min_groups_for_streaming_train

    def admit(self, view: View) -> Admission | None:
        """Always (A1)."""
        return Admission()

    def select(self, view: View, min_groups: int, max_groups: int) -> Picks:
        """Ready groups of the window; the smallest staleness first where asked for."""
        oldest = GroupClass(start_weight=view.version - self.window)
        eligible = list(pages.items_from(view.ready, oldest))
        if self.sample_freshest_first:
            eligible.reverse()
        return _enough(take(eligible, max_groups), min_groups)

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
        """The streaming minimum: fewer ready groups than that would never be selected (A4)."""
        return groups_per_step if self.min_groups is None else self.min_groups

    def charge_step_for_lost_group(
        self,
        target_step: int | None,
        assembling_version: int,
    ) -> int | None:
        """None: generation goes on and makes up for it (L3)."""
        return None


BUILTIN: tuple[type[object], ...] = (InOrder, ReadyFirst, WeightFifo, Windowed)
"""The samplers that evenstep answers for itself."""
