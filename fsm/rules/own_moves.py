"""The core's own moves: after every event the first of `OWN_MOVES` that applies, again and again until none does.

Each is a function of the state that returns the new state and its change, or None where it does not apply. The order of
the list is part of the specification (docs/rules.md).
"""

from collections.abc import Callable

from fsm.errors import BelowFloor, EvenstepError, InvariantBroken, SamplerError, SearchExceeded
from fsm.machines.admission_gate import ADMISSION_GATE, GateContext, GateState, may_admit
from fsm.machines.prompt_group import TRANSFER
from fsm.machines.run import RUN, RunContext
from fsm.machines.source import SOURCE, SourceState, left_in_epoch, position
from fsm.machines.spare_pool import SPARE_POOL, PoolState
from fsm.machines.step_assembly import STEP_ASSEMBLY, StepState, want
from fsm.machines.trainer import TRAINER, TrainerContext, TrainerState
from fsm.rules import changes
from fsm.rules.changes import Change, Done, Made
from fsm.rules.laws import Laws, pool_context, source_context, step_context
from fsm.rules.sampler_calls import ask_admit, ask_evict, ask_select
from fsm.samplers.protocol import Admission
from fsm.state import NONE, GroupClass, Limits, Queue, State, charged, is_over, slots_accounted, starting
from fsm.values import pages

_FULL, _OPEN, _LOW = StepState.FULL, GateState.OPEN, PoolState.LOW  # an enum's members are slow to look up
_PRODUCING, _DRAINING, _EXHAUSTED = SourceState
_ASSEMBLING, _SYNCING = TrainerState.ASSEMBLING, TrainerState.SYNCING


OwnMove = Callable[[State, Laws], Made | None]


def complete(state: State, laws: Laws) -> Made:
    """The run is over. Prompts in hand are left over."""
    return state._replace(run=laws.fire(RUN, "complete", state.run, RunContext())), changes.RunCompleted()


def _require_accounted(state: State, laws: Laws) -> None:
    """X2: at the end of a gated run every admitted slot is selected or charged. Raises whose fault it is if not."""
    if laws.limits.closes_short or slots_accounted(state, laws.limits):
        return
    admitted = (state.gate.dispatch_index + 1) * laws.limits.size
    what = (
        f"of {admitted} slots admitted for {state.gate.dispatch_index + 1} steps some are neither selected nor charged"
    )
    if laws.is_custom:
        raise SamplerError(
            f"sampler {laws.sampler_name}: {what}. A sampler that does not close short charges every lost group, "
            f"and aborts and evicts nothing (X2)"
        )
    raise InvariantBroken(f"X2: {what}. This is a defect of evenstep; please report it with {state}")


def stop(state: State, laws: Laws, error: EvenstepError) -> Made:
    """The run is over, with an error."""
    return state._replace(run=laws.fire(RUN, "stop", state.run, RunContext())), changes.RunStopped(error)


def stop_with(state: State, laws: Laws, error: EvenstepError) -> Done:
    """The same as an event's transition: the watchdog (W2), a budget, or a custom sampler that fails stops the run."""
    state, change = stop(state, laws, error)
    return state, [change]


def complete_at_step_limit(state: State, laws: Laws) -> Made | None:
    """X3: that many steps are closed and their weights synced."""
    limit = laws.limits.max_steps
    return complete(state, laws) if 0 <= limit <= state.trainer.version else None


def evict(state: State, laws: Laws) -> Made | None:
    """E1: ready groups that the sampler evicts."""
    if not state.ready or laws.evicts_nothing:
        return None
    picks = ask_evict(state, laws)
    if not picks:
        return None
    ready = state.ready
    for group_class, groups in picks:
        ready = pages.add(ready, group_class, -groups)
    sheet = TRANSFER["evict"](state.sheet, sum(groups for _, groups in picks))
    return state._replace(ready=ready, sheet=sheet), changes.GroupsEvicted(picks)


