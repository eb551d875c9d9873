"""What an event does to the state: one function each, in terms of classes.

Each returns the new state and the changes that led to it. `fsm.core` has checked before that the event is legal, so
nothing that the world does makes these raise. The core's own moves follow (`fsm.rules.own_moves`).
"""

from fsm.errors import SamplerError
from fsm.events import FailureKind
from fsm.machines.admission_gate import ADMISSION_GATE, GateContext
from fsm.machines.prompt_group import TRANSFER
from fsm.machines.shortfall_ledger import SHORTFALL_LEDGER
from fsm.machines.source import SOURCE, Source
from fsm.machines.spare_pool import SPARE_POOL
from fsm.machines.step_assembly import STEP_ASSEMBLY, want
from fsm.machines.trainer import TRAINER, TrainerContext
from fsm.rules import changes, losses
from fsm.rules.changes import Change, Done
from fsm.rules.laws import Laws, ledger_context, pool_context, source_context, step_context
from fsm.rules.own_moves import stop
from fsm.rules.sampler_calls import ask_abort
from fsm.state import NONE, Budgets, Counts, GroupClass, Queue, State, assembling_step, charged, starting
from fsm.values import pages

_committed = TRANSFER["commit"]


def commit(state: State, _: Laws, group_class: GroupClass, label: int) -> Done:
    """A rollout finished and is kept."""
    target_step, bucket, start_weight, replacements, unlabelled = group_class
    ready = group_class  # where the class stays, so does the value: comparing it then costs nothing
    if replacements or label != unlabelled:
        ready = GroupClass(target_step, bucket, start_weight, 0, label)
    committed = state._replace(
        running=pages.add(state.running, group_class, -1),
        ready=pages.add(state.ready, ready, 1),
        budgets=_answered(state.budgets),
        sheet=_committed(state.sheet, 1),
    )
    return committed, [changes.GroupCommitted(group_class, ready)]


def _answered(budgets: Budgets) -> Budgets:
    """L7: a group that finishes, kept or filtered, ends the row of dropped prompts."""
    return budgets._replace(consecutive_dropped=0) if budgets.consecutive_dropped else budgets


def filter_group(state: State, laws: Laws, group_class: GroupClass) -> Done:
    """L1: a rollout finished with all rewards equal, under dynamic sampling."""
    filtered = state.filtered
    if laws.limits.max_filtered >= 0:
        stamp = group_class.target_step
        step = assembling_step(state, laws.limits) if stamp == NONE else stamp
        filtered = pages.add(filtered, step, 1)
    state = state._replace(
        running=pages.add(state.running, group_class, -1),
        filtered=filtered,
        budgets=_answered(state.budgets),
        sheet=TRANSFER["filter"](state.sheet, 1),
    )
    state, followed = losses.replace_or_lose(state, laws, group_class)
    return state, [changes.GroupFiltered(group_class), *followed]


def retry(state: State, _: Laws, group_class: GroupClass, kind: FailureKind, backs_off: bool) -> Done:
    """L7: an attempt failed and another follows, after its backoff."""
    running, after = pages.add(state.running, group_class, -1), starting(group_class, NONE)
    if backs_off:
        state = state._replace(running=running, backing_off=pages.add(state.backing_off, after, 1))
    else:
        state = state._replace(running=running, waiting=pages.add(state.waiting, after, 1))
    return state, [changes.RetryWaits(group_class, after, kind, backs_off)]


def end_backoff(state: State, _: Laws, group_class: GroupClass) -> Done:
    """D2: the retry may start."""
    return (
        state._replace(
            backing_off=pages.add(state.backing_off, group_class, -1), waiting=pages.add(state.waiting, group_class, 1)
        ),
        [changes.BackoffEnded(group_class)],
    )


def give_up(state: State, laws: Laws, group_class: GroupClass, kind: FailureKind, error: str) -> Done:
    """L7: the last attempt failed; the group is replaced or lost, or the budget stops the run."""
    state = state._replace(running=pages.add(state.running, group_class, -1), sheet=TRANSFER["drop"](state.sheet, 1))
    dropped: list[Change] = [changes.GroupDropped(group_class, kind)]
    state, over = losses.spend_budget(state, laws, kind, error)
    if over:
        return state, dropped + over
    state, followed = losses.replace_or_lose(state, laws, group_class)
    return state, dropped + followed


def fail_claim(state: State, laws: Laws, group_class: GroupClass, error: str) -> Done:
    """S5: a group of the chunk in training is unreadable; it leaves the step and is lost without replacement."""
    state = state._replace(
        chunk=pages.add(state.chunk, group_class, -1),
        step=laws.fire(STEP_ASSEMBLY, "claim_failed", state.step, step_context(state, laws, 1)),
        sheet=TRANSFER["claim_failed"](state.sheet, 1),
    )
    failed: list[Change] = [changes.ClaimFailed(group_class)]
    state, over = losses.spend_budget(state, laws, FailureKind.INFRA, error)
    if over:
        return state, failed + over
    state, followed = losses.lose(state, laws, group_class)
    return state, failed + followed


def finish_chunk(state: State, laws: Laws) -> Done:
    """The chunk in training, which claim failures may have emptied, is trained."""
    accumulated = state.accumulated
    for group_class, groups in pages.items(state.chunk):
        accumulated = pages.add(accumulated, group_class, groups)
    trainer = laws.fire(TRAINER, "chunk_trained", state.trainer, TrainerContext())
    return (
        state._replace(trainer=trainer, chunk=(), accumulated=accumulated),
        [changes.ChunkAccumulated(state.trainer.version)],
    )


