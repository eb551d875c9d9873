"""C1 to C3: the control part of a checkpoint, to and from plain JSON.

`snapshot` writes the core down as it is. What a resume changes, the rules do when the restored core begins
(`on_event.resume`, `on_event.regenerate`, `on_event.replace_data`).
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Any

from fsm.config.setup import Setup
from fsm.core import AppliedEvent, Core
from fsm.effects import StepClosed
from fsm.errors import ConfigError, IllegalSnapshot
from fsm.groups.roster import Group, Roster
from fsm.machines.admission_gate import AdmissionGate, GateState
from fsm.machines.prompt_group import BalanceSheet
from fsm.machines.run import Run, RunState
from fsm.machines.shortfall_ledger import LedgerState, ShortfallLedger
from fsm.machines.source import Source, SourceState, position
from fsm.machines.spare_pool import PoolState, SparePool
from fsm.machines.step_assembly import StepAssembly, StepState
from fsm.machines.trainer import Trainer, TrainerState
from fsm.rules import on_event
from fsm.snapshot_form import (
    COUNTS,
    FORMAT,
    IN_FLIGHT,
    keeps_every_slot,
    require_agreement,
    require_form,
    require_lists,
)
from fsm.state import Budgets, Counts, GroupClass, Queue, State, is_over, slots_accounted
from fsm.values import pages
from fsm.wording import are, counted

Json = dict[str, Any]


def snapshot(core: Core) -> Json:
    """The control part of a checkpoint: plain JSON, the same bytes for the same events."""
    book, state = core.book, core.state
    roster = book.roster
    return {
        "format": FORMAT,
        "sampler": core.setup.sampler_name,
        "sampler_stamps_target_steps": book.stamps_target_steps,
        "sampler_keeps_every_slot": _keeps_every_slot(core),
        "num_prompts_per_step": core.limits.size,
        "num_generations_per_prompt": core.setup.config.grpo.num_generations_per_prompt,
        "prompts_per_epoch": core.limits.prompts_per_epoch,
        "first_prompt": core.limits.first_prompt,
        "incarnation": book.incarnation,
        "state": _state_to_json(state),
        "closed": [list(closed) for closed in book.closed],
        "next_dispatch": roster.next_dispatch,
        "next_slot": roster.next_slot,
        "next_chunk": book.next_chunk,
        "again": list(roster.again),
        "spares": list(roster.spares),
        "queue": list(roster.queue),
        "running": [
            _group_to_json(g) for g in roster.in_order() if g.dispatch in roster.running.get(g.group_class, ())
        ],
        "waiting": [_group_to_json(group) for group in roster.waiting.values()],
        "backing_off": [_group_to_json(group) for group in roster.backing_off.values()],
        "ready": [_group_to_json(group) for group in sorted(roster.ready_groups(), key=lambda g: g.dispatch)],
        "chunk": [_group_to_json(group) for group in roster.chunk.values()],
        "accumulated": [_group_to_json(group) for group in roster.accumulated],
    }


def for_other_data(saved: Json) -> Json:
    """C3: a copy of `saved` from which `restore` goes on with other data.

    The prompts of the other data are numbered from the first number that the old data has not reached. Raises
    IllegalSnapshot as `restore` does.
    """
    require_form(saved)
    source = _source_from_json(saved["state"]["source"])
    first_prompt = saved.get("first_prompt", 0) + position(source, saved["prompts_per_epoch"])
    return {**saved, "first_prompt": first_prompt, "other_data": True}


def restore(
    setup: Setup,
    saved: Json,
    *,
    incarnation: int | None = None,
    observer: Callable[[AppliedEvent], None] | None = None,
    make_core: Callable[..., Core] = Core,
) -> Core:
    """A core that goes on from a snapshot; its first event is `Begin`, whose effects start rollouts again.

    `incarnation` tells the attempts of this process from those of every earlier one. None stands for one more than the
    snapshot's, which is right unless the run is resumed twice from the same snapshot. Under another sampler, N or
    number of generations, prompts that are not trained are generated again; with other data (`for_other_data`) they are
    dropped (C3). `core.notices` says so. A run that was over goes on as far as today's limits allow.

    Raises IllegalSnapshot for a snapshot that no core wrote or that has another format, and ConfigError for other data
    without `for_other_data`.
    """
    _refuse_foreign(setup, saved)
    core = make_core(_with_numbers_of(setup, saved), observer=observer)
    ended = RunState(saved["state"]["run"][0])
    beyond = _replaced_beyond(saved, setup.limits.max_replacements)
    capped = _capped(saved, setup.limits.max_replacements) if beyond else saved
    _take_up(core, capped)
    require_agreement(capped, core.state, core.book, core.limits)
    if ended is not RunState.RUNNING:
        then = core.limits._replace(size=saved["num_prompts_per_step"])
        if keeps_every_slot(saved) and not slots_accounted(core.state, then):
            raise IllegalSnapshot(
                "the snapshot is of a run that a budget stopped, taken after the prompt was dropped, and no step was "
                "charged for its slot (L7): take it when the core calls `before_stop`, or resume from an earlier one"
            )
        core.state = core.state._replace(run=Run())
        taken = counted(core.state.trainer.version, "step")
        core.notices.append(
            f"the checkpoint is of a run that was {ended.name.lower()} after {taken}: it goes on as far as today's "
            f"limits allow"
        )
    if incarnation is None:
        incarnation = saved["incarnation"] + 1
    core.book.incarnation = incarnation
    replaced, changed = bool(saved.get("other_data")), _changes(setup, saved)
    if replaced:
        sheet = core.state.sheet
        dropped = sheet.leftover + core.state.source.requeued
        core.notices.append(
            f"the checkpoint was written with other data: weights, optimizer and its "
            f"{counted(sheet.trained, 'trained prompt')} stay; {counted(dropped, 'prompt')} of the old data that "
            f"{are(dropped)} not trained yet {are(dropped)} dropped, charges are too, and the new data is "
            f"read from its start, as prompts {core.limits.first_prompt} and up (C3)"
        )
    elif changed:
        left = core.state.sheet.leftover
        core.notices.append(
            f"the checkpoint was written under {changed}: weights, optimizer and trained prompts stay; "
            f"{counted(left, 'prompt')} that {are(left)} not trained yet {are(left)} generated again, ahead of the "
            f"rest of the data, and charges are dropped (C3)"
        )
    elif _leads_too_far(core):
        core.notices.append(
            f"the checkpoint was written under a larger window: dispatch index {core.state.gate.dispatch_index} at "
            f"version {core.state.trainer.version}; the batches in hand keep their stamps, so staleness exceeds the "
            f"new window until they are trained"
        )
    if beyond and not changed and not replaced:
        core.notices.append(
            f"the checkpoint was written under more replacements: {counted(beyond, 'slot')} in flight had more than "
            f"now allowed ({setup.limits.max_replacements}), with no further one to come (L2)"
        )
    regenerates = on_event.regenerate if changed else on_event.resume
    core.opening = on_event.replace_data if replaced else regenerates
    return core


def reinstate(
    setup: Setup, saved: Json, *, closed_before: int = 0, observer: Callable[[AppliedEvent], None] | None = None
) -> Core:
    """The core exactly as it was: nothing is resumed, and the event that came next may be applied.

    For readers of a trace. Its snapshots list only the steps closed since the snapshot before: `closed_before` is how
    many were closed earlier. A state that breaks a rule is accepted, so that a reader can explain it. So is a run that
    is over, whose `core.error` is then unknown. Raises IllegalSnapshot for parts or a format that are not a core's.
    """
    require_form(saved)
    core = Core(_with_numbers_of(setup, saved), observer=observer)
    _take_up(core, saved, closed_before)
    core.has_begun = True
    return core


def _with_numbers_of(setup: Setup, saved: Json) -> Setup:
    """The setup, with prompts numbered as in the snapshot; snapshots of earlier versions start at 0."""
    return setup._replace(limits=setup.limits._replace(first_prompt=saved.get("first_prompt", 0)))


def _take_up(core: Core, saved: Json, closed_before: int = 0) -> None:
    book, roster = core.book, core.book.roster
    book.incarnation = saved["incarnation"]
    book.closed = [StepClosed(*closed) for closed in saved["closed"]]
    book.next_chunk = saved["next_chunk"]
    book.stamps_target_steps = saved["sampler_stamps_target_steps"]
    core.state = _state_from_json(saved["state"])
    require_lists(saved, core.state, closed_before)
    roster.next_dispatch, roster.next_slot = saved["next_dispatch"], saved["next_slot"]
    roster.again, roster.spares, roster.queue = (deque(saved[key]) for key in ("again", "spares", "queue"))
    _fill(roster, saved)


def _refuse_foreign(setup: Setup, saved: Json) -> None:
    require_form(saved)
    if saved["prompts_per_epoch"] != setup.limits.prompts_per_epoch and not saved.get("other_data"):
        raise ConfigError(
            f"the snapshot was written with {saved['prompts_per_epoch']} prompts an epoch, the data has "
            f"{setup.limits.prompts_per_epoch}: prompt numbers would name other prompts. Resume with the same data, or "
            f"say that it is other data (evenstep train --new-data)"
        )


def _changes(setup: Setup, saved: Json) -> str:
    """Which options changed so that the groups in hand cannot be kept; '' for none."""
    changed = []
    if saved["sampler"] != setup.sampler_name:
        changed.append(f"sampler {saved['sampler']}, now {setup.sampler_name}")
    if saved["num_prompts_per_step"] != setup.limits.size:
        changed.append(f"num_prompts_per_step {saved['num_prompts_per_step']}, now {setup.limits.size}")
    siblings = setup.config.grpo.num_generations_per_prompt
    if saved.get("num_generations_per_prompt", siblings) != siblings:
        changed.append(f"num_generations_per_prompt {saved['num_generations_per_prompt']}, now {siblings}")
    return " and ".join(changed)


def _leads_too_far(core: Core) -> bool:
    """Dispatch leads the trainer by more than the sampler now promises."""
    lead = core.laws.promises.max_lead_versions
    return lead is not None and core.state.gate.dispatch_index > core.state.trainer.version + lead


_REPLACEMENTS = GroupClass._fields.index("replacements")


def _replaced_beyond(saved: Json, most: int) -> int:
    """Groups in flight whose slot has had more replacements than `most`."""
    return sum(group[-1][_REPLACEMENTS] > most for place in IN_FLIGHT for group in saved[place])


def _capped(saved: Json, most: int) -> Json:
    """The snapshot with `most` replacements for those slots: to the rules, more is the same (L2)."""

    def capped(group_class: list[int]) -> list[int]:
        replacements = min(group_class[_REPLACEMENTS], most)
        return [*group_class[:_REPLACEMENTS], replacements, *group_class[_REPLACEMENTS + 1 :]]

    groups = {place: [[*group[:-1], capped(group[-1])] for group in saved[place]] for place in IN_FLIGHT}
    counts = {place: _merged(map(capped, saved["state"][place])) for place in IN_FLIGHT}
    return {**saved, **groups, "state": {**saved["state"], **counts}}


def _merged(rows: Iterable[list[int]]) -> list[list[int]]:
    """Classes and their groups, each class once and in order."""
    groups: Counter[tuple[int, ...]] = Counter()
    for *group_class, count in rows:
        groups[tuple(group_class)] += count
    return [[*group_class, count] for group_class, count in sorted(groups.items())]


def _group_to_json(group: Group) -> list[Any]:
    failures = [group.infra_failures, group.data_failures]
    return [group.prompt, group.slot, group.dispatch, *failures, list(group.group_class)]


def _group_from_json(saved: list[Any]) -> Group:
    prompt, slot, dispatch, infra, data, group_class = saved
    group = Group(prompt, slot, GroupClass(*group_class))
    group.dispatch, group.infra_failures, group.data_failures = dispatch, infra, data
    return group


def _fill(roster: Roster, saved: Json) -> None:
    for group in map(_group_from_json, saved["running"]):
        roster.in_flight[group.prompt] = group
        roster.running.setdefault(group.group_class, {})[group.dispatch] = group
    for group in map(_group_from_json, saved["waiting"]):
        roster.wait(group, group.group_class)
    for group in map(_group_from_json, saved["backing_off"]):
        roster.in_flight[group.prompt] = group
        roster.back_off(group, group.group_class)
    for group in map(_group_from_json, saved["ready"]):
        roster.make_ready(group, group.group_class)
    roster.chunk = {group.prompt: group for group in map(_group_from_json, saved["chunk"])}
    roster.accumulated = [_group_from_json(group) for group in saved["accumulated"]]


def _keeps_every_slot(core: Core) -> bool:
    """Whether a resume may count on every slot (X2): the sampler promises it, and a custom one has kept it so far."""
    promised = core.laws.promises.keeps_every_slot and not core.limits.closes_short
    broken = core.laws.is_custom and not is_over(core.state) and not slots_accounted(core.state, core.limits)
    return promised and not broken


def _state_to_json(state: State) -> Json:
    parts = state._asdict()
    counts = {name: [[*group_class, n] for group_class, n in pages.items(parts[name])] for name in COUNTS}
    return {
        **{name: list(parts[name]) for name in ("run", "source", "pool", "gate", "trainer", "step")},
        "ledgers": [[step, *ledger] for step, ledger in pages.items(state.ledgers)],
        "filtered": [list(pair) for pair in pages.items(state.filtered)],
        "queue": list(state.queue),
        "budgets": list(state.budgets),
        "tally": list(state.sheet),
        **counts,
    }


def _counts(saved: list[list[int]]) -> Counts:
    return pages.of((GroupClass(*entry[:-1]), entry[-1]) for entry in saved)


def _source_from_json(saved: list[int]) -> Source:
    return Source(SourceState(saved[0]), *saved[1:])


def _state_from_json(plain: Json) -> State:
    ledgers: pages.Pages[int, ShortfallLedger] = ()
    for step, status, lost in plain["ledgers"]:
        ledgers = pages.put(ledgers, step, ShortfallLedger(LedgerState(status), lost))
    return State(
        run=Run(RunState(plain["run"][0])),
        source=_source_from_json(plain["source"]),
        pool=SparePool(PoolState(plain["pool"][0]), *plain["pool"][1:]),
        gate=AdmissionGate(GateState(plain["gate"][0]), *plain["gate"][1:]),
        trainer=Trainer(TrainerState(plain["trainer"][0]), *plain["trainer"][1:]),
        step=StepAssembly(StepState(plain["step"][0]), *plain["step"][1:]),
        ledgers=ledgers,
        filtered=pages.of((step, groups) for step, groups in plain["filtered"]),
        queue=Queue(*plain["queue"]),
        budgets=Budgets(*plain["budgets"]),
        sheet=BalanceSheet(*plain["tally"]),
        **{name: _counts(plain[name]) for name in COUNTS},
    )
