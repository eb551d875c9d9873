"""What the world's answers do to the state: one function an event, in terms of classes.

Each returns the new state and what was done, and raises nothing that the world could cause: whether an event is
legal is settled before (`fsm.core`). The core's own moves follow after each (`fsm.rules.own_moves`).
"""

from __future__ import annotations

from collections.abc import Callable

from fsm.errors import BudgetExceeded, EvenstepError, SamplerError
from fsm.events import FailureKind
from fsm.machines.admission_gate import ADMISSION_GATE, GateContext
from fsm.machines.prompt_group import TRANSFER, Tally
from fsm.machines.shortfall_ledger import SHORTFALL_LEDGER, ShortfallLedger
from fsm.machines.source import SOURCE, Source
from fsm.machines.spare_pool import SPARE_POOL
from fsm.machines.step_assembly import STEP_ASSEMBLY, want
from fsm.machines.trainer import TRAINER, TrainerContext
from fsm.rules import changes
from fsm.rules.changes import Change
from fsm.rules.laws import Laws, ledger_context, pool_context, source_context, step_context
from fsm.rules.own_moves import stop
from fsm.rules.sampler_calls import ask_abort, ask_charge
from fsm.state import NONE, Budgets, Counts, GroupClass, Queue, State, assembling_step, charged, starting
from fsm.values import pages
from fsm.values.evolve import evolver

Done = tuple[State, list[Change]]

_with_running = evolver(State, "running")
_with_answer_kept = evolver(State, "ready", "budgets", "tally")
_with_answer_filtered = evolver(State, "filtered", "budgets", "tally")
_with_backoff = evolver(State, "backing_off")
_with_retry = evolver(State, "waiting")
_with_backoff_over = evolver(State, "backing_off", "waiting")
_with_tally = evolver(State, "tally")
_with_aborted = evolver(State, "running", "tally")
_with_spare = evolver(State, "pool", "waiting", "tally")
_with_charge = evolver(State, "ledgers", "step")
_with_chunk_over = evolver(State, "trainer", "chunk", "accumulated")
_with_step_closed = evolver(State, "trainer", "ledgers", "filtered", "accumulated", "tally")
_with_step = evolver(State, "step")
_with_trainer = evolver(State, "trainer")
_committed = TRANSFER["commit"]


def leave(state: State, group_class: GroupClass) -> State:
    """An attempt is over: its group is not among those that run any more. First of what each such answer does."""
    return _with_running(state, pages.add(state.running, group_class, -1))


def commit(state: State, laws: Laws, group_class: GroupClass, label: int) -> Done:
    """A rollout finished and is kept."""
    return commit_left(leave(state, group_class), laws, group_class, label)


def commit_left(state: State, laws: Laws, group_class: GroupClass, label: int) -> Done:
    """The rest of `commit`."""
    del laws
    target_step, bucket, start_weight, replacements, unlabelled = group_class
    ready = group_class  # often the same class, and then better the same value: it is told by identity
    if replacements or label != unlabelled:
        ready = GroupClass(target_step, bucket, start_weight, 0, label)
    budgets, tally = _answered(state.budgets), _committed(state.tally, 1)
    committed = _with_answer_kept(state, pages.add(state.ready, ready, 1), budgets, tally)
    return committed, [changes.GroupCommitted(group_class, ready)]


def _answered(budgets: Budgets) -> Budgets:
    """L7: any group that finishes, kept or filtered, ends the row of dropped prompts."""
    return budgets._replace(consecutive_dropped=0) if budgets.consecutive_dropped else budgets


def filter_group(state: State, laws: Laws, group_class: GroupClass) -> Done:
    """L1: a rollout finished with all rewards equal, under dynamic sampling."""
    return filter_left(leave(state, group_class), laws, group_class)


