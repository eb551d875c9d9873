"""Properties of every state.

`ALWAYS` are cheap and checked everywhere, in replays too; several ask the core's own functions. `MORE_ALWAYS` say what
each of the core's own moves leaves undone, from the rules and without those moves: `no_poll` asks the core whether
something is left to do, so a core that is wrong about it agrees with itself.
"""

from collections.abc import Callable

from fsm.errors import InvariantBroken
from fsm.groups.invariants import check
from fsm.machines.admission_gate import GateState
from fsm.machines.shortfall_ledger import ledger_holds
from fsm.machines.source import SourceState, left_in_epoch, source_holds
from fsm.machines.spare_pool import pool_holds
from fsm.machines.trainer import TrainerState
from fsm.rules import own_moves
from fsm.rules.laws import Laws, ledger_context, pool_context, source_context
from fsm.state import State, charged, is_over, slots_accounted
from fsm.values import pages
from specs.properties.kinds import Always, OfState, always
from specs.properties.sampler_facts import bound_beyond_which_groups_go, eligible_classes, may_lead_to

PRODUCING, EXHAUSTED = SourceState.PRODUCING, SourceState.EXHAUSTED
ASSEMBLING, SYNCING = TrainerState.ASSEMBLING, TrainerState.SYNCING


@always("X4", "L5")
def balance(state: State, laws: Laws) -> bool:
    """The machines agree with the balance sheet, and no step exceeds N."""
    try:
        check(state, laws.limits)
    except InvariantBroken:
        return False
    return True


@always("X4")
def columns(state: State, _: Laws) -> bool:
    """The balance sheet counts the ready and selected groups there are."""
    sheet = state.sheet
    selected = pages.total(state.chunk) + pages.total(state.accumulated)
    return sheet.ready == pages.total(state.ready) and sheet.selected == selected


@always("D1", "X4")
def permits(state: State, _: Laws) -> bool:
    """The permits taken are those of the groups in flight."""
    in_flight = pages.total(state.running) + pages.total(state.waiting) + pages.total(state.backing_off)
    return state.sheet.in_flight == in_flight


@always("L2", "P1")
def pool(state: State, _: Laws) -> bool:
    """The spare pool is never negative."""
    return state.pool.spares >= 0


@always("X2")
def slots(state: State, laws: Laws) -> bool:
    """Every admitted slot is in hand, selected or charged."""
    return bool(laws.limits.closes_short) or is_over(state) or slots_accounted(state, laws.limits)


@always("L3", "L4")
def charges(state: State, laws: Laws) -> bool:
    """Charges go to open steps and never beyond N."""
    limits, version = laws.limits, state.trainer.version
    for step, ledger in pages.items(state.ledgers):
        context = ledger_context(state, limits, step)
        if step < version or context.selected + ledger.charged > limits.size or not ledger_holds(ledger, context):
            return False
    return True


@always("L2")
def replacements(state: State, laws: Laws) -> bool:
    """A slot has at most max_replacement_attempts."""
    most = laws.limits.max_replacements
    in_flight = (state.running, state.waiting, state.backing_off)
    return all(group_class.replacements <= most for counts in in_flight for group_class, _ in pages.items(counts))


@always("A3")
def no_poll(state: State, laws: Laws) -> bool:
    """What can be done is done."""
    try:
        return own_moves.next_move(state, laws) is None
    except InvariantBroken:
        return False


ALWAYS: tuple[Always, ...] = (balance, columns, permits, pool, slots, charges, replacements, no_poll)


def _unless_over(*rules: str) -> Callable[[OfState], Always]:
    """An `Always` that says nothing of a run that is over."""
    return lambda holds: always(*rules)(holds)._replace(holds=lambda state, laws: is_over(state) or holds(state, laws))


def _while_assembling(*rules: str) -> Callable[[OfState], Always]:
    """An `Always` that says something only while the trainer assembles."""
    return lambda holds: always(*rules)(holds)._replace(
        holds=lambda state, laws: is_over(state) or state.trainer.status is not ASSEMBLING or holds(state, laws)
    )


@_unless_over("A1", "A3", "A6")
def gate(state: State, laws: Laws) -> bool:
    """The gate is open exactly while the next batch may be admitted."""
    if laws.promises.max_lead_versions is None:
        return True
    admits = may_lead_to(laws, state.trainer.version, state.gate.dispatch_index + 1)
    return (state.gate.status is GateState.OPEN) == admits


