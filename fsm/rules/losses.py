"""Losses: a filtered or dropped group is replaced from the spare pool (L2), or lost and charged to a step (L3, L4).

The budgets of dropped prompts are here too (L7). Which step is charged, the sampler decides
(`charge_step_for_lost_group` in `fsm.samplers.protocol`). Firing `charge` adds one to that step's ledger, and refuses
where the step has no place left; firing `charged` makes the step being assembled full once selected + charged = N.
"""

from fsm.errors import BudgetExceeded, SamplerError
from fsm.events import FailureKind
from fsm.machines.prompt_group import TRANSFER
from fsm.machines.shortfall_ledger import SHORTFALL_LEDGER, ShortfallLedger
from fsm.machines.spare_pool import SPARE_POOL
from fsm.machines.step_assembly import STEP_ASSEMBLY
from fsm.rules import changes
from fsm.rules.changes import Done
from fsm.rules.laws import Laws, ledger_context, pool_context, step_context
from fsm.rules.own_moves import stop, stop_with
from fsm.rules.sampler_calls import call, refuse
from fsm.samplers.protocol import optional
from fsm.state import NONE, GroupClass, State, assembling_step, charged, selected
from fsm.values import pages


def spend_budget(state: State, laws: Laws, kind: FailureKind, error: str) -> Done:
    """L7: one more prompt is given up on. The run stops with `error` where that is one more than the budget."""
    limits, budgets = laws.limits, state.budgets
    if kind is FailureKind.INFRA:
        budgets = budgets._replace(consecutive_dropped=budgets.consecutive_dropped + 1)
        spent, allowed = budgets.consecutive_dropped, limits.max_consecutive_dropped
        option, what = "max_consecutive_dropped_prompts", "prompts in a row were given up on after infra failures"
    else:
        budgets = budgets._replace(skipped=budgets.skipped + 1)
        spent, allowed = budgets.skipped, limits.max_skipped
        option, what = "max_skipped_prompts", "prompts were given up on after data failures"
    state = state._replace(budgets=budgets)
    if spent <= allowed:
        return state, []
    exceeded = BudgetExceeded(f"{spent} {what}; {option} allows {allowed}. The last failure was: {error}")
    return stop_with(state, laws, exceeded)


def replace_or_lose(state: State, laws: Laws, group_class: GroupClass) -> Done:
    """L2: a spare takes over the slot, with its stamp; where no spare may, the group is lost.

    Where spares are not used at all, `max_replacements` is 0.
    """
    if group_class.replacements >= laws.limits.max_replacements or state.pool.spares == 0:
        return lose(state, laws, group_class)
    target_step, bucket, _, replacements, label = group_class
    spare = GroupClass(target_step, bucket, NONE, replacements + 1, label)
    sheet = TRANSFER["replace"](state.sheet, 1)
    replaced = state._replace(
        pool=laws.fire(SPARE_POOL, "draw", state.pool, pool_context(state, laws, 1)),
        waiting=pages.add(state.waiting, spare, 1),
        sheet=sheet._replace(replaced=sheet.replaced + 1),
    )
    return replaced, [changes.GroupReplaced(spare)]


def lose(state: State, laws: Laws, group_class: GroupClass) -> Done:
    """L3: the group is gone for good, and the step that the sampler names is charged; that may make the step full."""
    try:
        step = ask_charge(state, laws, group_class)
    except SamplerError as error:
        stopped, change = stop(state, laws, error)
        return stopped, [changes.GroupLost(NONE), change]
    if step is None:
        return state, [changes.GroupLost(NONE)]
    ledger = pages.get(state.ledgers, step, ShortfallLedger())
    ledger = laws.fire(SHORTFALL_LEDGER, "charge", ledger, ledger_context(state, laws.limits, step))
    state = state._replace(ledgers=pages.put(state.ledgers, step, ledger))
    if step == state.trainer.version:
        # Its context reads the ledger that was just replaced. A later step reads its ledger when it opens.
        state = state._replace(step=laws.fire(STEP_ASSEMBLY, "charged", state.step, step_context(state, laws)))
    return state, [changes.GroupLost(step)]


def ask_charge(state: State, laws: Laws, group_class: GroupClass) -> int | None:
    """The step to charge, as the sampler decides, or None (L3). SamplerError where that step has no place (L4)."""
    method, size, version = "charge_step_for_lost_group", laws.limits.size, state.trainer.version
    assembling = assembling_step(state, laws.limits)
    target = optional(group_class.target_step)
    step = call(laws, method, lambda: laws.accounting.charge_step_for_lost_group(target, assembling))
    if step is None:
        return None
    if type(step) is not int:
        raise refuse(laws, method, f"returned {step!r}", "a step's number or None")
    chosen, lost = selected(state, step), charged(state, step)
    if version <= step <= max(assembling, state.gate.dispatch_index) and chosen + lost < size:
        return step
    if step < version:
        what = "which is closed"
    elif chosen + lost >= size:
        what = f"which is full: selected {chosen} + charged {lost} of {size}"
    else:
        what = f"for which no batch is admitted: the dispatch index is {state.gate.dispatch_index}"
    said = f"charges a lost group of {group_class} to step {step}, {what}"
    raise refuse(laws, method, said, f"an open step with a place left (L4); the version is {version}")