def filter_left(state: State, laws: Laws, group_class: GroupClass) -> Done:
    """The rest of `filter_group`."""
    filtered = state.filtered
    if laws.limits.max_filtered >= 0:
        stamp = group_class.target_step
        step = assembling_step(state, laws.limits) if stamp == NONE else stamp
        filtered = pages.add(filtered, step, 1)
    state = _with_answer_filtered(state, filtered, _answered(state.budgets), TRANSFER["filter"](state.tally, 1))
    state, followed = _replace_or_lose(state, laws, group_class)
    return state, [changes.GroupFiltered(group_class), *followed]


def retry(state: State, laws: Laws, group_class: GroupClass, kind: FailureKind, backs_off: bool) -> Done:
    """L7: an attempt failed and another follows, after its backoff."""
    return retry_left(leave(state, group_class), laws, group_class, kind, backs_off)


def retry_left(state: State, laws: Laws, group_class: GroupClass, kind: FailureKind, backs_off: bool) -> Done:
    """The rest of `retry`."""
    del laws
    after = starting(group_class, NONE)
    if backs_off:
        state = _with_backoff(state, pages.add(state.backing_off, after, 1))
    else:
        state = _with_retry(state, pages.add(state.waiting, after, 1))
    return state, [changes.RetryWaits(group_class, after, kind, backs_off)]


def end_backoff(state: State, laws: Laws, group_class: GroupClass) -> Done:
    """D2: the retry may start."""
    del laws
    return (
        _with_backoff_over(
            state, pages.add(state.backing_off, group_class, -1), pages.add(state.waiting, group_class, 1)
        ),
        [changes.BackoffEnded(group_class)],
    )


def give_up(state: State, laws: Laws, group_class: GroupClass, kind: FailureKind, error: str) -> Done:
    """L7: the last attempt failed; the group is replaced or lost, or the budget stops the run."""
    return give_up_left(leave(state, group_class), laws, group_class, kind, error)


def give_up_left(state: State, laws: Laws, group_class: GroupClass, kind: FailureKind, error: str) -> Done:
    """The rest of `give_up`."""
    state = _with_tally(state, TRANSFER["drop"](state.tally, 1))
    dropped: list[Change] = [changes.GroupDropped(group_class, kind)]
    state, over = _spend_budget(state, laws, kind, error)
    if over:
        return state, dropped + over
    state, followed = _replace_or_lose(state, laws, group_class)
    return state, dropped + followed


def fail_claim(state: State, laws: Laws, group_class: GroupClass, error: str) -> Done:
    """S5: a group of the chunk in training is unreadable; it leaves the step and is lost without replacement."""
    state = state._replace(
        chunk=pages.add(state.chunk, group_class, -1),
        step=laws.fire(STEP_ASSEMBLY, "claim_failed", state.step, step_context(state, laws, 1)),
        tally=TRANSFER["claim_failed"](state.tally, 1),
    )
    failed: list[Change] = [changes.ClaimFailed(group_class)]
    state, over = _spend_budget(state, laws, FailureKind.INFRA, error)
    if over:
        return state, failed + over
    state, followed = _lose(state, laws, group_class)
    return state, failed + followed


def _spend_budget(state: State, laws: Laws, kind: FailureKind, error: str) -> Done:
    """One more prompt given up on; stops the run where that is one more than the budget."""
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
    stopped, move = stop(
        state, laws, BudgetExceeded(f"{spent} {what}; {option} allows {allowed}. The last failure was: {error}")
    )
    return stopped, [move]


def _replace_or_lose(state: State, laws: Laws, group_class: GroupClass) -> Done:
    """L2: a spare takes over the slot; else the group is lost."""
    limits = laws.limits
    if group_class.replacements >= limits.max_replacements or state.pool.spares == 0:
        return _lose(state, laws, group_class)
    target_step, bucket, _, replacements, label = group_class
    spare = GroupClass(target_step, bucket, NONE, replacements + 1, label)
    tally = TRANSFER["replace"](state.tally, 1)
    pool = laws.fire(SPARE_POOL, "draw", state.pool, pool_context(state, laws, 1))
    waiting = pages.add(state.waiting, spare, 1)
    replaced = _with_spare(state, pool, waiting, tally._replace(replaced=tally.replaced + 1))
    return replaced, [changes.GroupReplaced(spare)]