@_unless_over("P1", "P2")
def pool_status(state: State, laws: Laws) -> bool:
    """The pool says what it does."""
    return pool_holds(state.pool, pool_context(state, laws))


@_unless_over("X1", "A5")
def source_status(state: State, laws: Laws) -> bool:
    """The source says what is left."""
    return source_holds(state.source, source_context(state, laws))


@_unless_over("P1", "A5")
def reserve(state: State, laws: Laws) -> bool:
    """While data is left the pool has its reserve."""
    limits = laws.limits
    if not limits.uses_pool or state.source.status is not PRODUCING:
        return True
    return left_in_epoch(state.source, limits.prompts_per_epoch) >= limits.size and state.pool.spares >= limits.reserve


@_unless_over("A1", "P2")
def admitted(state: State, laws: Laws) -> bool:
    """A batch is queued, or none may be."""
    if state.queue.groups or state.gate.status is not GateState.OPEN:
        return True
    spares = state.pool.spares >= laws.limits.size and state.sheet.in_flight == 0
    return state.source.status is not PRODUCING and not spares


@_unless_over("D2")
def started(state: State, _: Laws) -> bool:
    """Nothing waits to start but for a sync."""
    return not state.waiting or state.trainer.status is SYNCING


@_unless_over("D1")
def dispatched(state: State, laws: Laws) -> bool:
    """Nothing is queued that the limits let start."""
    limits, sheet = laws.limits, state.sheet
    if not state.queue.groups or state.trainer.status is SYNCING:
        return True
    return sheet.in_flight >= limits.max_inflight or sheet.in_flight + sheet.ready >= limits.max_buffered


@_unless_over("E1")
def fresh(state: State, laws: Laws) -> bool:
    """Nothing below the window runs, or is ready while the trainer assembles."""
    window = bound_beyond_which_groups_go(laws)
    if window is None:
        return True
    oldest = state.trainer.version - window
    kept = [state.running] if state.trainer.status is not ASSEMBLING else [state.running, state.ready]
    return all(group_class.start_weight >= oldest for counts in kept for group_class, _ in pages.items(counts))


@_while_assembling("S1", "S2", "L5")
def selected(state: State, laws: Laws) -> bool:
    """Not enough is eligible for a chunk, and the step is not full."""
    limits, step = laws.limits, state.trainer.version
    want = limits.size - state.step.selected - charged(state, step)
    enough = sum(groups for _, groups in eligible_classes(state, laws, step)) >= min(limits.min_groups, want)
    return want > 0 and not enough


@_while_assembling("L6")
def floor(state: State, laws: Laws) -> bool:
    """No step below the floor is assembled."""
    return laws.limits.size - charged(state, state.trainer.version) >= laws.limits.floor


@_while_assembling("L8")
def search(state: State, laws: Laws) -> bool:
    """No step is assembled for which too many groups were filtered."""
    limit = laws.limits.max_filtered
    return limit < 0 or pages.get(state.filtered, state.trainer.version, 0) <= limit


@_while_assembling("X3")
def step_limit(state: State, laws: Laws) -> bool:
    """No step beyond the limit is assembled."""
    return laws.limits.max_steps < 0 or state.trainer.version < laws.limits.max_steps


@_unless_over("X1")
def exhausted(state: State, laws: Laws) -> bool:
    """Exhausted is a source exactly when nothing can come."""
    sheet = state.sheet
    nothing = sheet.queued == 0 and sheet.in_flight == 0 and sheet.spare < laws.limits.size
    return (state.source.status is EXHAUSTED) == (nothing and state.source.status is not PRODUCING)


@_while_assembling("X1")
def ended(state: State, laws: Laws) -> bool:
    """At exhaustion nothing is assembled but what a step still waits for."""
    if state.source.status is not EXHAUSTED:
        return True
    return not laws.limits.closes_short and (state.step.selected > 0 or state.sheet.ready > 0)


@_unless_over("L7")
def budgets(state: State, laws: Laws) -> bool:
    """A run goes on within its drop budgets."""
    limits, spent = laws.limits, state.budgets
    return spent.consecutive_dropped <= limits.max_consecutive_dropped and spent.skipped <= limits.max_skipped


MORE_ALWAYS: tuple[Always, ...] = (
    gate, pool_status, source_status, reserve, admitted, started, dispatched, fresh, selected, floor, search,
    step_limit, exhausted, ended, budgets,
)  # fmt: skip
