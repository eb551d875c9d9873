"""What a snapshot must be before a core goes on from it: its form, part by part, and that its parts agree (C1).

A snapshot comes from a disk, so it may be damaged or made up. Everything that is wrong with it is an IllegalSnapshot
that names the part, the value and what is expected there.
"""

from collections.abc import Callable, Iterator, Mapping
from enum import IntEnum
from itertools import pairwise
from typing import Any, get_type_hints

from fsm.config.wording import given_as
from fsm.effects import StepClosed
from fsm.errors import IllegalSnapshot
from fsm.groups.book import Book
from fsm.groups.invariants import faults
from fsm.machines.admission_gate import AdmissionGate
from fsm.machines.prompt_group import BalanceSheet
from fsm.machines.run import Run, RunState
from fsm.machines.shortfall_ledger import SHORTFALL_LEDGER, LedgerState, ShortfallLedger
from fsm.machines.source import Source
from fsm.machines.spare_pool import SparePool
from fsm.machines.step_assembly import StepAssembly, StepState
from fsm.machines.table import fire
from fsm.machines.trainer import Trainer, TrainerState
from fsm.rules.laws import ledger_context
from fsm.state import NONE, Budgets, GroupClass, Limits, Queue, State, slots_accounted
from fsm.values import pages
from fsm.wording import counted

FORMAT = 1
"""Version of the snapshot's format; another one is refused."""

Check = Callable[[str, object], None]
"""Given the name of a part and its value: raises IllegalSnapshot unless the part may have this value."""

IN_FLIGHT = ("running", "waiting", "backing_off")
PLACES = (*IN_FLIGHT, "ready", "chunk", "accumulated")
"""Where groups are listed."""
COUNTS = ("backing_off", "waiting", "running", "ready", "chunk", "accumulated")
"""Where they are counted by class, in the order of the state."""

_MAY_BE_NONE = ("target_step", "bucket", "start_weight", "dispatch_index", "dispatch")
"""Numbers that are −1 where there is none."""


def illegal(part: str, said: str, expected: str) -> IllegalSnapshot:
    """The error about a part."""
    return IllegalSnapshot(
        f"the snapshot cannot be restored: {part} {said}; expected: {expected}. It is damaged, or no core wrote it: "
        f"resume from another checkpoint"
    )


# The form


def _is(fits: Callable[[Any], bool], expected: str) -> Check:
    def check(part: str, given: object) -> None:
        if not fits(given):
            raise illegal(part, f"is {given_as(given)}", expected)

    return check


def _number(least: int) -> Check:
    return _is(lambda given: type(given) is int and given >= least, f"a whole number of at least {least}")


def _status(kind: type[IntEnum]) -> Check:
    known = {status.value: f"{status.value} ({status.name.lower()})" for status in kind}
    return _is(lambda given: type(given) is int and given in known, ", ".join(known.values()))


_text = _is(lambda given: type(given) is str, "text")
_flag = _is(lambda given: type(given) is bool, "true or false")


def _fields(**checks: Check) -> Check:
    """A list with one value for each field."""

    def check(part: str, given: object) -> None:
        if not isinstance(given, list | tuple) or len(given) != len(checks):
            size = f"is a list of {len(given)}" if isinstance(given, list | tuple) else f"is {given_as(given)}"
            raise illegal(part, size, f"a list of {len(checks)}: {', '.join(checks)}")
        for (name, of_field), value in zip(checks.items(), given, strict=True):
            of_field(f"{part}.{name}", value)

    return check


def _fields_of(*kinds: type[Any], **more: Check) -> Check:
    """The fields of machines and other values of the core, one after the other, and of `more`."""
    checks: dict[str, Check] = {}
    for kind in kinds:
        for name, hint in get_type_hints(kind).items():
            is_status = isinstance(hint, type) and issubclass(hint, IntEnum)
            checks[name] = _status(hint) if is_status else _number(NONE if name in _MAY_BE_NONE else 0)
    return _fields(**checks, **more)


