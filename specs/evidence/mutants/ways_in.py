"""Mutants of what is decided on a group's way into a step: admission, dispatch, selection, eviction.

None of these decisions is in a table. A wrong comparison, a forgotten condition, an order that is another: the gaps
that a loop written by hand is known to have, rule by rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fsm.rules import own_moves
from fsm.samplers import protocol
from fsm.samplers.builtin import InOrder, ReadyFirst, WeightFifo, Windowed, count, take
from fsm.samplers.protocol import Admission
from fsm.state import NONE, Counts, GroupClass, Limits, View
from fsm.values import pages
from specs.evidence.mutants.mutant import Mutant
from specs.evidence.mutants.replaced import (
    changing,
    during_a_sync,
    moved,
    only_if,
    swapped,
    under,
    whatever_the_trainer_does,
)

Picks = list[tuple[GroupClass, int]]
ENOUGH = 1_000
"""More than any limit of the portfolio."""


# Admission (A)


def _one_further(dispatch_index: int, version: int, window: int) -> bool:
    return dispatch_index <= version + window


def _one_less(dispatch_index: int, version: int, window: int) -> bool:
    return dispatch_index + 1 < version + window


def _stamps_the_step_before(self: InOrder, view: View) -> Admission | None:
    if view.dispatch_index >= view.version + self.window:
        return None
    return Admission(target_step=max(view.dispatch_index, view.version))


def _gate_context(bound: Callable[[Limits], int]) -> Callable[..., Any]:
    real = own_moves._gate_context
    return lambda state, admission, limits: real(
        state, admission, limits._replace(max_steps=bound(limits), closes_short=0)
    )


ADMISSION = (
    swapped("window one batch wider", "admits a batch too early", "A1", protocol, "within_window", _one_further),
    swapped("window one batch narrower", "admits a batch too late", "A1", protocol, "within_window", _one_less),
    swapped("stamp of the step before", "two batches share a target step", "A2", InOrder, "admit",
             _stamps_the_step_before),
    swapped("step limit ignored", "generates for steps that will not be", "A6", own_moves, "_gate_context",
             _gate_context(lambda _: NONE)),
    swapped("step limit one less", "the last step has no batch", "A6", own_moves, "_gate_context",
             _gate_context(lambda limits: NONE if limits.closes_short else limits.max_steps - (limits.max_steps > 0))),
    swapped("step limit bounds windowed too", "windowed cannot make up for evictions", "A6", own_moves,
             "_gate_context", _gate_context(lambda limits: limits.max_steps)),
    swapped("trailing batch pulled", "a batch of fewer than N prompts comes under shrink", "A5", Limits,
             "skips_trailing", False),
    moved("the gate is never moved", "it stays as it begins", "A3", own_moves.move_gate),
)  # fmt: skip


# Dispatch (D)


def _start_as_before(group_class: GroupClass, _: int) -> GroupClass:
    return group_class._replace(start_weight=0)


DISPATCH = (
    moved("max_inflight_prompts ignored", "more permits are taken than there are", "D1", own_moves.dispatch,
           under(own_moves.dispatch, changing(max_inflight=lambda _: ENOUGH))),
    moved("max_inflight_prompts one more", "one permit too many is taken", "D1", own_moves.dispatch,
           under(own_moves.dispatch, changing(max_inflight=lambda limits: limits.max_inflight + 1))),
    moved("max_inflight_prompts one less", "one permit is never taken", "D1", own_moves.dispatch,
           under(own_moves.dispatch, changing(max_inflight=lambda limits: limits.max_inflight - 1))),
    moved("max_buffered_rollouts ignored", "more slots are taken than there are", "D1", own_moves.dispatch,
           under(own_moves.dispatch, changing(max_buffered=lambda _: ENOUGH))),
    moved("max_buffered_rollouts one less", "one slot is never taken", "D1", own_moves.dispatch,
           under(own_moves.dispatch, changing(max_buffered=lambda limits: limits.max_buffered - 1))),
    moved("dispatch during a sync", "an attempt starts while weights are loaded", "D1", own_moves.dispatch,
           during_a_sync(own_moves.dispatch)),
    moved("start during a sync", "a retry starts while weights are loaded", "D2", own_moves.start_waiting,
           during_a_sync(own_moves.start_waiting)),
    moved("a retry waits for the trainer", "a retry starts only while the trainer assembles", "D2",
           own_moves.start_waiting,
           only_if(own_moves.start_waiting, lambda state, _: state.trainer.status == 0)),
    swapped("a retry keeps the first weights", "its start weight is not its own", "D2", own_moves, "starting",
             _start_as_before),
)  # fmt: skip


# Selection (S)


def _select_of(classes: Callable[[View], Sequence[tuple[GroupClass, int]]]) -> Callable[..., Picks]:
    def select(_: Any, view: View, min_groups: int, max_groups: int) -> Picks:
        picks = take(classes(view), max_groups)
        return picks if count(picks) >= min_groups else []

    return select


def _ready(view: View) -> list[tuple[GroupClass, int]]:
    return list(pages.items(view.ready))


def _stamped_newest_first(view: View) -> list[tuple[GroupClass, int]]:
    return [pair for pair in reversed(_ready(view)) if pair[0].target_step == view.version]


def _fifo_of(*, newest: bool = False, past: tuple[str, ...] = ()) -> Callable[..., Picks]:
    """weight_fifo that takes the newest bucket first, or that looks past groups in some places."""

    def classes(view: View) -> list[tuple[GroupClass, int]]:
        ready = _ready(view)
        places: dict[str, Counts] = {
            "running": view.running, "waiting": view.waiting, "backing_off": view.backing_off, "ready": view.ready,
        }  # fmt: skip
        buckets = [c.bucket for place, counts in places.items() if place not in past for c, _ in pages.items(counts)]
        if view.queue.groups and "queue" not in past:
            buckets.append(view.queue.bucket)
        chosen = max(buckets, default=NONE) if newest else min(buckets, default=NONE)
        return [pair for pair in ready if pair[0].bucket == chosen]

    return _select_of(classes)


def _within(extra: int) -> Callable[..., Picks]:
    """windowed with another window; freshest first where asked for."""

    def select(self: Windowed, view: View, min_groups: int, max_groups: int) -> Picks:
        fits = [pair for pair in _ready(view) if pair[0].start_weight >= view.version - self.window - extra]
        picks = take(reversed(fits) if self.sample_freshest_first else fits, max_groups)
        return picks if count(picks) >= min_groups else []

    return select


def _other_order(self: Windowed, view: View, min_groups: int, max_groups: int) -> Picks:
    fits = [pair for pair in _ready(view) if pair[0].start_weight >= view.version - self.window]
    picks = take(fits if self.sample_freshest_first else reversed(fits), max_groups)
    return picks if count(picks) >= min_groups else []


SELECTION = (
    moved("streaming minimum ignored", "a chunk of one group is taken", "S1", own_moves.select,
           under(own_moves.select, changing(min_groups=lambda _: 1))),
    moved("chunks of whole steps only", "the streaming minimum is taken for N", "S1", own_moves.select,
           under(own_moves.select, changing(min_groups=lambda limits: limits.size))),
    swapped("in_order takes any stamp", "groups of a later step are taken", "S2", InOrder, "select",
             _select_of(_ready)),
    swapped("in_order takes the newest first", "within its step", "S3", InOrder, "select",
             _select_of(_stamped_newest_first)),
    swapped("ready_first takes the newest first", "an old group may starve", "S3", ReadyFirst, "select",
             _select_of(lambda view: list(reversed(_ready(view))))),
    swapped("windowed takes the other end first", "the freshest where not asked for, the oldest where asked for",
             "S3", Windowed, "select", _other_order),
    swapped("windowed takes one version more", "beyond the window", "S2", Windowed, "select", _within(1)),
    swapped("windowed takes one version less", "the window's last version is never taken", "S2", Windowed, "select",
             _within(-1)),
    swapped("weight_fifo takes the newest bucket", "the oldest starves", "S2", WeightFifo, "select",
             _fifo_of(newest=True)),
    swapped("weight_fifo looks past the queue", "a later bucket is trained first", "S2", WeightFifo, "select",
             _fifo_of(past=("queue",))),
    swapped("weight_fifo looks past what runs", "a later bucket is trained first", "S2", WeightFifo, "select",
             _fifo_of(past=("running",))),
    swapped("weight_fifo looks past what waits", "a later bucket is trained first", "S2", WeightFifo, "select",
             _fifo_of(past=("waiting",))),
    swapped("weight_fifo looks past what backs off", "a later bucket is trained first", "S2", WeightFifo, "select",
             _fifo_of(past=("backing_off",))),
)  # fmt: skip


# Eviction (E)


def _below(extra: int) -> Callable[..., list[GroupClass]]:
    def evict(self: Windowed, view: View) -> list[GroupClass]:
        return [c for c, _ in _ready(view) if c.start_weight < view.version - self.window + extra]

    return evict


def _is_below(extra: int) -> Callable[..., bool]:
    def aborts(self: Windowed, view: View, group_class: GroupClass) -> bool:
        return group_class.start_weight < view.version - self.window + extra

    return aborts


EVICTION = (
    swapped("nothing is evicted", "stale groups fill the buffer", "E1", Windowed, "evict", _below(-ENOUGH)),
    swapped("evicted one version late", "stale groups stay", "E1", Windowed, "evict", _below(-1)),
    swapped("evicted one version early", "groups of the window go", "E1", Windowed, "evict", _below(1)),
    swapped("nothing is aborted", "stale rollouts go on", "E1", Windowed, "should_abort_inflight",
             _is_below(-ENOUGH)),
    swapped("aborted one version late", "stale rollouts go on", "E1", Windowed, "should_abort_inflight",
             _is_below(-1)),
    swapped("aborted one version early", "rollouts of the window go", "E1", Windowed, "should_abort_inflight",
             _is_below(1)),
    Mutant("E1: evicted while the trainer is busy", "not only while it assembles", "E1",
           whatever_the_trainer_does(own_moves.evict)),
)  # fmt: skip


WAYS_IN: tuple[Mutant, ...] = (*ADMISSION, *DISPATCH, *SELECTION, *EVICTION)