def stop_below_floor(state: State, laws: Laws) -> Made | None:
    """L6: the step lost more groups than the fraction allows."""
    limits = laws.limits
    if not state.ledgers:
        return None
    step = state.trainer.version
    lost = charged(state, step)
    if limits.size - lost >= limits.floor:
        return None
    assembly = laws.fire(STEP_ASSEMBLY, "fall_below", state.step, step_context(state, laws))
    error = BelowFloor(
        f"step {step} lost {lost} of its {limits.size} groups and can train on {limits.size - lost} at most; "
        f"min_step_batch_fraction asks for at least {limits.floor}. Lower min_step_batch_fraction, or make the "
        f"losses rarer: more attempts, a longer deadline, or on_dropped_prompt: replace"
    )
    return stop(state._replace(step=assembly), laws, error)


def stop_search(state: State, laws: Laws) -> Made | None:
    """L8: dynamic sampling filtered too many groups for the step."""
    limit = laws.limits.max_filtered
    if limit < 0:
        return None
    step = state.trainer.version
    filtered = pages.get(state.filtered, step, 0)
    if filtered <= limit:
        return None
    batches = limit // laws.limits.size
    error = SearchExceeded(
        f"{filtered} groups were filtered for step {step}, more than dynamic_sampling_max_gen_batches × "
        f"num_prompts_per_step = {batches} × {laws.limits.size} = {limit}. The task is too easy or too hard for "
        f"the policy as it is; change the data, or raise dynamic_sampling_max_gen_batches"
    )
    return stop(state, laws, error)


def _ask_to_finish(state: State, laws: Laws, event: str) -> Made:
    context = step_context(state, laws)
    assembly = laws.fire(STEP_ASSEMBLY, event, state.step, context)
    trainer = laws.fire(TRAINER, "finish", state.trainer, TrainerContext())
    short = want(context.size, assembly.selected, context.charged)
    finishing = changes.StepFinishing(state.trainer.version, assembly.selected, context.charged, short)
    return state._replace(step=assembly, trainer=trainer), finishing


def finish_step(state: State, laws: Laws) -> Made | None:
    """L5: the step is full and no chunk is in training."""
    return _ask_to_finish(state, laws, "finish") if state.step.status is _FULL else None


def _take(state: State, laws: Laws, picks: changes.Picks) -> Made:
    """S4: selection and its accounting are one transition."""
    groups = sum(taken for _, taken in picks)
    ready, chunk = state.ready, state.chunk
    for group_class, taken in picks:
        ready = pages.add(ready, group_class, -taken)
        chunk = pages.add(chunk, group_class, taken)
    step = laws.fire(STEP_ASSEMBLY, "select", state.step, step_context(state, laws, groups))
    trainer = laws.fire(TRAINER, "train_chunk", state.trainer, TrainerContext(groups))
    selected = state._replace(
        ready=ready, chunk=chunk, step=step, trainer=trainer, sheet=TRANSFER["select"](state.sheet, groups)
    )
    return selected, changes.ChunkSelected(state.trainer.version, picks)


def select(state: State, laws: Laws) -> Made | None:
    """S1: a chunk, as soon as enough groups are eligible."""
    ready = state.sheet.ready
    if not ready:
        return None
    needed = want(laws.limits.size, state.step.selected, charged(state, state.trainer.version))
    least = min(laws.limits.min_groups, needed)
    if ready < least and not laws.is_custom:  # a custom sampler is asked, and checked, whenever groups are ready
        return None
    picks = ask_select(state, laws, least, needed)
    return _take(state, laws, picks) if picks else None


def end_at_exhaustion(state: State, laws: Laws) -> Made | None:
    """X1: complete the run, or close its last step short."""
    if state.source.status is not _EXHAUSTED:
        return None
    if state.step.selected == 0 and state.sheet.ready == 0:
        _require_accounted(state, laws)
        return complete(state, laws)
    if not laws.limits.closes_short:
        return None
    needed = want(laws.limits.size, state.step.selected, charged(state, state.trainer.version))
    picks: changes.Picks = ()
    for least in range(min(needed, state.sheet.ready), 0, -1):
        picks = ask_select(state, laws, least, needed)
        if picks:
            break
    if state.step.selected + sum(groups for _, groups in picks) < laws.limits.floor:
        return complete(state, laws)
    return _take(state, laws, picks) if picks else _ask_to_finish(state, laws, "close_short")