def _list(of_each: Check) -> Check:
    def check(part: str, given: object) -> None:
        if not isinstance(given, list | tuple):
            raise illegal(part, f"is {given_as(given)}", "a list")
        for place, each in enumerate(given):
            of_each(f"{part}[{place}]", each)

    return check


def _keys(required: Mapping[str, Check], optional: Mapping[str, Check]) -> Check:
    def check(part: str, given: object) -> None:
        where = f"{part}." if part else ""
        if not isinstance(given, Mapping):
            raise illegal(part or "it", f"is {given_as(given)}", f"a mapping of {', '.join(required)}")
        for key in given:
            if key not in required and key not in optional:
                raise illegal(f"{where}{key}", "is no part of a snapshot", ", ".join(required))
        for key, of_key in required.items():
            if key not in given:
                raise illegal(f"{where}{key}", "is missing", "every part that a snapshot has")
            of_key(f"{where}{key}", given[key])
        for key, of_key in optional.items():
            if key in given:
                of_key(f"{where}{key}", given[key])

    return check


_PROMPTS = _list(_number(0))
_CLASS = _fields_of(GroupClass)
_CLASSES = _list(_fields_of(GroupClass, groups=_number(1)))
_GROUPS = _list(
    _fields(
        prompt=_number(0),
        slot=_number(0),
        dispatch=_number(NONE),
        infra_failures=_number(0),
        data_failures=_number(0),
        group_class=_CLASS,
    )
)
_STATE = _keys(
    {
        "run": _fields_of(Run),
        "source": _fields_of(Source),
        "pool": _fields_of(SparePool),
        "gate": _fields_of(AdmissionGate),
        "trainer": _fields_of(Trainer),
        "step": _fields_of(StepAssembly),
        "ledgers": _list(_fields(step=_number(0), status=_status(LedgerState), charged=_number(1))),
        "filtered": _list(_fields(step=_number(0), groups=_number(1))),
        "queue": _fields_of(Queue),
        "budgets": _fields_of(Budgets),
        "tally": _fields_of(BalanceSheet),
        **dict.fromkeys(COUNTS, _CLASSES),
    },
    {},
)
MAY_BE_MISSING: Mapping[str, Check] = {
    "num_generations_per_prompt": _number(1),
    "first_prompt": _number(0),
    "other_data": _flag,
    "sampler_keeps_every_slot": _flag,
}
"""Parts that earlier versions did not write, or that are not always there."""

_SNAPSHOT = _keys(
    {
        "format": _number(FORMAT),
        "sampler": _text,
        "sampler_stamps_target_steps": _flag,
        "num_prompts_per_step": _number(1),
        "prompts_per_epoch": _number(0),
        "incarnation": _number(0),
        "state": _STATE,
        "closed": _list(_fields_of(StepClosed)),
        "next_dispatch": _number(0),
        "next_slot": _number(0),
        "next_chunk": _number(0),
        **dict.fromkeys(("again", "spares", "queue"), _PROMPTS),
        **dict.fromkeys(PLACES, _GROUPS),
    },
    MAY_BE_MISSING,
)


def require_form(saved: object) -> None:
    """Raise IllegalSnapshot unless every part is there once, of its type and in its range."""
    if isinstance(saved, Mapping) and saved.get("format") != FORMAT:
        raise IllegalSnapshot(
            f"the snapshot has format {saved.get('format')!r}; this evenstep reads format {FORMAT}. Resume with the "
            f"version that wrote it, or start a new run"
        )
    _SNAPSHOT("", saved)


# That its parts agree


def keeps_every_slot(saved: Mapping[str, Any]) -> bool:
    """Under the sampler of the snapshot every admitted slot is in hand, selected or charged (X2).

    Earlier snapshots don't say so; of their samplers these do.
    """
    known = saved["sampler"] in ("in_order", "ready_first", "weight_fifo")
    return bool(saved.get("sampler_keeps_every_slot", known))


