"""What a run waits for, in one sentence that a person can act on.

`status` and `waits_for` expect a state in which the core has made all its own moves, as it has after every event.
"""

from fsm.machines.run import RunState
from fsm.machines.source import SourceState
from fsm.machines.step_assembly import want
from fsm.machines.trainer import TrainerState
from fsm.rules.outlook import dead_end, deadlocked
from fsm.state import Counts, GroupClass, Limits, State, charged
from fsm.values import pages
from fsm.wording import counted

SHOWN_CLASSES = 6
"""Classes that the sentence lists per place; the others are summed up."""


def status(state: State) -> str:
    """One of waiting_for_rollouts, training, finishing, syncing, completed, stopped, deadlocked."""
    if state.run.status is not RunState.RUNNING:
        return state.run.status.name.lower()
    if state.trainer.status is not TrainerState.ASSEMBLING:
        return state.trainer.status.name.lower()
    return "deadlocked" if deadlocked(state) else "waiting_for_rollouts"


def why_groups_are_lost(state: State, limits: Limits) -> str:
    """What makes a group lost in a run with spares, with the keys that set it (L2, L3); empty without spares."""
    if not limits.uses_pool:
        return ""
    sheet = state.sheet
    filtered = f" (all rewards equal: {counted(sheet.filtered, 'group')})" if sheet.filtered else ""
    return (
        f"A group is lost once its slot was replaced max_replacement_attempts = {limits.max_replacements} times, or if "
        f"no spare is left (replacement_reserve_prompts = {limits.reserve}); this run replaced "
        f"{counted(sheet.replaced, 'group')}{filtered}. Raise these two, or give data that is not solved yet"
    )


def class_name(group_class: GroupClass) -> str:
    """A class in words."""
    words = ("for step", "bucket", "start weight", "replacement", "label")
    fields = zip(words, group_class, GroupClass(), strict=True)
    parts = [f"{word} {given}" for word, given, default in fields if given != default]
    return ", ".join(parts) or "no stamp"


def _classes(counts: Counts) -> str:
    listed: list[str] = []
    more = 0
    for group_class, groups in pages.items(counts):
        if len(listed) < SHOWN_CLASSES:
            listed.append(f"{groups} {class_name(group_class)}")
        else:
            more += groups
    return "; ".join([*listed, f"{more} in other classes"] if more else listed)


def describe_places(state: State, limits: Limits) -> str:
    """In flight, ready, queue, gate and pool, with the counts per class."""
    sheet = state.sheet
    flight = [
        f"{name} {_classes(counts)}"
        for name, counts in (
            ("running", state.running),
            ("waiting to start", state.waiting),
            ("backing off", state.backing_off),
        )
        if counts
    ]
    parts = [
        f"in flight {sheet.in_flight} of {limits.max_inflight}" + (f" ({'; '.join(flight)})" if flight else ""),
        f"ready {sheet.ready}" + (f" ({_classes(state.ready)})" if state.ready else ""),
        f"buffer {sheet.in_flight + sheet.ready} of {limits.max_buffered}",
        f"queued {sheet.queued}",
        f"gate {state.gate.status.name.lower()} at dispatch index {state.gate.dispatch_index}",
        f"spares {sheet.spare}",
        f"data {'left' if state.source.status is SourceState.PRODUCING else 'used up'}",
    ]
    return ", ".join(parts)


def _next_answer(state: State) -> str:
    """What has to happen next where something is in flight."""
    if state.running:
        return f"next, one of {pages.total(state.running)} running rollouts must finish or fail"
    if state.backing_off:
        return f"next, one of {pages.total(state.backing_off)} backoffs must end"
    return "next, an attempt that waits must start"


def waits_for(state: State, limits: Limits, sampler_name: str) -> str:
    """What the current step waits for, where the groups in hand are, and what must happen next, or why it cannot."""
    needs, outcome = _needs(state, limits, sampler_name)
    return "; ".join(part for part in (needs, describe_places(state, limits), outcome) if part)


def waits_for_briefly(state: State, limits: Limits, sampler_name: str) -> str:
    """The same without the groups in hand."""
    needs, outcome = _needs(state, limits, sampler_name)
    return f"{needs}; {outcome}" if outcome else needs


def _needs(state: State, limits: Limits, sampler_name: str) -> tuple[str, str]:
    """What the current step waits for; and what must happen next, if it waits for groups."""
    now = status(state)
    step = state.trainer.version
    if now in ("completed", "stopped"):
        return f"the run is {now} after {counted(step, 'step')} and waits for nothing", ""
    if now == "syncing":
        return f"step {step - 1} is closed and the generation workers must load the weights of version {step}", ""
    lost = charged(state, step)
    made_up = f"step {step} has {state.step.selected} selected and {lost} charged of {limits.size}"
    if now == "training":
        return f"{made_up}; the trainer must report the chunk of {pages.total(state.chunk)} groups trained", ""
    if now == "finishing":
        return f"{made_up}; the trainer must report its optimizer step done", ""
    missing = want(limits.size, state.step.selected, lost)
    least = min(limits.min_groups, missing)
    needs = f"{made_up} and waits for {missing} more, at least {least} of them eligible at once under {sampler_name}"
    end = dead_end(state, limits, sampler_name)
    return needs, _next_answer(state) if end is None else end.why
