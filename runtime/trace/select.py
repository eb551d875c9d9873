"""Select records of a trace by step, group, prompt, machine, time and kind; a record must match all that are given.

A question is first looked up in the raw lines; only lines that may match are parsed.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from fsm.effects import StartRollout, TrainChunk
from fsm.rules import changes
from fsm.rules.changes import BatchAdmitted, GroupLost, PromptsHeldBack, StepClosed, WeightsSynced
from fsm.samplers.builtin import BUILTIN
from fsm.samplers.promises import Stamp
from runtime.metrics.step_record import StepRecord
from runtime.trace.choose import Chooser, between, both, every, since, with_match, with_text
from runtime.trace.kinds import BY_NAME, CODES, FIELDS, mark_of
from runtime.trace.reader import SNAPSHOT_MARK, TraceFile
from runtime.trace.records import NoteRecord, Record, SnapshotRecord, TransitionRecord

UNSTAMPED = frozenset(name for name, sampler in BUILTIN.items() if sampler.batch_stamp is not Stamp.TARGET_STEP)
"""Built-in samplers that stamp no target step: their StartRollout names none."""
SNAPSHOT = "Snapshot"
"""The name of a snapshot record, among kinds."""

MACHINES: Mapping[str, tuple[type[Any], ...]] = {
    "PromptGroup": (
        changes.QueueDispatched, changes.WaitingStarted, changes.GroupCommitted, changes.RetryWaits,
        changes.BackoffEnded, changes.GroupFiltered, changes.GroupDropped, changes.GroupReplaced, changes.GroupLost,
        changes.ClaimFailed, changes.ChunkSelected, changes.GroupsEvicted, changes.GroupsAborted, changes.StepClosed,
        changes.RunResumed, changes.RunRegenerated, changes.DataReplaced,
    ),
    "StepAssembly": (
        changes.ChunkSelected, changes.ClaimFailed, changes.GroupLost, changes.StepFinishing, changes.StepClosed,
    ),
    "ShortfallLedger": (
        changes.GroupLost, changes.StepClosed, changes.RunResumed, changes.RunRegenerated, changes.DataReplaced,
    ),
    "SparePool": (
        changes.PromptsHeldBack, changes.GroupReplaced, changes.BatchAdmitted, changes.RunRegenerated,
        changes.DataReplaced,
    ),
    "AdmissionGate": (changes.GateMoved, changes.BatchAdmitted, changes.RunRegenerated, changes.DataReplaced),
    "Trainer": (
        changes.ChunkSelected, changes.ChunkAccumulated, changes.StepFinishing, changes.StepClosed,
        changes.WeightsSynced,
    ),
    "Source": (
        changes.PromptsHeldBack, changes.BatchAdmitted, changes.SourceExhausted, changes.RunRegenerated,
        changes.DataReplaced,
    ),
    "Run": (changes.RunResumed, changes.RunRegenerated, changes.DataReplaced, changes.RunCompleted, changes.RunStopped),
}  # fmt: skip
"""By machine, the changes that move it."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked for. None: anything."""

    step: int | None = None
    """Records while the step was assembled, trained, finished and synced; and earlier ones about its groups."""
    group: int | None = None
    """The life of a slot: its attempts, retries and replacements, until it is trained or lost."""
    prompt: int | None = None
    machine: str | None = None
    """A key of MACHINES."""
    since_s: float | None = None
    """On the trace's monotonic clock."""
    kind: str | None = None
    """Name of an event, change, effect or note; or Snapshot."""


class NotInTrace(Exception):
    """The trace has nothing about what is asked for."""


Wanted = Callable[[Record], bool]


def select(trace: TraceFile, question: Question, lines: Iterable[bytes] | None = None) -> Iterator[Record]:
    """The records that a question asks for, in order; of these lines where they are given, else of the whole trace.

    Raises TraceUnreadable and NotInTrace.
    """
    choose, wanted = _matcher(trace, question)
    chosen = trace.lines(choose) if lines is None else chain.from_iterable(map(choose, lines))
    return filter(wanted, map(trace.parse, chosen))


def _matcher(trace: TraceFile, question: Question) -> tuple[Chooser, Wanted]:
    """Which lines to parse, and which of their records are asked for."""
    asked: list[tuple[Chooser, Wanted]] = []
    """The first chooser leaves the fewest lines; it is enough, since the tests decide."""
    if question.prompt is not None:
        asked.append((_naming([question.prompt]), _about([question.prompt])))
    if question.group is not None:
        prompts = _prompts_of_slot(trace, question.group)
        asked.append((_naming(prompts), _about(prompts)))
    if question.step is not None:
        asked.append(_step(trace, question.step))
    if question.kind == SNAPSHOT:
        asked.append((with_text([SNAPSHOT_MARK]), lambda record: isinstance(record, SnapshotRecord)))
    elif question.kind is not None:
        asked.append(_of_kinds((BY_NAME[question.kind],)))
    if question.machine is not None:
        asked.append(_of_kinds(MACHINES[question.machine]))
    choose = asked[0][0] if asked else every
    tests = [test for _, test in asked]
    if question.since_s is not None:
        since_s = question.since_s
        choose = since(since_s, choose)
        tests.append(lambda record: record.monotonic_s >= since_s)
    return choose, lambda record: all(test(record) for test in tests)