def require_lists(saved: Mapping[str, Any], state: State, closed_before: int = 0) -> None:
    """Raise IllegalSnapshot unless a core can have the groups and steps that are listed; `state` is that of `saved`.

    `closed_before` is how many steps were closed before those listed; a trace lists each step once.
    """
    for part, said, expected in (
        *_ascending(saved),
        *_prompts_once(saved),
        *_prompts_read(saved, state),
        *_numbers_once(saved),
        *_classes(saved, state),
        *_ledgers(state, saved["num_prompts_per_step"]),
        *_steps(saved, state, closed_before),
    ):
        raise illegal(part, said, expected)


def require_agreement(saved: Mapping[str, Any], state: State, book: Book, limits: Limits) -> None:
    """Raise IllegalSnapshot unless the counts agree with the lists; `state` and `book` are those of `saved`."""
    size = saved["num_prompts_per_step"]
    in_flight = (state.running, state.waiting, state.backing_off)
    most = max((each.replacements for counts in in_flight for each, _ in pages.items(counts)), default=0)
    then = limits._replace(size=size, max_replacements=max(limits.max_replacements, most))
    for fault in faults(_with_todays_floor(state, then), then, book.roster):
        raise illegal("the state", f"contradicts itself or the groups that are listed ({fault})", "the same counts")
    running = state.run.status is RunState.RUNNING  # a run that a loss stopped charged no step for it
    if running and keeps_every_slot(saved) and not slots_accounted(state, then):
        raise illegal(
            "state.gate.dispatch_index",
            f"is {state.gate.dispatch_index} at version {state.trainer.version}",
            f"as many slots admitted as are in hand, selected or charged: {state.sheet}, {size} a step (X2)",
        )


Problem = tuple[str, str, str]
"""A part, what it says, and what is expected."""


def _ascending(saved: Mapping[str, Any]) -> Iterator[Problem]:
    """Keys are sorted, and each is there once."""
    for place in ("ledgers", "filtered", *COUNTS):
        rows = saved["state"][place]
        keys = [row[0] if place in ("ledgers", "filtered") else list(row[:-1]) for row in rows]
        for number, (before, after) in enumerate(pairwise(keys), start=1):
            if before >= after:
                yield f"state.{place}[{number}]", f"has the key {after} after {before}", "keys in order, each once"
    for place in ("running", "ready"):
        dispatches = [group[2] for group in saved[place]]
        if dispatches != sorted(dispatches):
            yield place, f"has the dispatch numbers {dispatches[:20]}", "groups in order of dispatch"


