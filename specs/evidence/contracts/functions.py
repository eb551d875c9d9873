"""Contracts of the free functions: admission, what a step wants, the floor, charges, the source, the pool, moves.

A contract is a claim about a function as an argument, so that its wrong twin is the same claim about a function
seeded with a fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from fsm.config.parse import floor_groups
from fsm.config.values import backoff_s
from fsm.machines.admission_gate import AdmissionGate, GateContext, may_admit, within_window
from fsm.machines.source import Source, SourceContext, advance, left_in_epoch, pullable
from fsm.machines.spare_pool import PoolState, status_of
from fsm.machines.step_assembly import want
from fsm.machines.trainer import Trainer
from fsm.samplers.builtin import InOrder, Windowed
from fsm.samplers.protocol import GatedSampler, optional
from fsm.state import NONE, GroupClass, Limits, State, View
from specs.evidence.contracts.obligation import Obligation, ProofCase, WrongTwin

Function = Callable[..., Any]


def contract(
    name: str,
    says: str,
    implements: str,
    arguments: str,
    applies: Callable[..., bool],
    *,
    claim: Callable[..., bool],
    function: Function,
    fault: str,
    wrong: Function,
    kind: type = int,
) -> ProofCase:
    """`claim(function, *arguments)` is to hold where `applies`, and `claim(wrong, *arguments)` to be refuted.

    `implements` and `arguments` are words in one string; all arguments are of one `kind`.
    """
    symbolic = dict.fromkeys(arguments.split(), kind)
    right = Obligation(name, says, tuple(implements.split()), symbolic, applies, partial(claim, function))
    return ProofCase(right, (WrongTwin(fault, replace(right, holds=partial(claim, wrong))),))


def _anyhow(*_: Any) -> bool:
    return True


def _leads_by_window(within: Function, dispatch_index: int, version: int, window: int) -> bool:
    """Exactly the batches that lead the version by at most the window are admitted, and stay so as it moves."""
    lead = dispatch_index + 1 - version
    if within(dispatch_index, version, window):
        return lead <= window and bool(within(dispatch_index, version + 1, window))
    return lead > window


def _stops_at_limit(may: Function, dispatch_index: int, admits: int, max_steps: int) -> bool:
    """What is admitted is a step that will be trained, and the sampler's word is not overruled otherwise."""
    gate, context = AdmissionGate(dispatch_index=dispatch_index), GateContext(admits, max_steps)
    batch = dispatch_index + 1
    is_trained = max_steps < 0 or batch <= max_steps - 1
    return bool(may(gate, context)) == (admits != 0 and is_trained)


def _ignores_limit(_: AdmissionGate, context: GateContext) -> bool:
    return bool(context.sampler_admits)


def _has_room_for(required: Function, size: int, dispatch_index: int, version: int, window: int) -> bool:
    """A gated sampler's open batches, with one just admitted, fit the buffer that it requires."""
    open_batches = dispatch_index + 1 - version + 1
    return open_batches * size <= int(required(InOrder(window), size))


def _is_admitted(size: int, dispatch_index: int, version: int, window: int) -> bool:
    return size >= 1 and window >= 0 and within_window(dispatch_index, version, window)


def admission() -> Iterator[ProofCase]:
    """A1, A3, A4, A6."""
    yield contract(
        "within_window",
        "a batch is admitted exactly while it leads the version by at most the window",
        "A1 A3",
        "dispatch_index version window",
        _anyhow,
        claim=_leads_by_window,
        function=within_window,
        fault="one batch too many",
        wrong=lambda index, version, window: index <= version + window,
    )
    yield contract(
        "may_admit",
        "nothing is admitted for steps that will not be",
        "A1 A6",
        "dispatch_index admits max_steps",
        _anyhow,
        claim=_stops_at_limit,
        function=may_admit,
        fault="the step limit forgotten",
        wrong=_ignores_limit,
    )
    yield contract(
        "required_buffer_capacity",
        "every batch that may be admitted has room in the buffer",
        "A4",
        "size dispatch_index version window",
        _is_admitted,
        claim=_has_room_for,
        function=InOrder.required_buffer_capacity,
        fault="no room for the lookahead's last batch",
        wrong=lambda sampler, size: size * sampler.window,
    )


