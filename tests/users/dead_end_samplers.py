"""Samplers from outside that lead a run into a dead end, each by one answer: `dead_end_samplers:ClassName`."""

from collections.abc import Sequence

from fsm.samplers.builtin import InOrder
from fsm.samplers.protocol import Admission
from fsm.state import GroupClass, View


class ChargesNone(InOrder):
    def charge_step_for_lost_group(self, target_step: int | None, assembling_version: int) -> int | None:
        return None


class ChargesTheNextStep(InOrder):
    def charge_step_for_lost_group(self, target_step: int | None, assembling_version: int) -> int | None:
        return None if target_step is None else target_step + 1


class SelectsNothing(InOrder):
    def select(self, view: View, min_groups: int, max_groups: int) -> Sequence[tuple[GroupClass, int]]:
        return ()


class AdmitsNothing(InOrder):
    def admit(self, view: View) -> Admission | None:
        return None


class AdmitsOneBatch(InOrder):
    def admit(self, view: View) -> Admission | None:
        return None if view.dispatch_index >= 0 else super().admit(view)


class StampsTheNextStep(InOrder):
    def admit(self, view: View) -> Admission | None:
        return None if super().admit(view) is None else Admission(target_step=view.dispatch_index + 2)


class EvictsWhatIsStale(InOrder):
    def evict(self, view: View) -> Sequence[GroupClass]:
        return [each for each, _ in view.ready_classes() if each.start_weight < view.version]


class AbortsWhatIsStale(InOrder):
    def should_abort_inflight(self, view: View, group_class: GroupClass) -> bool:
        return group_class.start_weight < view.version


class AsksForASmallBuffer(InOrder):
    def admit(self, view: View) -> Admission | None:
        return None if super().admit(view) is None else Admission(target_step=view.dispatch_index + 2)

    def required_buffer_capacity(self, groups_per_step: int) -> int | None:
        return groups_per_step