def _hands(saved: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Every prompt that is listed, with its place."""
    for place in ("again", "spares", "queue"):
        yield from ((place, prompt) for prompt in saved[place])
    for place in PLACES:
        yield from ((place, group[0]) for group in saved[place])


def _prompts_once(saved: Mapping[str, Any]) -> Iterator[Problem]:
    places: dict[int, str] = {}
    for place, prompt in _hands(saved):
        if prompt in places:
            yield place, f"has prompt {prompt}, as has {places[prompt]}", "each prompt in one place (X4)"
        places[prompt] = place


def _prompts_read(saved: Mapping[str, Any], state: State) -> Iterator[Problem]:
    """Prompts in hand were read from the data, and no more were pulled than were read."""
    per_epoch, source = saved["prompts_per_epoch"], state.source
    if source.offset > per_epoch:
        yield "state.source.offset", f"is {source.offset}", f"at most prompts_per_epoch, {per_epoch}"
    position = source.epoch * per_epoch + source.offset
    other_data, first = saved.get("other_data", False), saved.get("first_prompt", 0)
    reached = first if other_data else first + position
    for place, prompt in _hands(saved):
        if not (0 if other_data else first) <= prompt < reached:
            yield place, f"has prompt {prompt}", f"prompts that were read: those below {reached}"
    if state.sheet.pulled + source.requeued > reached:
        yield (
            "state.tally.pulled",
            f"is {state.sheet.pulled}, with {source.requeued} to be generated again",
            f"at most the {reached} prompts that were read",
        )


def _numbers_once(saved: Mapping[str, Any]) -> Iterator[Problem]:
    """Each slot and dispatch number has one group, and was given out."""
    groups = [(place, group) for place in PLACES for group in saved[place]]
    for name, position in (("slot", 1), ("dispatch", 2)):
        known: dict[int, str] = {}
        after = saved[f"next_{name}"]
        for place, group in groups:
            number = group[position]
            if number == NONE and place == "waiting":  # a spare that has not started yet
                continue
            if not 0 <= number < after:
                yield place, f"has prompt {group[0]} with {name} {number}", f"0 to next_{name} - 1, {after - 1}"
            if number in known:
                yield place, f"has {name} {number}, as has {known[number]}", f"each {name} once"
            known[number] = place


def _classes(saved: Mapping[str, Any], state: State) -> Iterator[Problem]:
    """The classes of groups fit the place that they are in."""
    version = state.trainer.version
    for place in PLACES:
        for prompt, *_, (_, _, start_weight, replacements, label) in saved[place]:
            if place in ("waiting", "backing_off"):
                starts = start_weight == NONE
                expected = f"start weight {NONE} of what has not started"
            else:
                starts = 0 <= start_weight <= version
                expected = f"a start weight from 0 to the version, {version}"
            if not starts:
                yield place, f"has prompt {prompt} with start weight {start_weight}", expected
            in_flight = place in IN_FLIGHT
            if (label if in_flight else replacements) != 0:
                what = f"label {label}" if in_flight else f"{replacements} replacements"
                yield place, f"has prompt {prompt} with {what}", "0 there"


def _ledgers(state: State, size: int) -> Iterator[Problem]:
    version = state.trainer.version
    for step, ledger in pages.items(state.ledgers):
        part = f"state.ledgers, step {step},"
        if step < version:
            yield part, "is closed", f"open steps, from {version} on"
        if ledger.status in (LedgerState.EVEN, LedgerState.SETTLED):
            yield part, f"is {ledger.status.name.lower()} with {ledger.charged} charged", "short, at or below its floor"
        if ledger.charged > size:
            yield part, f"has {ledger.charged} charged", f"at most num_prompts_per_step, {size}"
    for step, _ in pages.items(state.filtered):
        if step < version:
            yield "state.filtered", f"counts for step {step}, which is closed", f"open steps, from {version} on"


def _steps(saved: Mapping[str, Any], state: State, closed_before: int) -> Iterator[Problem]:
    """The closed steps, and how far the open one is."""
    version, sheet, chunk = state.trainer.version, state.sheet, saved["chunk"]
    steps = [closed[0] for closed in saved["closed"]]
    if steps != list(range(closed_before, version)):
        expected = f"steps {closed_before} to {version - 1}, in order"
        yield "closed", f"has {counted(len(steps), 'step')}, {steps[-3:]} at its end", expected
    trained = sum(closed[1] for closed in saved["closed"])
    if trained != sheet.trained and not closed_before:
        yield (
            "state.tally.trained",
            f"is {sheet.trained}",
            f"the {counted(trained, 'group')} selected into closed steps",
        )
    if version > state.gate.dispatch_index + 1:
        yield "state.trainer.version", f"is {version}", f"at most {state.gate.dispatch_index + 1}, the batches admitted"
    if state.queue.groups == 0 and state.queue != Queue():
        yield "state.queue", f"has a stamp, {tuple(state.queue)}, and no group", "no stamp"
    status, step = state.trainer.status, state.step.status
    if (chunk and status is not TrainerState.TRAINING) or (status is TrainerState.TRAINING and not saved["next_chunk"]):
        yield "chunk", f"has {len(chunk)} groups, of {saved['next_chunk']} chunks", "a chunk while one is in training"
    finishing = step in (StepState.FINISHING, StepState.SHORT)
    if finishing != (status is TrainerState.FINISHING):
        yield "state.step.status", f"is {step.name.lower()}", f"what goes with a trainer that is {status.name.lower()}"


def _with_todays_floor(state: State, limits: Limits) -> State:
    """Ledgers as a resume finds them: they may have been written under another floor."""
    ledgers: pages.Pages[int, ShortfallLedger] = ()
    for step, ledger in pages.items(state.ledgers):
        resumed = fire(SHORTFALL_LEDGER, "resume", ledger, ledger_context(state, limits, step))
        ledgers = pages.put(ledgers, step, resumed)
    return state._replace(ledgers=ledgers)
