"""Contracts of the free functions, each with the same claim about a function seeded with a fault, its wrong twin."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from fsm.config.values import backoff_s, floor_groups
from fsm.machines.admission_gate import AdmissionGate, GateContext, may_admit, within_window
from fsm.machines.prompt_group import PROMPT_GROUP, TRANSFER, BalanceSheet, GroupState
from fsm.machines.shortfall_ledger import SHORTFALL_LEDGER, LedgerContext, LedgerState, ShortfallLedger, ledger_holds
from fsm.machines.source import Source, SourceContext, advance, left_in_epoch, pullable
from fsm.machines.spare_pool import PoolState, status_of
from fsm.machines.step_assembly import StepAssembly, want
from fsm.machines.table import enabled
from fsm.machines.trainer import Trainer
from fsm.samplers.builtin import InOrder, Windowed
from fsm.samplers.protocol import GatedSampler, optional
from fsm.state import NONE, GroupClass, Limits, State, View, assembling_step, charged, selected
from specs.evidence.contracts.obligation import Obligation, ProofCase, WrongTwin

Function = Callable[..., Any]
Claim = Callable[..., bool]

NO_LIMITS = Limits(*[0] * len(Limits._fields))


class Contract(NamedTuple):
    """`claim(function, *arguments)` must hold where `applies`, and `claim(wrong, *arguments)` must be refuted."""

    name: str
    says: str
    implements: str
    """The rules, as words in one text; so are the arguments."""
    arguments: str
    applies: Claim
    claim: Claim
    function: Function
    fault: str
    wrong: Function
    kind: type = int
    """Of all arguments."""

    def case(self) -> ProofCase:
        """The obligation and its twin."""
        symbolic = dict.fromkeys(self.arguments.split(), self.kind)
        right = Obligation(
            self.name, self.says, tuple(self.implements.split()), symbolic, self.applies,
            partial(self.claim, self.function),
        )  # fmt: skip
        return ProofCase(right, (WrongTwin(self.fault, right._replace(holds=partial(self.claim, self.wrong))),))


def _anyhow(*_: Any) -> bool:
    return True


# Admission: A1, A3, A4, A6


def _leads_by_window(within: Function, dispatch_index: int, version: int, window: int) -> bool:
    """Exactly the batches that lead the version by at most the window are admitted, and stay so as it moves."""
    lead = dispatch_index + 1 - version
    if within(dispatch_index, version, window):
        return lead <= window and bool(within(dispatch_index, version + 1, window))
    return lead > window


def _stops_at_limit(may: Function, dispatch_index: int, admits: int, max_steps: int) -> bool:
    """What is admitted is a step that will be trained, and the sampler's word is not overruled otherwise."""
    gate, context = AdmissionGate(dispatch_index=dispatch_index), GateContext(admits, max_steps)
    is_trained = max_steps < 0 or dispatch_index + 1 <= max_steps - 1
    return bool(may(gate, context)) == (admits != 0 and is_trained)


def _has_room_for(required: Function, size: int, dispatch_index: int, version: int, window: int) -> bool:
    """A gated sampler's open batches, with one just admitted, fit the buffer that it requires."""
    open_batches = dispatch_index + 1 - version + 1
    return open_batches * size <= int(required(InOrder(window), size))


def _is_admitted(size: int, dispatch_index: int, version: int, window: int) -> bool:
    return size >= 1 and window >= 0 and within_window(dispatch_index, version, window)


# Step sizes: S1, L6, L7

FLOORS_PERCENT = (55, 90)
"""Fractions as percentages: the default, and one whose product with 100 is not exact in floating point."""
FAILED_ATTEMPTS = (1, 2, 5)


def _makes_even(wants: Function, size: int, selected: int, charged: int) -> bool:
    return bool(selected + wants(size, selected, charged) + charged == size)


def _is_exact_ceiling(numerator: int, floor: Function, size: int) -> bool:
    """The smallest number that is at least size × numerator / 100, in whole numbers only."""
    groups = floor(size, numerator / 100)
    return bool((groups - 1) * 100 < size * numerator <= groups * 100 and 1 <= groups <= size)


def _backs_off(failed: int, delay: Function, base_s: float, most_s: float) -> bool:
    return bool(delay(failed, base_s, most_s) == min(base_s * (1 << (failed - 1)), most_s))