def _lose(state: State, laws: Laws, group_class: GroupClass) -> Done:
    """L3: the group is lost, and charged where the sampler charges it."""
    try:
        step = ask_charge(state, laws, group_class)
    except SamplerError as error:
        stopped, move = stop(state, laws, error)
        return stopped, [changes.GroupLost(NONE), move]
    if step is None:
        return state, [changes.GroupLost(NONE)]
    ledger = pages.get(state.ledgers, step, ShortfallLedger())
    ledger = laws.fire(SHORTFALL_LEDGER, "charge", ledger, ledger_context(state, laws, step))
    state = _with_charge(state, pages.put(state.ledgers, step, ledger), state.step)
    if step == state.trainer.version:
        state = _with_step(state, laws.fire(STEP_ASSEMBLY, "charged", state.step, step_context(state, laws)))
    return state, [changes.GroupLost(step)]


def finish_chunk(state: State, laws: Laws) -> Done:
    """The chunk in training, which claim failures may have emptied, is trained."""
    accumulated = state.accumulated
    for group_class, groups in pages.items(state.chunk):
        accumulated = pages.add(accumulated, group_class, groups)
    trainer = laws.fire(TRAINER, "chunk_trained", state.trainer, TrainerContext())
    return (
        _with_chunk_over(state, trainer, (), accumulated),
        [changes.ChunkAccumulated(state.trainer.version)],
    )


def close_step(state: State, laws: Laws) -> Done:
    """L5: the optimizer step finished. The step closes, its groups are trained, the version moves; E1 aborts."""
    limits, step = laws.limits, state.trainer.version
    lost, selected = charged(state, step), state.step.selected
    closed = laws.fire(STEP_ASSEMBLY, "close", state.step, step_context(state, laws))
    ledgers, filtered = state.ledgers, state.filtered
    ledger = pages.get(ledgers, step, None)
    if ledger is not None:
        laws.fire(SHORTFALL_LEDGER, "settle", ledger, ledger_context(state, laws, step))
        ledgers = pages.drop(ledgers, step)
    if pages.get(filtered, step, 0):
        filtered = pages.drop(filtered, step)
    trainer = laws.fire(TRAINER, "step_finished", state.trainer, TrainerContext())
    state = _with_step_closed(state, trainer, ledgers, filtered, (), TRANSFER["train"](state.tally, selected))
    state = _with_step(state, laws.fire(STEP_ASSEMBLY, "next", closed, step_context(state, laws)))
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
        tally = TRANSFER["abort"](state.tally, sum(groups for _, groups in stale))
        state = _with_aborted(state, running, tally)
        done.append(changes.GroupsAborted(stale))
    return state, done


def finish_sync(state: State, laws: Laws) -> Done:
    """Every generation worker runs the version."""
    trainer = laws.fire(TRAINER, "weights_synced", state.trainer, TrainerContext())
    return _with_trainer(state, trainer), [changes.WeightsSynced(trainer.version)]


def stop_with(state: State, laws: Laws, error: EvenstepError) -> Done:
    """The event itself stops the run: the watchdog (W2), or a custom sampler that fails."""
    state, move = stop(state, laws, error)
    return state, [move]


def _start_running_again(state: State, laws: Laws) -> Done:
    """C2: attempts that ran start again under the version, limits or not."""
    del laws
    version = state.trainer.version
    running = pages.of((starting(group_class, version), groups) for group_class, groups in pages.items(state.running))
    return state._replace(running=running), []


def _start_waiting_again(state: State, laws: Laws) -> Done:
    """C2: so do those that waited to start."""
    del laws
    return state._replace(waiting=(), running=_started(state, state.waiting)) if state.waiting else state, []


