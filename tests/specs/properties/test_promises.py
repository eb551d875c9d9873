"""What a sampler promises is checked; what it does not promise is not held against it."""

from collections.abc import Sequence

import pytest

from fsm.errors import ConfigError
from fsm.machines.table import fire
from fsm.rules.laws import Laws, laws_of
from fsm.samplers import (
    Admission,
    BaseSampler,
    Eligible,
    GatedSampler,
    PromptGroupSampler,
    SelectionOrder,
    Stamp,
    chunk,
)
from fsm.samplers.builtin import BUILTIN, InOrder, ReadyFirst, WeightFifo, Windowed
from fsm.samplers.promises import NO_LIMIT, Promises, promises_of
from fsm.state import GroupClass, View
from specs.checker.explore import HOLDS, VIOLATED, explore
from specs.model import WorldOptions
from specs.properties.catalog import properties_of
from tests.specs.checker.small_runs import laws

RUN = laws("ready_first", 2, 1, 1, "shrink", 4)
Picks = Sequence[tuple[GroupClass, int]]


def under(sampler: PromptGroupSampler) -> Laws:
    return laws_of(RUN.limits, sampler, "of a test", fire)


def verdict(sampler: PromptGroupSampler) -> tuple[str, str | None]:
    run = under(sampler)
    result = explore(run, WorldOptions(backs_off=False), properties_of(run))
    return result.verdict, result.broken


class Gated(GatedSampler):
    """All that a gated sampler has to write."""

    def select(self, view: View, min_groups: int, max_groups: int) -> Picks:
        return chunk(view.ready_classes(), min_groups, max_groups)


class FreshestFirst(Gated):
    def select(self, view: View, min_groups: int, max_groups: int) -> Picks:
        freshest = sorted(view.ready_classes(), key=lambda pair: -pair[0].start_weight)
        return chunk(freshest, min_groups, max_groups)


class Stamping(GatedSampler):
    """in_order, written as a user would."""

    batch_stamp = Stamp.TARGET_STEP
    selects_from = Eligible.STAMPED
    selection_order = SelectionOrder.DISPATCH
    staleness_bound = 1

    def select(self, view: View, min_groups: int, max_groups: int) -> Picks:
        stamped = [pair for pair in view.ready_classes() if pair[0].target_step == view.version]
        return chunk(stamped, min_groups, max_groups)


@pytest.mark.parametrize("sampler", [Gated(), FreshestFirst(), Stamping()], ids=lambda sampler: type(sampler).__name__)
def test_a_sampler_that_keeps_its_promises_holds(sampler: PromptGroupSampler) -> None:
    assert verdict(sampler) == (HOLDS, None)


class BoundTooLow(Gated):
    staleness_bound = 0


class WaitsForAWholeStep(Gated):
    """Says that any ready group is eligible, and then waits for more than the streaming minimum."""

    selects_from = Eligible.ANY

    def select(self, view: View, min_groups: int, max_groups: int) -> Picks:
        return chunk(view.ready_classes(), max_groups, max_groups)


class OutOfOrder(FreshestFirst):
    selects_from = Eligible.ANY
    selection_order = SelectionOrder.DISPATCH

    def select(self, view: View, min_groups: int, max_groups: int) -> Picks:
        return super().select(view, min_groups, max_groups)


class AdmitsTooMuch(Gated):
    max_lead_versions = 0

    def admit(self, view: View) -> Admission | None:
        return Admission() if view.dispatch_index < view.version + 1 else None


class AdmitsTooLittle(Gated):
    max_lead_versions = 2

    def admit(self, view: View) -> Admission | None:
        return super().admit(view)


class StampsNothing(Gated):
    batch_stamp = Stamp.TARGET_STEP

    def admit(self, view: View) -> Admission | None:
        return None if super().admit(view) is None else Admission()


class ChargesNone(Gated):
    charges_losses = True

    def charge_step_for_lost_group(self, target_step: int | None, assembling_version: int) -> int | None:
        return None


class Evicts(Gated):
    evicts_stale = False

    def evict(self, view: View) -> Sequence[GroupClass]:
        return [each for each, _ in view.ready_classes() if each.start_weight < view.version]


@pytest.mark.parametrize(
    ("sampler", "broken"),
    [
        (BoundTooLow(), "staleness"),
        (WaitsForAWholeStep(), "selected"),
        (OutOfOrder(), "order"),
        (AdmitsTooMuch(), "gate"),
        (AdmitsTooLittle(), "gate"),
        (StampsNothing(0), "admission"),
        (ChargesNone(), "losses"),
        (Evicts(), "stale"),
    ],
    ids=lambda given: given if isinstance(given, str) else type(given).__name__,
)
def test_a_broken_promise_is_a_violation(sampler: PromptGroupSampler, broken: str) -> None:
    assert verdict(sampler) == (VIOLATED, broken)