def _are_seconds(base_s: float, most_s: float) -> bool:
    return 0.0 < base_s < 1e6 and 0.0 < most_s < 1e6


# Data and the pool: A5, P1, P2, X4, C3

SOURCE_ARGUMENTS = "offset requeued epoch size per_epoch epochs skips groups"


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


def _is_refilled(status: Function, spares: int, reserve: int, data_left: int) -> bool:
    """P1 and P2 go by the pool's status: refilled exactly when low with data left, drained once it is used up."""
    is_low = data_left != 0 and spares < reserve
    is_drained = data_left == 0 and spares > 0
    found = status(spares, reserve, data_left)
    return (found is PoolState.LOW) == is_low and (found is PoolState.DRAINING) == is_drained


# Samplers: L3 and E1, as far as a sampler decides them


def _keeps_its_stamp(charge: Function, target: int, assembling: int) -> bool:
    """A stamp is charged, whatever the trainer is at; what has none is charged to the step being assembled."""
    step = charge(GatedSampler(), optional(target), assembling)
    return bool(step == (assembling if target == NONE else target))


def _trains_within_window(aborts: Function, version: int, start_weight: int, window: int) -> bool:
    """What may go on is no staler than the window when it trains with the version, and what is aborted is."""
    view = View(State(trainer=Trainer(version=version)), NO_LIMITS)
    is_stale = version - start_weight > window
    return bool(aborts(Windowed(window), view, GroupClass(start_weight=start_weight))) == is_stale


# Charges on up to three open steps: L3, L4

VERSION = 5
"""The trainer's: no rule tells one version from another."""
OPEN_LEDGERS = (LedgerState.EVEN, LedgerState.SHORT, LedgerState.AT_FLOOR, LedgerState.BELOW_FLOOR)


def _ledger(lost: int, size: int, floor: int) -> ShortfallLedger:
    """The ledger of an open step with that many charges: the one whose status its invariant allows."""
    for status in OPEN_LEDGERS:
        ledger = ShortfallLedger(status, lost)
        if ledger_holds(ledger, LedgerContext(size, floor)):
            return ledger
    return ShortfallLedger(LedgerState.SETTLED, lost)


def _are_steps(chosen: int, size: int, floor: int, *losses: int) -> bool:
    if not (size >= 1 and 1 <= floor <= size and chosen >= 0 and chosen + losses[0] <= size):
        return False
    return all(0 <= lost <= size for lost in losses)


def _has_place(find: Function, chosen: int, size: int, floor: int, *losses: int) -> bool:
    """The step found is the earliest with a place left, and its ledger takes the charge."""
    page = tuple((VERSION + number, ShortfallLedger(charged=lost)) for number, lost in enumerate(losses))
    state = State(trainer=Trainer(version=VERSION), step=StepAssembly(selected=chosen), ledgers=(page,))
    step = find(state, NO_LIMITS._replace(size=size, floor=floor))
    for earlier in range(VERSION, step):
        if selected(state, earlier) + charged(state, earlier) < size:
            return False
    ledger = _ledger(charged(state, step), size, floor)
    context = LedgerContext(size, floor, selected(state, step))
    return enabled(SHORTFALL_LEDGER, "charge", ledger, context) is not None


# The balance sheet: X4


def adds_up(sheet: BalanceSheet) -> bool:
    """The same as `BalanceSheet.balanced`, written without `min`, whose paths are too many for a solver."""
    return all(groups >= 0 for groups in sheet) and sheet.pulled == sum(sheet[1:11])


def _may_move(source: GroupState, groups: int, *columns: int) -> bool:
    sheet = BalanceSheet(*columns)
    return groups >= 0 and (source is GroupState.DATA or groups <= sheet[source]) and adds_up(sheet)


def _stays_balanced(move: Function, groups: int, *columns: int) -> bool:
    return adds_up(move(BalanceSheet(*columns), groups))


def _gives_one_more(move: Function, dest: GroupState, sheet: BalanceSheet, groups: int) -> BalanceSheet:
    columns = list(move(sheet, groups))
    columns[dest] += 1
    return BalanceSheet._make(columns)