def _pull(state: State, laws: Laws, groups: int) -> State:
    return state._replace(source=laws.fire(SOURCE, "pull", state.source, source_context(state, laws, groups)))


def refill_pool(state: State, laws: Laws) -> Made | None:
    """P1: a whole batch where the pool is below its reserve. A5: an epoch's trailing batch, at once."""
    limits = laws.limits
    if not limits.max_replacements or state.source.status is not _PRODUCING:
        return None
    left = left_in_epoch(state.source, limits.prompts_per_epoch)
    if left >= limits.size and state.pool.status is not _LOW:
        return None
    groups = min(left, limits.size)
    pulled = _pull(state, laws, groups)
    pool = laws.fire(SPARE_POOL, "stock", state.pool, pool_context(pulled, laws, groups))
    sheet = TRANSFER["hold_back"](state.sheet, groups)
    return pulled._replace(pool=pool, sheet=sheet), changes.PromptsHeldBack(groups, _first_prompt(state, laws))


def _gate_context(state: State, admission: Admission | None, limits: Limits) -> GateContext:
    """A6 bounds a gated sampler; one that closes short is not."""
    bound = NONE if limits.closes_short else limits.max_steps
    return GateContext(int(admission is not None), bound, state.trainer.version)


def move_gate(state: State, laws: Laws) -> Made | None:
    """A3: the gate opens or closes on the event that does it."""
    context = _gate_context(state, ask_admit(state, laws), laws.limits)
    admits = may_admit(state.gate, context)
    if admits == (state.gate.status is _OPEN):
        return None
    gate = laws.fire(ADMISSION_GATE, "open" if admits else "close", state.gate, context)
    return state._replace(gate=gate), changes.GateMoved(admits)


def _first_prompt(state: State, laws: Laws) -> int:
    """The number of the next prompt in dataloader order; a prompt of a second epoch is another prompt (X4)."""
    return laws.limits.first_prompt + position(state.source, laws.limits.prompts_per_epoch)


def _admitted(state: State, laws: Laws, groups: int, admission: Admission, from_spares: bool) -> Made:
    target = NONE if admission.target_step is None else admission.target_step
    bucket = NONE if admission.bucket is None else admission.bucket
    first = NONE if from_spares else _first_prompt(state, laws)
    return (
        state._replace(
            gate=laws.fire(ADMISSION_GATE, "admit", state.gate, _gate_context(state, admission, laws.limits)),
            queue=Queue(target, bucket, groups),
            sheet=TRANSFER["admit_spares" if from_spares else "admit"](state.sheet, groups),
        ),
        changes.BatchAdmitted(groups, target, bucket, first, from_spares),
    )


def _fickle(laws: Laws) -> SamplerError:
    return SamplerError(
        f"sampler {laws.sampler_name}: admit returned different values for the same view. It must be a function of the "
        f"view alone, so that the gate moves on the event that moves it (A3)"
    )


def batch_is_left(state: State, limits: Limits) -> bool:
    """A batch could be admitted: of the data (A1), or of spares once nothing else is left (P2)."""
    if state.source.status is _PRODUCING:
        return True
    return not state.sheet.in_flight and state.pool.spares >= limits.size


def admit(state: State, laws: Laws) -> Made | None:
    """A1: the next batch when nothing is queued; P2: a batch of spares once nothing else is left."""
    if state.queue.groups or state.gate.status is not _OPEN:
        return None
    limits = laws.limits
    if not batch_is_left(state, limits):
        return None
    admission = ask_admit(state, laws)
    if admission is None:
        raise _fickle(laws)
    if state.source.status is not _PRODUCING:
        pool = laws.fire(SPARE_POOL, "draw", state.pool, pool_context(state, laws, limits.size))
        drawn, change = _admitted(state, laws, limits.size, admission, from_spares=True)
        return drawn._replace(pool=pool), change
    groups = min(left_in_epoch(state.source, limits.prompts_per_epoch), limits.size)
    admitted, change = _admitted(state, laws, groups, admission, from_spares=False)
    pulled = _pull(admitted, laws, groups)
    if pulled.source.status is not _PRODUCING:
        pool = laws.fire(SPARE_POOL, "data_moved", pulled.pool, pool_context(pulled, laws))
        pulled = pulled._replace(pool=pool)
    return pulled, change