@pytest.mark.parametrize(
    ("sampler", "promises"),
    [
        (InOrder(2), (Stamp.TARGET_STEP, 2, 2, Eligible.STAMPED, SelectionOrder.DISPATCH, False, True)),
        (ReadyFirst(1), (Stamp.NOTHING, 1, None, Eligible.ANY, SelectionOrder.DISPATCH, False, True)),
        (WeightFifo(3), (Stamp.BUCKET, 3, 3, Eligible.OLDEST_BUCKET, SelectionOrder.DISPATCH, False, True)),
        (Windowed(1), (Stamp.NOTHING, NO_LIMIT, 1, Eligible.FRESH, SelectionOrder.DISPATCH, True, False)),
        (Windowed(1, True), (Stamp.NOTHING, NO_LIMIT, 1, Eligible.FRESH, SelectionOrder.FRESHEST_FIRST, True, False)),
        (Gated(1), (Stamp.NOTHING, 1, None, None, None, False, True)),
    ],
)  # fmt: skip
def test_what_each_sampler_promises(sampler: PromptGroupSampler, promises: tuple[object, ...]) -> None:
    assert promises_of(sampler, "s") == promises


def test_every_built_in_sampler_stays_on_its_own_side() -> None:
    assert not any(under(sampler()).is_custom for sampler in BUILTIN.values())  # type: ignore[arg-type]
    assert under(Gated()).is_custom


class AdmitsOtherwise(InOrder):
    def admit(self, view: View) -> Admission | None:
        return super().admit(view)


class SelectsOtherwise(InOrder):
    def select(self, view: View, min_groups: int, max_groups: int) -> list[tuple[GroupClass, int]]:
        return super().select(view, min_groups, max_groups)


class ChargesOtherwise(InOrder):
    def charge_step_for_lost_group(self, target_step: int | None, assembling_version: int) -> int | None:
        return target_step


class Plain:
    """Derives from nothing and declares nothing."""

    def evict(self, view: View) -> Sequence[GroupClass]:
        return ()


@pytest.mark.parametrize(
    ("sampler", "dropped"),
    [
        (AdmitsOtherwise(), {"batch_stamp", "max_lead_versions", "staleness_bound"}),
        (SelectsOtherwise(), {"staleness_bound", "selects_from", "selection_order"}),
        (ChargesOtherwise(), {"charges_losses"}),
    ],
)
def test_who_overrides_a_method_drops_what_was_promised_about_it(sampler: object, dropped: set[str]) -> None:
    inherited, found = promises_of(InOrder(), "s")._asdict(), promises_of(sampler, "s")._asdict()
    assert {promise for promise in found if found[promise] != inherited[promise]} == dropped
    assert all(found[promise] is None for promise in dropped)


def test_a_sampler_that_derives_from_nothing_promises_nothing() -> None:
    assert promises_of(Plain(), "s") == Promises()


def test_without_a_bound_there_is_no_promise_about_what_is_beyond_it() -> None:
    class Unbounded(Windowed):
        staleness_bound = None  # type: ignore[assignment]

    found = promises_of(Unbounded(), "s")
    assert (found.selects_from, found.evicts_stale) == (None, None)


@pytest.mark.parametrize(
    ("promise", "value", "allowed"),
    [
        ("batch_stamp", "target step", "Stamp.NOTHING, Stamp.TARGET_STEP, Stamp.BUCKET, or None"),
        ("selects_from", True, "Eligible.ANY"),
        ("selection_order", 1, "SelectionOrder.DISPATCH"),
        ("evicts_stale", 0, "True, False, or None"),
        ("charges_losses", "no", "True, False, or None"),
        ("staleness_bound", -1, "a whole number of 0 or more, or None"),
        ("max_lead_versions", True, "a whole number of 0 or more, or None"),
    ],
)
def test_a_promise_of_the_wrong_type_is_refused_with_what_is_allowed(promise: str, value: object, allowed: str) -> None:
    class Wrong(BaseSampler):
        def select(self) -> None: ...

        def admit(self) -> None: ...

    setattr(Wrong, promise, value)
    with pytest.raises(ConfigError, match=f"sampler s: {promise} is {value!r}; allowed: .*{allowed}"):
        promises_of(Wrong(), "s")
