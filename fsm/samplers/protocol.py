"""What the core asks of a sampler, all of it plain functions of a read-only view, and the base classes."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from fsm.events import GroupRecord
from fsm.machines.admission_gate import within_window
from fsm.samplers.promises import Eligible, SelectionOrder, Stamp
from fsm.state import NONE, GroupClass, View

_TARGET_STEP, _BUCKET = Stamp.TARGET_STEP, Stamp.BUCKET  # an enum's members are slow to look up
MOST_LABELS = 64
"""Of a sampler. A label is part of a group's class: the core's cost grows with the classes, a check's much faster."""


class Admission(NamedTuple):
    """How a batch is admitted."""

    target_step: int | None = None
    """The step that its groups are stamped for, or None."""
    bucket: int | None = None
    """The version at admission (D3), or None."""


@runtime_checkable
class PromptGroupSampler(Protocol):
    """What every sampler must have. `GatedSampler` has all of it but `select`."""

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
        """The smallest max_buffered_rollouts under which it cannot block (A4), or None where it cannot say."""


@runtime_checkable
class DropAccountingSampler(Protocol):
    """What a sampler may say of lost groups. `BaseSampler` has the defaults."""

    uses_replacement_pool: bool
    closes_short_at_exhaustion: bool

    def charge_step_for_lost_group(self, target_step: int | None, assembling_version: int) -> int | None:
        """The step that a lost group is charged to, or None for none (L3).

        `target_step` is the group's stamp, None without one; `assembling_version` is the earliest step with selected +
        charged < N. Of the built-in samplers in_order stamps the target step, ready_first and weight_fifo stamp none,
        and all three have the default, `BaseSampler`'s; windowed answers None.
        """


@runtime_checkable
class LabellingSampler(Protocol):
    """A sampler that sees more of a ready group than its class: one small integer, given when it commits."""

    labels: int
    """How many labels there are, from 1 to `MOST_LABELS`; the checker tries every one."""

    def label(self, record: GroupRecord) -> int:
        """The label of a group that is ready, from 0 to `labels` - 1."""


class BaseSampler:
    """What a sampler is unless it says otherwise: it uses the pool, closes no step short, and evicts nothing.

    Set `labels` and override `label` to see more of a ready group than its class: one small integer. The promises are
    explained in `fsm.samplers.promises`.
    """

    uses_replacement_pool: bool = True
    closes_short_at_exhaustion: bool = False
    labels: int = 1

    batch_stamp: Stamp | None = None
    selects_from: Eligible | None = None
    evicts_stale: bool | None = False
    charges_losses: bool | None = True

    @property
    def max_lead_versions(self) -> int | None:
        """How many batches dispatch may lead the trainer by (A1): no promise."""
        return None

    @property
    def staleness_bound(self) -> int | None:
        """The largest staleness at selection: no promise."""
        return None

    @property
    def selection_order(self) -> SelectionOrder | None:
        """In which order eligible groups are selected (S3): no promise."""
        return None

    def label(self, record: GroupRecord) -> int:
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

    def default_buffer_capacity(self, groups_per_step: int) -> int | None:
        """What `max_buffered_rollouts: null` stands for; None: what is required."""
        return None


class GatedSampler(BaseSampler):
    """Admits a batch while dispatch leads the trainer by no more than a window (A1). Only `select` is left to write.

    Its groups are never evicted, and each lost group is charged to a step, so every step can close.
    """

    window: int = 1
    """How many batches dispatch may lead the trainer by."""
    batch_stamp: Stamp | None = Stamp.NOTHING
    """Set it to have batches stamped with their step (A2), or with the version at admission (D3)."""

    def __init__(self, max_staleness_versions: int = 1) -> None:
        self.window = max_staleness_versions

    @property
    def max_lead_versions(self) -> int | None:
        """The window (A1)."""
        return self.window

    def admit(self, view: View) -> Admission | None:
        """The next batch with its stamp, while it is within the window."""
        index, version, stamp = view.dispatch_index, view.version, self.batch_stamp
        if not within_window(index, version, self.window):
            return None
        if stamp is _TARGET_STEP:
            return Admission(target_step=index + 1)
        return Admission(bucket=version) if stamp is _BUCKET else Admission()

    @property
    def is_on_policy(self) -> bool:
        """With a window of 0, no batch starts before every group of the last one is trained or charged."""
        return self.window == 0

    def required_buffer_capacity(self, groups_per_step: int) -> int | None:
        """Room for every batch that may be admitted (A4)."""
        return groups_per_step * (self.window + 1)


def labelling(sampler: PromptGroupSampler) -> LabellingSampler | None:
    """The sampler, if it tells groups apart by labels."""
    return sampler if isinstance(sampler, LabellingSampler) and sampler.labels > 1 else None


def labels_of(sampler: PromptGroupSampler) -> int:
    """How many labels a sampler gives; 1 where it gives none."""
    return sampler.labels if isinstance(sampler, LabellingSampler) else 1


def accounting_of(sampler: PromptGroupSampler) -> DropAccountingSampler:
    """What answers for lost groups: the sampler, or the defaults if it says nothing of them."""
    return sampler if isinstance(sampler, DropAccountingSampler) else BaseSampler()


def is_custom(sampler: PromptGroupSampler) -> bool:
    """The sampler's class is not one of evenstep's own, so its answers are checked and it may be to blame."""
    return not type(sampler).__module__.startswith(f"{__package__}.")


def optional(number: int) -> int | None:
    """A class's integer as the protocol passes it: None for none."""
    return None if number == NONE else number
