"""Contracts of what is counted over several machines: the step that a loss is charged to, and the balance sheet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from fsm.machines.prompt_group import PROMPT_GROUP, TRANSFER, GroupState, Tally
from fsm.machines.shortfall_ledger import SHORTFALL_LEDGER, LedgerContext, LedgerState, ShortfallLedger, ledger_holds
from fsm.machines.step_assembly import StepAssembly
from fsm.machines.table import enabled
from fsm.machines.trainer import Trainer
from fsm.state import Limits, State, assembling_step, charged, selected
from specs.evidence.contracts.functions import Function, contract
from specs.evidence.contracts.obligation import ProofCase

VERSION = 5
"""The trainer's, in contracts about several open steps: no rule tells one version from another."""

LEDGER_STATUS = (LedgerState.EVEN, LedgerState.SHORT, LedgerState.AT_FLOOR, LedgerState.BELOW_FLOOR)


def _ledger(lost: int, size: int, floor: int) -> ShortfallLedger:
    """The ledger of an open step with that many charges: the one whose status its invariant allows."""
    for status in LEDGER_STATUS:
        ledger = ShortfallLedger(status, lost)
        if ledger_holds(ledger, LedgerContext(size, floor)):
            return ledger
    return ShortfallLedger(LedgerState.SETTLED, lost)


def _state(chosen: int, losses: tuple[int, ...]) -> State:
    """A state whose trained step and those after it have these charges."""
    page = tuple((VERSION + number, ShortfallLedger(charged=lost)) for number, lost in enumerate(losses))
    return State(trainer=Trainer(version=VERSION), step=StepAssembly(selected=chosen), ledgers=(page,))


def _limits(size: int, floor: int) -> Limits:
    zeros = Limits(*[0] * len(Limits._fields))
    return zeros._replace(size=size, floor=floor)


def _are_steps(chosen: int, size: int, floor: int, *losses: int) -> bool:
    if not (size >= 1 and 1 <= floor <= size and chosen >= 0 and chosen + losses[0] <= size):
        return False
    return all(0 <= lost <= size for lost in losses)


def _has_place(find: Callable[[State, Limits], int], chosen: int, size: int, floor: int, *losses: int) -> bool:
    """L3, L4: the step found is the earliest with a place left, and its ledger takes the charge."""
    state = _state(chosen, losses)
    step = find(state, _limits(size, floor))
    for earlier in range(VERSION, step):
        if selected(state, earlier) + charged(state, earlier) < size:
            return False
    ledger = _ledger(charged(state, step), size, floor)
    context = LedgerContext(size, floor, selected(state, step))
    return enabled(SHORTFALL_LEDGER, "charge", ledger, context) is not None


def _trainer_s_step(state: State, _: Limits) -> int:
    return state.trainer.version


def charges() -> Iterator[ProofCase]:
    """L3, L4, with charges on up to three open steps."""
    yield contract(
        "assembling_step",
        "an unstamped loss goes to the earliest step with a place left",
        "L3 L4",
        "chosen size floor lost lost_next lost_after",
        _are_steps,
        claim=_has_place,
        function=assembling_step,
        fault="every unstamped loss charged to the step that the trainer is at",
        wrong=_trainer_s_step,
    )


def adds_up(tally: Tally) -> bool:
    """What `Tally.balanced` says, written without `min`, whose paths are too many for a solver."""
    return all(groups >= 0 for groups in tally) and tally.pulled == sum(tally[1:11])


def _may_move(source: GroupState, groups: int, *columns: int) -> bool:
    tally = Tally(*columns)
    return groups >= 0 and (source is GroupState.DATA or groups <= tally[source]) and adds_up(tally)


def _stays_balanced(move: Function, groups: int, *columns: int) -> bool:
    return adds_up(move(Tally(*columns), groups))


def _gives_one_more(move: Function, dest: GroupState, tally: Tally, groups: int) -> Tally:
    columns = list(move(tally, groups))
    columns[dest] += 1
    return Tally._make(columns)


def balance() -> Iterator[ProofCase]:
    """X4: one case an event that moves groups."""
    for rule in PROMPT_GROUP.rules:
        if rule.event not in TRANSFER:
            continue
        source, dest, move = GroupState(rule.sources[0]), GroupState(rule.dest), TRANSFER[rule.event]
        yield contract(
            f"Tally after {rule.event}",
            "every prompt pulled is in exactly one place",
            "X4",
            " ".join(("groups_moved", *Tally._fields)),
            partial(_may_move, source),
            claim=_stays_balanced,
            function=move,
            fault="one group more arrives than leaves",
            wrong=partial(_gives_one_more, move, dest),
        )


def cases() -> Iterator[ProofCase]:
    """All of this module."""
    yield from charges()
    yield from balance()