def _makes_even(wants: Function, size: int, selected: int, charged: int) -> bool:
    return bool(selected + wants(size, selected, charged) + charged == size)


def _is_exact_ceiling(numerator: int, floor: Function, size: int) -> bool:
    """The smallest number that is at least size × numerator / 100, in whole numbers only."""
    groups = floor(size, numerator / 100)
    return bool((groups - 1) * 100 < size * numerator <= groups * 100 and 1 <= groups <= size)


def _has_size(size: int) -> bool:
    return size >= 1


def _backs_off(failed: int, delay: Function, base_s: float, most_s: float) -> bool:
    waits_s = delay(failed, base_s, most_s)
    return bool(waits_s == min(base_s * (1 << (failed - 1)), most_s))


def _are_seconds(base_s: float, most_s: float) -> bool:
    return 0.0 < base_s < 1e6 and 0.0 < most_s < 1e6


FLOORS_PERCENT = (55, 90)
"""Fractions as percentages: the default, and one whose product with 100 is not exact in floating point."""

FAILED_ATTEMPTS = (1, 2, 5)


def step_sizes() -> Iterator[ProofCase]:
    """S1, L6, L7."""
    yield contract(
        "want",
        "a step with all that it wants comes out even",
        "S1 L5",
        "size selected charged",
        _anyhow,
        claim=_makes_even,
        function=want,
        fault="charged groups wanted again",
        wrong=lambda size, selected, charged: size - selected,
    )
    for percent in FLOORS_PERCENT:
        yield contract(
            f"floor_groups, fraction = {percent}%",
            "the floor is the exact ceiling, for every N",
            "L6",
            "size",
            _has_size,
            claim=partial(_is_exact_ceiling, percent),
            function=floor_groups,
            fault="rounded down",
            wrong=lambda size, fraction: size * round(fraction * 100) // 100,
        )
    for failed in FAILED_ATTEMPTS:
        yield contract(
            f"backoff_s, failed_attempts = {failed}",
            "the wait doubles from the base, up to the most",
            "L7",
            "base_s most_s",
            _are_seconds,
            claim=partial(_backs_off, failed),
            function=backoff_s,
            fault="without a most",
            wrong=lambda failed, base_s, most_s: base_s * 2.0 ** (failed - 1),
            kind=float,
        )


def _in_data(
    offset: int, requeued: int, epoch: int, size: int, per_epoch: int, epochs: int, skips: int, groups: int
) -> bool:
    """A source within its data, of which no more is pulled than is left."""
    source = Source(epoch=epoch, offset=offset, requeued=requeued)
    within = 0 <= offset <= per_epoch and requeued >= 0 and 0 <= epoch < epochs
    return within and size >= 1 and skips in (0, 1) and 0 <= groups <= left_in_epoch(source, per_epoch)


def _loses_no_prompt(
    pull: Function,
    offset: int, requeued: int, epoch: int, size: int, per_epoch: int, epochs: int, skips: int, groups: int,
) -> bool:  # fmt: skip
    """A pull takes that many prompts, and an epoch is left only with fewer than can be taken as a batch."""
    before = Source(epoch=epoch, offset=offset, requeued=requeued)
    after = pull(before, SourceContext(size, per_epoch, epochs, skips, groups))
    left = left_in_epoch(before, per_epoch) - groups
    if after.epoch == epoch:
        return left_in_epoch(after, per_epoch) == left
    trailing = left - after.requeued
    moved_on = after.epoch == epoch + 1 < epochs and left_in_epoch(after, per_epoch) == after.requeued + per_epoch
    return moved_on and 0 <= trailing < (size if skips else 1) and left < (size if skips else 1)


def _forgets_requeued(source: Source, context: SourceContext) -> Source:
    pulled = advance(source._replace(requeued=0, offset=source.offset - source.requeued), context)
    return pulled._replace(requeued=source.requeued)


