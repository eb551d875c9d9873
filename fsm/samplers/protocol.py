"""What a sampler is: plain functions of a read-only view."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from fsm.events import GroupRecord
from fsm.state import NONE, GroupClass, View

MOST_LABELS = 64
"""Of a sampler. A label is part of a group's class: the core's cost grows with the classes, a check's much faster."""


class Admission(NamedTuple):
    """How a batch is admitted."""

    target_step: int | None = None
    """The step that its groups are stamped for, or None."""
    bucket: int | None = None
    """weight_fifo: the version at admission (D3), or None."""


@runtime_checkable
class PromptGroupSampler(Protocol):
    """What every sampler must have. `GatedSampler` supplies defaults for most of it."""

    def admit(self, view: View) -> Admission | None:
        """How the next batch is admitted now, or None: the gate is closed (A1)."""

    def select(self, view: View, min_groups: int, max_groups: int) -> Sequence[tuple[GroupClass, int]]:
        """Ready classes and how many groups of each to take, in order; `()` means not yet.

        What is taken is between `min_groups` and `max_groups` in all (S1). Within a class the core takes
        groups in order of dispatch (S3).
        """

    def evict(self, view: View) -> Sequence[GroupClass]:
        """Ready classes to remove (E1)."""

    def should_abort_inflight(self, view: View, group_class: GroupClass) -> bool:
        """Whether the version has moved past attempts of this running class (E1)."""

    @property
    def is_on_policy(self) -> bool:
        """True when it admits no staleness: every group is trained by the weights that generated it."""

    def required_buffer_capacity(self, groups_per_step: int) -> int | None:
        """The smallest max_buffered_rollouts under which it can't block (A4), or None where it can't say."""


@runtime_checkable
class DropAccountingSampler(Protocol):
    """What a sampler may say of lost groups. `GatedSampler` has the defaults."""

    uses_replacement_pool: bool
    closes_short_at_exhaustion: bool

    def charge_step_for_lost_group(self, target_step: int | None, assembling_version: int) -> int | None:
        """The step that a lost group is charged to, or None for none (L3).

        `assembling_version` is the earliest step with selected + charged < N.
        """


@runtime_checkable
class LabellingSampler(Protocol):
    """A sampler that sees more of a ready group than its class: one small integer, given when it commits."""

    labels: int
    """How many labels there are, from 1 to `MOST_LABELS`; the checker tries every one."""

    def label(self, record: GroupRecord) -> int:
        """The label of a group that is ready, from 0 to `labels` - 1."""


class GatedSampler:
    """The defaults of a gated sampler: pool used, no short close, L3's charge, nothing evicted or aborted.

    Set `labels` and override `label` to see more of a ready group than its class: one small integer.
    """

    uses_replacement_pool: bool = True
    closes_short_at_exhaustion: bool = False
    labels: int = 1
    """How many labels there are, from 1 to `MOST_LABELS`; the checker tries every one."""

    def label(self, record: GroupRecord) -> int:
        """The label of a group that is ready, from 0 to `labels` - 1."""
        return 0

    def evict(self, view: View) -> Sequence[GroupClass]:
        """Nothing (E2)."""
        return ()

    def should_abort_inflight(self, view: View, group_class: GroupClass) -> bool:
        """Never (E2)."""
        return False

    def charge_step_for_lost_group(self, target_step: int | None, assembling_version: int) -> int | None:
        """The stamped step, or the step being assembled (L3)."""
        return assembling_version if target_step is None else target_step


def labels_of(sampler: PromptGroupSampler) -> int:
    """How many labels a sampler gives; 1 where it gives none."""
    return sampler.labels if isinstance(sampler, LabellingSampler) else 1


def optional(number: int) -> int | None:
    """A class's integer as the protocol passes it: None for none."""
    return None if number == NONE else number
