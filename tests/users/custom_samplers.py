"""Samplers from outside, right and wrong ones, for the tests that load them by `custom_samplers:ClassName`."""

from typing import Any

from fsm.events import GroupRecord
from fsm.machines.admission_gate import within_window
from fsm.samplers.builtin import InOrder, ReadyFirst, count, take
from fsm.samplers.protocol import MOST_LABELS, Admission, GatedSampler
from fsm.state import GroupClass, View

NOT_A_CLASS = 3


class Plain:
    """Everything that a sampler must have, and nothing that it may have beside; derived from nothing."""

    def __init__(self, window: int = 1) -> None:
        self.window = window

    def admit(self, view: View) -> Any:
        return Admission() if within_window(view.dispatch_index, view.version, self.window) else None

    def select(self, view: View, min_groups: int, max_groups: int) -> Any:
        return ReadyFirst().select(view, min_groups, max_groups)

    def evict(self, view: View) -> Any:
        return ()

    def should_abort_inflight(self, view: View, group_class: GroupClass) -> Any:
        return False

    @property
    def is_on_policy(self) -> Any:
        return False

    def required_buffer_capacity(self, groups_per_step: int) -> Any:
        return None


class Derived(Plain, GatedSampler):
    """The same with the defaults of a gated sampler."""


class NeverSelects(Derived):
    """Finds no group good enough."""

    def select(self, view: View, min_groups: int, max_groups: int) -> Any:
        return ()


class LacksMost:
    def admit(self, view: View) -> Any:
        return None


class RaisesWhenMade(Plain):
    def __init__(self) -> None:
        raise RuntimeError("no file of weights")


class MakesSomethingElse(Plain):
    def __new__(cls) -> Any:
        return {"not": "a sampler"}


class HalfOfDropAccounting(Plain):
    uses_replacement_pool = True


class HalfOfLabelling(Plain):
    labels = 2


class NoLabels(Derived):
    labels = 0


class AsManyLabelsAsMayBe(Derived):
    labels = MOST_LABELS


class OneLabelTooMany(Derived):
    labels = MOST_LABELS + 1


class NearlyBoolean(Derived):
    uses_replacement_pool: Any = 1


class PolicyIsAWord(Derived):
    @property
    def is_on_policy(self) -> Any:
        return "yes"


class CapacityIsText(Derived):
    def required_buffer_capacity(self, groups_per_step: int) -> Any:
        return "4"


class CapacityRaises(Derived):
    def required_buffer_capacity(self, groups_per_step: int) -> Any:
        raise KeyError("capacity")


class NeedsMuchRoom(Derived):
    def required_buffer_capacity(self, groups_per_step: int) -> Any:
        return 10 * groups_per_step


# Right to load, and wrong once asked.


class AdmitsAWord(Derived):
    def admit(self, view: View) -> Any:
        return "go"


class AdmitRaises(Derived):
    def admit(self, view: View) -> Any:
        raise ZeroDivisionError("admit it")


class StampsAClosedStep(Derived):
    def admit(self, view: View) -> Any:
        return Admission(target_step=0) if super().admit(view) else None


class Fickle(Derived):
    """Answers the same question differently each time."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def admit(self, view: View) -> Any:
        self.asked += 1
        return Admission() if self.asked % 2 else None


class SelectRaises(Derived):
    def select(self, view: View, min_groups: int, max_groups: int) -> Any:
        raise IndexError("select it")


class SelectsTooMany(Derived):
    def select(self, view: View, min_groups: int, max_groups: int) -> Any:
        return [(group_class, groups + 1) for group_class, groups in view.ready_classes()]


class SelectsTooFew(Derived):
    def select(self, view: View, min_groups: int, max_groups: int) -> Any:
        return [(view.ready_classes()[0][0], 1)]


class SelectsTwice(Derived):
    def select(self, view: View, min_groups: int, max_groups: int) -> Any:
        return [(group_class, 1) for group_class, _ in view.ready_classes()] * 2


class SelectsWhatIsNotReady(Derived):
    def select(self, view: View, min_groups: int, max_groups: int) -> Any:
        return [(GroupClass(target_step=7), max_groups)]


class SelectsNumbers(Derived):
    def select(self, view: View, min_groups: int, max_groups: int) -> Any:
        return [0, 1]


class SelectsForAnotherStep(InOrder):
    def select(self, view: View, min_groups: int, max_groups: int) -> Any:
        later = [(each, 1) for each, _ in view.ready_classes() if each.target_step > view.version]
        return later[:1]


class EvictRaises(Derived):
    def evict(self, view: View) -> Any:
        raise LookupError("evict it")


class EvictsWhatIsNotReady(Derived):
    def evict(self, view: View) -> Any:
        return [GroupClass(start_weight=99)]


class EvictsTwice(Derived):
    def evict(self, view: View) -> Any:
        return [each for each, _ in view.ready_classes()] * 2


class AbortRaises(Derived):
    def should_abort_inflight(self, view: View, group_class: GroupClass) -> Any:
        raise OverflowError("abort it")


class AbortsByAWord(Derived):
    def should_abort_inflight(self, view: View, group_class: GroupClass) -> Any:
        return "no"


class ChargesAClosedStep(Derived):
    def charge_step_for_lost_group(self, target_step: int | None, assembling_version: int) -> Any:
        return -1


class ChargesAFarStep(Derived):
    def charge_step_for_lost_group(self, target_step: int | None, assembling_version: int) -> Any:
        return 1_000_000


class ChargesTheFullStep(Derived):
    """What the review found: the step that the trainer is at."""

    def charge_step_for_lost_group(self, target_step: int | None, assembling_version: int) -> Any:
        return 0


class ChargesHalfAStep(Derived):
    def charge_step_for_lost_group(self, target_step: int | None, assembling_version: int) -> Any:
        return 0.5


class ChargeRaises(Derived):
    def charge_step_for_lost_group(self, target_step: int | None, assembling_version: int) -> Any:
        raise ArithmeticError("charge it")


class LabelIsOutOfRange(Derived):
    labels = 2

    def label(self, record: GroupRecord) -> Any:
        return 2


class LabelIsTrue(Derived):
    labels = 2

    def label(self, record: GroupRecord) -> Any:
        return True


class LabelRaises(Derived):
    labels = 2

    def label(self, record: GroupRecord) -> Any:
        raise UnicodeError("label it")


class EvictsAgainstItsPromise(GatedSampler):
    """Promises to evict nothing, and evicts whatever is not of today's version."""

    evicts_stale = False

    def __init__(self, max_staleness_versions=3):
        super().__init__(max_staleness_versions)

    def select(self, view, min_groups, max_groups):
        taken = take(view.ready_classes(), max_groups)
        return taken if count(taken) >= min_groups else []

    def evict(self, view):
        return [group_class for group_class, _ in view.ready_classes() if group_class.start_weight < view.version]