def _of_kinds(kinds: tuple[type[Any], ...]) -> tuple[Chooser, Wanted]:
    marked = with_text([mark_of(kind) for kind in kinds])
    return marked, lambda record: any(type(value) in kinds for value in _values(record))


def _values(record: Record) -> tuple[Any, ...]:
    match record:
        case TransitionRecord(transition=transition):
            return transition.event, *transition.changes, *transition.effects
        case NoteRecord(note=note):
            return (note,)
    return ()


def _naming(prompts: list[int]) -> Chooser:
    """Lines that name one of the prompts in an attempt, a selected group, a note or a claim, or admit or clear it."""
    numbers = b"|".join(b"%d" % prompt for prompt in prompts)
    pattern = re.compile(
        rb'\[(?:"(?:GR|CU)",(?:' + numbers + rb")|(?:" + numbers + rb"))[,\]]"
        rb'|\["(?:ba|hb)",(\d+),(?:-?\d+,-?\d+,)?(-?\d+)'
        rb'|\["CR",\[([0-9,]+)\]'
    )
    asked = frozenset(prompts)

    def keep(match: re.Match[bytes]) -> bool:
        if match[3] is not None:
            return any(int(prompt) in asked for prompt in match[3].split(b","))
        if match[1] is None:
            return True
        groups, first = int(match[1]), int(match[2])
        return any(first <= prompt < first + groups for prompt in prompts)

    return with_match(pattern, keep)


def _about(prompts: list[int]) -> Wanted:
    asked = frozenset(prompts)
    return lambda record: any(_names(value, asked) for value in _values(record))


def _names(value: Any, asked: frozenset[int]) -> bool:
    if isinstance(value, BatchAdmitted | PromptsHeldBack):
        first = value.first_prompt
        return first >= 0 and any(first <= prompt < first + value.groups for prompt in asked)
    if isinstance(value, TrainChunk):
        return any(group.prompt in asked for group in value.groups)
    if isinstance(value, StepRecord):
        return False
    fields = FIELDS[CODES[type(value)]]
    if "attempt" in fields:
        return value.attempt.prompt in asked
    if "attempts" in fields:
        return any(attempt.prompt in asked for attempt in value.attempts)
    if "prompts" in fields:
        return any(prompt in asked for prompt in value.prompts)
    return "prompt" in fields and value.prompt in asked


def _prompts_of_slot(trace: TraceFile, slot: int) -> list[int]:
    """Every prompt that was started in a slot, in order."""
    pattern = re.compile(rb'\["SR",\[[0-9,]+\],%d,' % slot)
    found: dict[int, None] = {}
    for record in trace.records(with_match(pattern)):
        for value in _values(record):
            if isinstance(value, StartRollout) and value.slot == slot:
                found[value.attempt.prompt] = None
    if not found:
        raise NotInTrace(f"{trace.path} has no rollout in slot {slot}: --group takes the slot of a StartRollout")
    return list(found)


def _step(trace: TraceFile, step: int) -> tuple[Chooser, Wanted]:
    """All records of a step's span; before it, those that name one of its groups, or stamp or charge the step."""
    first, last, prompts = _span(trace, step)
    about = _about(prompts)

    def wanted(record: Record) -> bool:
        if first <= record.seq <= last:
            return True
        if isinstance(record, SnapshotRecord) or record.seq > last:
            return False
        for value in _values(record):
            if isinstance(value, StartRollout) and value.target_step == step:
                return True
            if isinstance(value, GroupLost) and value.charged_step == step:
                return True
        return about(record)

    charged = with_text([mark_of(GroupLost) + b",%d]" % step])
    stamped = with_match(re.compile(rb'\["SR",\[[0-9,]+\],[0-9]+,%d,' % step))
    before = charged if trace.header["config"]["async_rl"]["sampler"]["name"] in UNSTAMPED else both(charged, stamped)
    return between(first, last, both(_naming(prompts), before) if prompts else before), wanted


def _span(trace: TraceFile, step: int) -> tuple[int, int, list[int]]:
    """First and last record from the close of the step before to the sync after the step, and the prompts selected."""
    first, last = -1, 1 << 62
    prompts: list[int] = []
    edges = (
        mark_of(StepClosed) + b",%d," % (step - 1),
        mark_of(WeightsSynced) + b",%d]" % (step + 1),
        mark_of(TrainChunk) + b",%d," % step,
    )
    for record in trace.records(with_text(edges)):
        for value in _values(record):
            if isinstance(value, StepClosed) and value.step == step - 1:
                first = record.seq + 1
            elif isinstance(value, WeightsSynced) and value.version == step + 1:
                last = record.seq
            elif isinstance(value, TrainChunk) and value.step == step:
                prompts += [group.prompt for group in value.groups]
    if first < 0:
        begins = _first_step(trace)
        if step != begins:
            raise NotInTrace(
                f"{trace.path} has nothing of step {step}: it begins with step {begins}, or ends before it"
            )
        first = 0
    return first, last, prompts


def _first_step(trace: TraceFile) -> int:
    for record in trace.records(with_text([mark_of(StepClosed)])):
        for value in _values(record):
            if isinstance(value, StepClosed):
                return value.step
    saved = trace.header["snapshot"]
    step: int = 0 if saved is None else saved["state"]["trainer"][1]
    return step
