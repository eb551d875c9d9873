"""What must hold of every state. The core asserts `check` after every event, in production too.

The cost of `check` does not depend on the number of groups. `check_deep` looks at all classes and the roster, for
tests, the simulation, the checker and snapshots. Both raise InvariantBroken with the values.
"""

from collections.abc import Iterator

from fsm.errors import InvariantBroken
from fsm.groups.roster import Roster
from fsm.machines.shortfall_ledger import ledger_holds
from fsm.machines.step_assembly import comes_out_even
from fsm.rules.laws import ledger_context
from fsm.state import Limits, State, charged
from fsm.values import pages


def _broken(what: str, state: State) -> InvariantBroken:
    return InvariantBroken(f"{what}. This is a defect of evenstep; please report it with {state}")


def check(state: State, limits: Limits) -> None:
    """The balance sheet, the step's guard, and counts that are kept in two places."""
    fault = _fault(state, limits)
    if fault is not None:
        raise _broken(fault, state)


def _fault(state: State, limits: Limits) -> str | None:
    sheet, step = state.sheet, state.step
    if not sheet.balanced:
        return f"X4: the balance sheet does not add up: {sheet}"
    lost = charged(state, state.trainer.version)
    if not comes_out_even(step, limits.size, lost):
        return f"L5: selected {step.selected} + charged {lost} of {limits.size}, {step.status.name.lower()}"
    if sheet.selected != step.selected or sheet.spare != state.pool.spares or sheet.queued != state.queue.groups:
        return f"X4: the machines and the balance sheet disagree: {step}, {state.pool}, {state.queue}, {sheet}"
    return None


def check_deep(state: State, limits: Limits, roster: Roster) -> None:
    """All counts against the balance sheet, all ledgers, and the roster against the counts."""
    for fault in faults(state, limits, roster):
        raise _broken(fault, state)


def faults(state: State, limits: Limits, roster: Roster) -> Iterator[str]:
    """Everything that does not hold, in sentences that begin with the rule."""
    fault = _fault(state, limits)
    if fault is not None:
        yield fault
    sheet = state.sheet
    in_flight = pages.total(state.running) + pages.total(state.waiting) + pages.total(state.backing_off)
    if in_flight != sheet.in_flight:
        yield f"X4: {in_flight} in flight by class, {sheet.in_flight} on the balance sheet"
    ready = pages.total(state.ready)
    if ready != sheet.ready:
        yield f"X4: {ready} ready by class, {sheet.ready} on the balance sheet"
    selected = pages.total(state.chunk) + pages.total(state.accumulated)
    if selected != sheet.selected:
        yield f"X4: {selected} selected by class, {sheet.selected} on the balance sheet"
    for step, ledger in pages.items(state.ledgers):
        holds = ledger_holds(ledger, ledger_context(state, limits, step))
        if not holds or step < state.trainer.version:
            yield f"L4: the ledger of step {step} at version {state.trainer.version}: {ledger}"
    for group_class, _ in [*pages.items(state.running), *pages.items(state.waiting)]:
        if group_class.replacements > limits.max_replacements:
            yield f"L2: {group_class} has had more than {limits.max_replacements} replacements"
    yield from _roster_faults(state, roster)


def _roster_faults(state: State, roster: Roster) -> Iterator[str]:
    counted = {
        "running": (state.running, [g for c in roster.running.values() for g in c.values()]),
        "waiting": (state.waiting, list(roster.waiting.values())),
        "backing off": (state.backing_off, list(roster.backing_off.values())),
        "ready": (state.ready, list(roster.ready_groups())),
        "in the chunk": (state.chunk, list(roster.chunk.values())),
        "accumulated": (state.accumulated, roster.accumulated),
    }
    for place, (counts, groups) in counted.items():
        listed, by_class = pages.of((group.group_class, 1) for group in groups), list(pages.items(counts))
        if list(pages.items(listed)) != by_class:
            yield f"X4: the roster has {len(groups)} groups {place}, {list(pages.items(listed))}, counted {by_class}"
    for what, listed_prompts, groups_counted, rule in (
        ("spares", roster.spares, state.pool.spares, "X4"),
        ("queued prompts", roster.queue, state.queue.groups, "X4"),
        ("prompts to be generated again", roster.again, state.source.requeued, "C3"),
    ):
        if len(listed_prompts) != groups_counted:
            yield f"{rule}: the roster has {len(listed_prompts)} {what}, counted {groups_counted}"