def _gives_a_batch(
    can: Function,
    offset: int, requeued: int, epoch: int, size: int, per_epoch: int, epochs: int, skips: int, groups: int,
) -> bool:  # fmt: skip
    """What is pulled as a batch is a whole one where trailing ones are not pulled, and never nothing."""
    source = Source(epoch=epoch, offset=offset, requeued=requeued)
    batch = min(left_in_epoch(source, per_epoch), size)
    is_batch = batch == size if skips else batch >= 1
    return bool(can(source, SourceContext(size, per_epoch, epochs, skips, groups))) == is_batch


def _takes_trailing(source: Source, context: SourceContext) -> bool:
    return left_in_epoch(source, context.prompts_per_epoch) >= 1


def _is_refilled(status: Function, spares: int, reserve: int, data_left: int) -> bool:
    """P1 and P2 go by the pool's status: refilled exactly when low with data left, drained once it is used up."""
    is_low = data_left != 0 and spares < reserve
    is_drained = data_left == 0 and spares > 0
    found = status(spares, reserve, data_left)
    return (found is PoolState.LOW) == is_low and (found is PoolState.DRAINING) == is_drained


def _refills_full_pool(spares: int, reserve: int, data_left: int) -> PoolState:
    return status_of(spares, reserve + 1, data_left)


def _is_stocked(spares: int, _: int, __: int) -> bool:
    return spares >= 0


SOURCE_ARGUMENTS = "offset requeued epoch size per_epoch epochs skips groups"


def data() -> Iterator[ProofCase]:
    """A5, P1, P2, X4, C3."""
    yield contract(
        "advance",
        "no prompt is passed over but an epoch's trailing ones",
        "A5 X4 C3",
        SOURCE_ARGUMENTS,
        _in_data,
        claim=_loses_no_prompt,
        function=advance,
        fault="prompts to be generated again stay where they are",
        wrong=_forgets_requeued,
    )
    yield contract(
        "pullable",
        "a batch is pulled whole where trailing ones are not",
        "A5",
        SOURCE_ARGUMENTS,
        _in_data,
        claim=_gives_a_batch,
        function=pullable,
        fault="trailing batches pulled",
        wrong=_takes_trailing,
    )
    yield contract(
        "status_of",
        "a pool is refilled below its reserve, and drained once the data is used up",
        "P1 P2",
        "spares reserve data_left",
        _is_stocked,
        claim=_is_refilled,
        function=status_of,
        fault="refilled at its reserve",
        wrong=_refills_full_pool,
    )


def _keeps_its_stamp(charge: Function, target: int, assembling: int) -> bool:
    """A stamp is charged whatever the trainer is at; what has none is charged to the step being assembled."""
    step = charge(GatedSampler(), optional(target), assembling)
    return bool(step == assembling) if target == NONE else bool(step == target)


def _trains_within_window(aborts: Function, version: int, start_weight: int, window: int) -> bool:
    """What may go on is no staler than the window when it trains with the version, and what is aborted is."""
    view = View(State(trainer=Trainer(version=version)), Limits(*[0] * len(Limits._fields)))
    is_stale = version - start_weight > window
    return bool(aborts(Windowed(window), view, GroupClass(start_weight=start_weight))) == is_stale


def _aborts_at_window(sampler: Windowed, view: View, group_class: GroupClass) -> bool:
    return group_class.start_weight <= view.version - sampler.window


def samplers() -> Iterator[ProofCase]:
    """L3 and E1, as far as a sampler decides them."""
    yield contract(
        "charge_step_for_lost_group",
        "a lost group is charged to its stamp, else to the step assembled",
        "L3",
        "target assembling",
        _anyhow,
        claim=_keeps_its_stamp,
        function=GatedSampler.charge_step_for_lost_group,
        fault="the stamp ignored",
        wrong=lambda sampler, target, assembling: assembling,
    )
    yield contract(
        "should_abort_inflight",
        "windowed aborts exactly what is staler than its window",
        "E1 S2",
        "version start_weight window",
        _anyhow,
        claim=_trains_within_window,
        function=Windowed.should_abort_inflight,
        fault="at the window's edge",
        wrong=_aborts_at_window,
    )


def cases() -> Iterator[ProofCase]:
    """All of this module."""
    yield from admission()
    yield from step_sizes()
    yield from data()
    yield from samplers()