def close_step(state: State, laws: Laws) -> Done:
    """L5: the optimizer step finished. The step closes, its groups are trained, the version moves; E1 aborts.

    The book then asks for the weight sync (`fsm/groups/book.py`, `_close`).
    """
    limits, step = laws.limits, state.trainer.version
    lost, selected = charged(state, step), state.step.selected
    closed = laws.fire(STEP_ASSEMBLY, "close", state.step, step_context(state, laws))
    ledgers, filtered = state.ledgers, state.filtered
    ledger = pages.get(ledgers, step, None)
    if ledger is not None:
        laws.fire(SHORTFALL_LEDGER, "settle", ledger, ledger_context(state, limits, step))
        ledgers = pages.drop(ledgers, step)
    if pages.get(filtered, step, 0):
        filtered = pages.drop(filtered, step)
    trainer = laws.fire(TRAINER, "step_finished", state.trainer, TrainerContext())
    state = state._replace(
        trainer=trainer,
        ledgers=ledgers,
        filtered=filtered,
        accumulated=(),
        sheet=TRANSFER["train"](state.sheet, selected),
    )
    state = state._replace(step=laws.fire(STEP_ASSEMBLY, "next", closed, step_context(state, laws)))
    done: list[Change] = [changes.StepClosed(step, selected, lost, want(limits.size, selected, lost))]
    try:
        stale = ask_abort(state, laws)
    except SamplerError as error:
        state, stopped = stop(state, laws, error)
        return state, [*done, stopped]
    if stale:
        running = state.running
        for group_class, groups in stale:
            running = pages.add(running, group_class, -groups)
        sheet = TRANSFER["abort"](state.sheet, sum(groups for _, groups in stale))
        state = state._replace(running=running, sheet=sheet)
        done.append(changes.GroupsAborted(stale))
    return state, done


def finish_sync(state: State, laws: Laws) -> Done:
    """Every generation worker runs the version."""
    trainer = laws.fire(TRAINER, "weights_synced", state.trainer, TrainerContext())
    return state._replace(trainer=trainer), [changes.WeightsSynced(trainer.version)]


def resume(state: State, laws: Laws) -> Done:
    """C2: groups in flight start again at once, limits or not; groups selected into the open step are ready again."""
    version = state.trainer.version
    running: Counts = ()
    for counts in (state.running, state.waiting, state.backing_off):
        for group_class, groups in pages.items(counts):
            running = pages.add(running, starting(group_class, version), groups)
    state = state._replace(running=running, waiting=(), backing_off=())
    if state.chunk or state.accumulated:
        ready = state.ready
        for counts in (state.chunk, state.accumulated):
            for group_class, groups in pages.items(counts):
                ready = pages.add(ready, group_class, groups)
        sheet = TRANSFER["take_back"](state.sheet, state.sheet.selected)
        state = state._replace(ready=ready, chunk=(), accumulated=(), sheet=sheet)
    ledgers = state.ledgers
    for step, ledger in pages.items(ledgers):
        context = ledger_context(state, laws.limits, step)
        ledgers = pages.put(ledgers, step, laws.fire(SHORTFALL_LEDGER, "resume", ledger, context))
    trainer = laws.fire(TRAINER, "resume", state.trainer, TrainerContext())
    return _resumed(state._replace(trainer=trainer, ledgers=ledgers), laws), [changes.RunResumed(version)]


def _resumed(state: State, laws: Laws) -> State:
    """The machines whose status depends on the limits, which may differ from the checkpoint's."""
    state = state._replace(source=laws.fire(SOURCE, "resume", state.source, source_context(state, laws)))
    return state._replace(
        pool=laws.fire(SPARE_POOL, "data_moved", state.pool, pool_context(state, laws)),
        step=laws.fire(STEP_ASSEMBLY, "take_back", state.step, step_context(state, laws)),
    )


def regenerate(state: State, laws: Laws) -> Done:
    """C3: another sampler, N or group size. Prompts that are neither trained nor lost are generated again."""
    again = state.sheet.leftover
    source = state.source._replace(requeued=state.source.requeued + again)
    return _with_empty_hands(state, laws, source), [changes.RunRegenerated(again)]


def replace_data(state: State, laws: Laws) -> Done:
    """C3: other data, from its start. Prompts of the old data that are neither trained nor lost are dropped."""
    dropped = state.sheet.leftover + state.source.requeued
    return _with_empty_hands(state, laws, Source()), [changes.DataReplaced(dropped)]


def _with_empty_hands(state: State, laws: Laws, source: Source) -> State:
    """C3: nothing is in hand, and what was counts as not pulled. The trainer is at rest, and charges are dropped."""
    pulled = state.sheet.pulled - state.sheet.leftover
    fresh = state._replace(
        source=source,
        pool=state.pool._replace(spares=0),
        trainer=laws.fire(TRAINER, "resume", state.trainer, TrainerContext()),
        ledgers=(),
        filtered=(),
        queue=Queue(),
        backing_off=(),
        waiting=(),
        running=(),
        ready=(),
        chunk=(),
        accumulated=(),
        sheet=state.sheet._replace(pulled=pulled, spare=0, queued=0, in_flight=0, ready=0, selected=0),
        budgets=Budgets(0, state.budgets.skipped),
    )
    gate = laws.fire(ADMISSION_GATE, "restart", fresh.gate, GateContext(0, NONE, fresh.trainer.version))
    return _resumed(fresh._replace(gate=gate), laws)


def begin(laws: Laws) -> State:
    """The state of a run that has not begun."""
    return _resumed(State(), laws)


def open_fresh(state: State, _: Laws) -> Done:
    """What Begin does where nothing is resumed: nothing by itself, so that the core's own moves come first."""
    return state, []
