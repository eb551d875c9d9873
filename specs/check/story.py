"""A counterexample as a numbered story: each event, its changes, and what each open step has selected and charged."""

import re
from collections.abc import Sequence

from fsm.explain import status, waits_for
from fsm.rules.changes import Change
from fsm.rules.laws import Laws
from fsm.state import GroupClass, State, charged, selected
from fsm.values import pages
from specs.check.cases import Case, laws_in
from specs.check.concrete import Concrete
from specs.checker.explore import Result
from specs.counterexample import beginning, replay
from specs.model import CORE, Answer, initial
from specs.properties.kinds import REFUSED

EVENTS = {
    "commit": "the rollout of {it} finishes and is kept",
    "filter": "the rollout of {it} finishes with all rewards equal, and is filtered",
    "retry": "an attempt of {it} fails, and another follows",
    "back_off": "an attempt of {it} fails, and another follows after a backoff",
    "end_backoff": "the backoff of {it} ends",
    "drop": "the last attempt of {it} fails (infra): dropped",
    "skip": "the last attempt of {it} fails (data): dropped",
    "late": "an answer for an attempt of {it} that is over arrives",
    "claim_failed": "the data of {it} cannot be read",
    "chunk_trained": "the chunk is trained",
    "step_finished": "the optimizer step is done",
    "weights_synced": "the weights are synced",
    "save": "a checkpoint is written",
    "crash": "the process dies, and a new one resumes",
}


def event_text(answer: Answer, prompt: int | None) -> str:
    """The event in words, with its prompt if it is known."""
    group_class = answer.group_class
    if group_class is None:
        return EVENTS[answer.name]
    it = "a group" if prompt is None else f"prompt {prompt}"
    label = f", label {answer.label}" if answer.label else ""
    stamp = class_text(group_class)
    return EVENTS[answer.name].format(it=f"{it} ({stamp}{label})" if stamp else it)


def class_text(group_class: GroupClass) -> str:
    """The fields that the class has: "target step 1, start weight 0"."""
    defaults = group_class._field_defaults
    given = group_class._asdict().items()
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in given if value != defaults[name])


def change_text(change: Change) -> str:
    """A change: its kind in words, and its fields."""
    words = re.sub(r"(?<!^)(?=[A-Z])", " ", type(change).__name__).lower()
    fields = [(name, value) for name, value in change._asdict().items() if value not in (-1, False, 0)]
    parts = [_field_text(name, value) for name, value in fields]
    return f"{words} ({'; '.join(parts)})" if parts else words


def _field_text(name: str, value: object) -> str:
    if isinstance(value, GroupClass):
        return f"{'of' if name == 'group_class' else name} {class_text(value) or 'no stamp'}"
    if name == "picks" and isinstance(value, tuple):
        return ", ".join(f"{groups} of {class_text(group_class) or 'no stamp'}" for group_class, groups in value)
    if name == "error":
        return str(value)
    return name.replace("_", " ") if value is True else f"{name.replace('_', ' ')} {value}"


def steps_text(state: State, laws: Laws) -> str:
    """What each open step has selected and charged."""
    version = state.trainer.version
    steps = sorted({version, *(step for step, _ in pages.items(state.ledgers))})
    parts = [f"step {step}: {selected(state, step)} selected, {charged(state, step)} charged" for step in steps]
    return f"{'; '.join(parts)} of {laws.limits.size}; in flight {state.sheet.in_flight}, ready {state.sheet.ready}"


_SHOWN_CHANGES = 12
"""Changes that are shown of one event."""


def tell_story(case: Case, result: Result, with_prompts: Concrete | None) -> list[str]:
    """The counterexample, line by line."""
    laws = laws_in(case)
    refused = result.broken == REFUSED
    answers = result.counterexample[:-1] if refused else result.counterexample  # what is refused leads to no state
    told = replay(laws, case.world, CORE, answers)
    first = initial(laws)
    lines = [f"start: {steps_text(first, laws)}"]
    if not told and not refused:
        lines += _changes(beginning(laws, CORE).done)
    for number, step in enumerate(told, start=1):
        if result.cycle_start is not None and number == result.cycle_start + 1:
            lines.append("-- the cycle starts here: from its end it goes on as from here, for ever --")
        prompt = with_prompts.told[number - 1].prompt if with_prompts is not None else None
        lines.append(f"{number:>3}. {event_text(step.transition.answer, prompt)}")
        lines += _changes(step.transition.done)
        lines.append(f"     {steps_text(step.situation.state, laws)}")
    if refused:
        last = f"then: {event_text(result.counterexample[-1], None)}" if result.counterexample else "at once"
        return [*lines, last, f"the core refuses: {result.why}"]
    if result.cycle_start is not None and result.cycle_start == len(result.counterexample):
        lines.append("-- and the run stays there for ever: nothing has to happen --")
    state = told[-1].situation.state if told else first
    return [*lines, f"it is {status(state)}; {waits_for(state, laws.limits, laws.sampler_name)}"]


def _changes(done: Sequence[Change]) -> list[str]:
    return [f"     - {change_text(change)}" for change in done[:_SHOWN_CHANGES]]