def start_waiting(state: State, _: Laws) -> Made | None:
    """D2: attempts that wait start, unless a sync is under way; before anything from the queue."""
    if not state.waiting or state.trainer.status is _SYNCING:
        return None
    version = state.trainer.version
    running = state.running
    for group_class, groups in pages.items(state.waiting):
        running = pages.add(running, starting(group_class, version), groups)
    return state._replace(waiting=(), running=running), changes.WaitingStarted(version)


def dispatch(state: State, laws: Laws) -> Made | None:
    """D1: as many queued prompts as the limits allow."""
    queue, sheet, limits = state.queue, state.sheet, laws.limits
    if not queue.groups or state.trainer.status is _SYNCING:
        return None
    groups = min(
        queue.groups,
        limits.max_buffered - sheet.in_flight - sheet.ready,
        limits.max_inflight - sheet.in_flight,
    )
    if groups <= 0:
        return None
    started = GroupClass(queue.target_step, queue.bucket, state.trainer.version)
    left = queue.groups - groups
    dispatched = state._replace(
        queue=Queue(queue.target_step, queue.bucket, left) if left else Queue(),
        running=pages.add(state.running, started, groups),
        sheet=TRANSFER["dispatch"](sheet, groups),
    )
    return dispatched, changes.QueueDispatched(started, groups)


def exhaust(state: State, laws: Laws) -> Made | None:
    """X1's premise: no data, nothing queued, nothing in flight, no whole batch of spares."""
    sheet = state.sheet
    if state.source.status is not _DRAINING or sheet.queued or sheet.in_flight or sheet.spare >= laws.limits.size:
        return None
    source = laws.fire(SOURCE, "exhaust", state.source, source_context(state, laws))
    return state._replace(source=source), changes.SourceExhausted()


WHILE_ASSEMBLING: tuple[OwnMove, ...] = (
    complete_at_step_limit,
    evict,
    stop_below_floor,
    stop_search,
    finish_step,
    select,
    end_at_exhaustion,
)
"""These apply only while the trainer is assembling: neither training a chunk, nor finishing, nor syncing."""

ALWAYS: tuple[OwnMove, ...] = (refill_pool, move_gate, admit, start_waiting, dispatch, exhaust)
"""`move_gate` and `exhaust` record what the others made true, so each stands where that is first needed."""

OWN_MOVES = WHILE_ASSEMBLING + ALWAYS


_WHILE_THE_GATE_STAYS = tuple(own_move for own_move in OWN_MOVES if own_move is not move_gate)
_ALWAYS_WHILE_THE_GATE_STAYS = tuple(own_move for own_move in ALWAYS if own_move is not move_gate)


def next_move(state: State, laws: Laws, settled: State | None = None) -> Made | None:
    """The first of the core's own moves that applies, or None where none does.

    `settled` is an earlier state in which none did. A built-in sampler admits by dispatch index and version alone, so
    it need not be asked about the gate again where gate and trainer are as they were then.
    """
    if is_over(state):
        return None
    assembling = state.trainer.status is _ASSEMBLING
    if settled is not None and state.gate is settled.gate and state.trainer is settled.trainer and not laws.is_custom:
        candidates = _WHILE_THE_GATE_STAYS if assembling else _ALWAYS_WHILE_THE_GATE_STAYS
    else:
        candidates = OWN_MOVES if assembling else ALWAYS
    try:
        for own_move in candidates:
            made = own_move(state, laws)
            if made is not None:
                return made
    except SamplerError as error:
        return stop(state, laws, error)
    return None


def settle(state: State, laws: Laws, settled: State | None = None) -> tuple[State, list[Change]]:
    """Make the core's own moves until none applies; `settled` as in `next_move`."""
    done: list[Change] = []
    while (made := next_move(state, laws, settled)) is not None:
        if isinstance(made[1], changes.GateMoved) and done and isinstance(done[-1], changes.GateMoved):
            made = stop(state, laws, _fickle(laws))
        state, change = made
        done.append(change)
    return state, done