def _start_backing_off_again(state: State, laws: Laws) -> Done:
    """C2: so do those that backed off; no new process waits for an old one's backoff."""
    del laws
    backing_off = state.backing_off
    return state._replace(backing_off=(), running=_started(state, backing_off)) if backing_off else state, []


def _started(state: State, counts: Counts) -> Counts:
    version, running = state.trainer.version, state.running
    for group_class, groups in pages.items(counts):
        running = pages.add(running, starting(group_class, version), groups)
    return running


def _take_back(state: State, laws: Laws) -> Done:
    """C2: selected into the open step is ready again."""
    del laws
    if not state.chunk and not state.accumulated and not state.tally.selected:
        return state, []
    ready = state.ready
    for counts in (state.chunk, state.accumulated):
        for group_class, groups in pages.items(counts):
            ready = pages.add(ready, group_class, groups)
    tally = TRANSFER["take_back"](state.tally, state.tally.selected)
    return state._replace(ready=ready, chunk=(), accumulated=(), tally=tally), []


def _resume_machines(state: State, laws: Laws) -> Done:
    """C2: nothing that the trainer was at is under way; charges stay."""
    state = _with_trainer(state, laws.fire(TRAINER, "resume", state.trainer, TrainerContext()))
    ledgers = state.ledgers
    for step, ledger in pages.items(ledgers):
        context = ledger_context(state, laws, step)
        ledgers = pages.put(ledgers, step, laws.fire(SHORTFALL_LEDGER, "resume", ledger, context))
    return _resumed(state._replace(ledgers=ledgers), laws), [changes.RunResumed(state.trainer.version)]


def _resumed(state: State, laws: Laws) -> State:
    """The machines whose status depends on the limits, which may be others than the checkpoint's."""
    state = state._replace(source=laws.fire(SOURCE, "resume", state.source, source_context(state, laws)))
    return state._replace(
        pool=laws.fire(SPARE_POOL, "data_moved", state.pool, pool_context(state, laws)),
        step=laws.fire(STEP_ASSEMBLY, "take_back", state.step, step_context(state, laws)),
    )


RESUME: tuple[Callable[[State, Laws], Done], ...] = (
    _start_running_again,
    _start_waiting_again,
    _start_backing_off_again,
    _take_back,
    _resume_machines,
)
"""What a resume does, one after the other. Each looks at little of the state, which the checker lives on."""


def resume(state: State, laws: Laws) -> Done:
    """C2: in flight starts again at once, limits or not; selected into the open step is ready again."""
    done: list[Change] = []
    for stage in RESUME:
        state, made = stage(state, laws)
        done += made
    return state, done


def regenerate(state: State, laws: Laws) -> Done:
    """C3: another sampler, N or group size. What is not trained, and not lost, is generated again."""
    again = state.tally.leftover
    source = state.source._replace(requeued=state.source.requeued + again)
    return _with_empty_hands(state, laws, source), [changes.RunRegenerated(again)]


def replace_data(state: State, laws: Laws) -> Done:
    """C3: other data, from its start. What is not trained, and not lost, of the old data is dropped."""
    dropped = state.tally.leftover + state.source.requeued
    return _with_empty_hands(state, laws, Source()), [changes.DataReplaced(dropped)]


def _with_empty_hands(state: State, laws: Laws, source: Source) -> State:
    """C3: nothing is in hand, the trainer is at rest, and charges are dropped."""
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
        tally=_without_hands(state.tally),
        budgets=Budgets(0, state.budgets.skipped),
    )
    gate = laws.fire(ADMISSION_GATE, "restart", fresh.gate, GateContext(0, NONE, fresh.trainer.version))
    return _resumed(fresh._replace(gate=gate), laws)


def _without_hands(tally: Tally) -> Tally:
    """The tally once all that is not trained or lost counts as not pulled."""
    return tally._replace(pulled=tally.pulled - tally.leftover, spare=0, queued=0, in_flight=0, ready=0, selected=0)


def begin(laws: Laws) -> State:
    """The state of a run that has not begun."""
    return _resumed(State(), laws)
