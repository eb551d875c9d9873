"""What must hold of every state. The core asserts `check` after every event, in production too.

`check` costs the same however many groups there are; `check_deep` goes through all classes and the roster, for
tests, the simulation and the checker. Each raises InvariantBroken with the values.
"""

from __future__ import annotations

from fsm import pages
from fsm.errors import InvariantBroken
from fsm.roster import Roster
from fsm.shortfall_ledger import LedgerContext, ledger_holds
from fsm.state import Limits, State, charged
from fsm.step_assembly import comes_out_even


def _require(holds: bool, rule: str, what: str, state: State) -> None:
    if not holds:
        raise InvariantBroken(f"{rule}: {what}. This is a defect of evenstep; please report it with {state}")


def check(state: State, limits: Limits) -> None:
    """The balance sheet, the step's guard, and what two places count alike."""
    tally, step = state.tally, state.step
    if not tally.balanced:
        _require(False, "X4", f"the balance sheet does not add up: {tally}", state)
    lost = charged(state, state.trainer.version)
    if not comes_out_even(step, limits.size, lost):
        _require(False, "L5", f"selected {step.selected} + charged {lost} of {limits.size}", state)
    if tally.selected != step.selected or tally.spare != state.pool.spares or tally.queued != state.queue.groups:
        _require(False, "X4", "the machines and the balance sheet disagree", state)


def check_deep(state: State, limits: Limits, roster: Roster) -> None:
    """All counts against the balance sheet, all ledgers, and the roster against the counts."""
    check(state, limits)
    tally = state.tally
    in_flight = pages.total(state.running) + pages.total(state.waiting) + pages.total(state.backing_off)
    _require(in_flight == tally.in_flight, "X4", f"{in_flight} in flight by class", state)
    _require(pages.total(state.ready) == tally.ready, "X4", "ready by class", state)
    selected = pages.total(state.chunk) + pages.total(state.accumulated)
    _require(selected == tally.selected, "X4", f"{selected} selected by class", state)
    for step, ledger in pages.items(state.ledgers):
        chosen = state.step.selected if step == state.trainer.version else 0
        holds = ledger_holds(ledger, LedgerContext(limits.size, limits.floor, chosen))
        _require(holds and step >= state.trainer.version, "L4", f"the ledger of step {step}", state)
    for group_class, _ in [*pages.items(state.running), *pages.items(state.waiting)]:
        within = group_class.replacements <= limits.max_replacements
        _require(within, "L2", f"{group_class} has had too many replacements", state)
    _check_roster(state, roster)


def _check_roster(state: State, roster: Roster) -> None:
    counted = {
        "running": (state.running, [g for c in roster.running.values() for g in c.values()]),
        "waiting": (state.waiting, list(roster.waiting.values())),
        "backing off": (state.backing_off, list(roster.backing_off.values())),
        "ready": (state.ready, list(roster.ready_groups())),
        "in the chunk": (state.chunk, list(roster.chunk.values())),
        "accumulated": (state.accumulated, roster.accumulated),
    }
    for place, (counts, groups) in counted.items():
        listed = pages.of((group.group_class, 1) for group in groups)
        agrees = list(pages.items(listed)) == list(pages.items(counts))
        _require(agrees, "X4", f"the roster has other groups {place}: {list(pages.items(listed))}", state)
    _require(len(roster.spares) == state.pool.spares, "X4", "the roster has other spares", state)
    _require(len(roster.queue) == state.queue.groups, "X4", "the roster has another queue", state)
    _require(len(roster.again) == state.source.requeued, "C3", "the roster has other requeued prompts", state)