CONTRACTS: tuple[Contract, ...] = (
    Contract("within_window", "a batch is admitted exactly while it leads the version by at most the window", "A1 A3",
             "dispatch_index version window", _anyhow, _leads_by_window,
             within_window, "one batch too many", lambda index, version, window: index <= version + window),
    Contract("may_admit", "nothing is admitted for steps that will not be", "A1 A6",
             "dispatch_index admits max_steps", _anyhow, _stops_at_limit,
             may_admit, "the step limit forgotten", lambda _, context: bool(context.sampler_admits)),
    Contract("required_buffer_capacity", "every batch that may be admitted has room in the buffer", "A4",
             "size dispatch_index version window", _is_admitted, _has_room_for,
             InOrder.required_buffer_capacity, "no room for the lookahead's last batch",
             lambda sampler, size: size * sampler.window),
    Contract("want", "a step with all that it wants comes out even", "S1 L5",
             "size selected charged", _anyhow, _makes_even,
             want, "charged groups wanted again", lambda size, selected, charged: size - selected),
    *(Contract(f"floor_groups, fraction = {percent}%", "the floor is the exact ceiling, for every N", "L6",
               "size", lambda size: size >= 1, partial(_is_exact_ceiling, percent),
               floor_groups, "rounded down", lambda size, fraction: size * round(fraction * 100) // 100)
      for percent in FLOORS_PERCENT),
    *(Contract(f"backoff_s, failed_attempts = {failed}", "the wait doubles from the base, up to the most", "L7",
               "base_s most_s", _are_seconds, partial(_backs_off, failed),
               backoff_s, "without a most", lambda failed, base_s, most_s: base_s * 2.0 ** (failed - 1), float)
      for failed in FAILED_ATTEMPTS),
    Contract("advance", "no prompt is passed over but an epoch's trailing ones", "A5 X4 C3",
             SOURCE_ARGUMENTS, _in_data, _loses_no_prompt,
             advance, "prompts to be generated again stay where they are", _forgets_requeued),
    Contract("pullable", "a batch is pulled whole where trailing ones are not", "A5",
             SOURCE_ARGUMENTS, _in_data, _gives_a_batch,
             pullable, "trailing batches pulled",
             lambda source, context: left_in_epoch(source, context.prompts_per_epoch) >= 1),
    Contract("status_of", "a pool is refilled below its reserve, and drained once the data is used up", "P1 P2",
             "spares reserve data_left", lambda spares, *_: spares >= 0, _is_refilled,
             status_of, "refilled at its reserve",
             lambda spares, reserve, data_left: status_of(spares, reserve + 1, data_left)),
    Contract("charge_step_for_lost_group", "a lost group is charged to its stamp, else to the step assembled", "L3",
             "target assembling", _anyhow, _keeps_its_stamp,
             GatedSampler.charge_step_for_lost_group, "the stamp ignored",
             lambda sampler, target, assembling: assembling),
    Contract("should_abort_inflight", "windowed aborts exactly what is staler than its window", "E1 S2",
             "version start_weight window", _anyhow, _trains_within_window,
             Windowed.should_abort_inflight, "at the window's edge",
             lambda sampler, view, group_class: group_class.start_weight <= view.version - sampler.window),
    Contract("assembling_step", "an unstamped loss goes to the earliest step with a place left", "L3 L4",
             "chosen size floor lost lost_next lost_after", _are_steps, _has_place,
             assembling_step, "every unstamped loss charged to the step that the trainer is at",
             lambda state, _: state.trainer.version),
)  # fmt: skip


def _balance() -> Iterator[Contract]:
    """One contract for each event that moves groups."""
    for rule in PROMPT_GROUP.rules:
        if rule.event in TRANSFER:
            move = TRANSFER[rule.event]
            yield Contract(
                f"BalanceSheet after {rule.event}", "every prompt pulled is in exactly one place", "X4",
                " ".join(("groups_moved", *BalanceSheet._fields)),
                partial(_may_move, GroupState(rule.sources[0])), _stays_balanced,
                move, "one group more arrives than leaves", partial(_gives_one_more, move, GroupState(rule.dest)),
            )  # fmt: skip


def cases() -> Iterator[ProofCase]:
    """Every contract of this module with its twin."""
    return (contract.case() for contract in (*CONTRACTS, *_balance()))
