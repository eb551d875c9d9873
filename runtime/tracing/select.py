"""Which records of a trace are asked for: by step, group, prompt, machine, time and kind, all of which must agree.

What a question is about is first looked for in the raw lines; only lines that may matter are parsed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fsm import moves
from fsm.effects import StartRollout, TrainChunk
from fsm.moves import BatchAdmitted, GroupLost, PromptsHeldBack, StepClosed, WeightsSynced
from runtime.step_record import StepRecord
from runtime.tracing.kinds import BY_NAME, CODES, FIELDS
from runtime.tracing.reader import SNAPSHOT_MARK, TraceFile
from runtime.tracing.records import NoteRecord, Record, SnapshotRecord, TransitionRecord

SNAPSHOT = "Snapshot"
"""The kind of a snapshot record."""

MACHINES: Mapping[str, tuple[type[Any], ...]] = {
    "PromptGroup": (
        moves.QueueDispatched, moves.WaitingStarted, moves.GroupCommitted, moves.RetryWaits, moves.BackoffEnded,
        moves.GroupFiltered, moves.GroupDropped, moves.GroupReplaced, moves.GroupLost, moves.ClaimFailed,
        moves.ChunkSelected, moves.GroupsEvicted, moves.GroupsAborted, moves.StepClosed, moves.RunResumed,
        moves.RunRegenerated,
    ),
    "StepAssembly": (
        moves.ChunkSelected, moves.ClaimFailed, moves.GroupLost, moves.StepFinishing, moves.StepClosed,
    ),
    "ShortfallLedger": (moves.GroupLost, moves.StepClosed, moves.RunResumed, moves.RunRegenerated),
    "SparePool": (moves.PromptsHeldBack, moves.GroupReplaced, moves.BatchAdmitted, moves.RunRegenerated),
    "AdmissionGate": (moves.GateMoved, moves.BatchAdmitted, moves.RunRegenerated),
    "Trainer": (
        moves.ChunkSelected, moves.ChunkAccumulated, moves.StepFinishing, moves.StepClosed, moves.WeightsSynced,
    ),
    "Source": (moves.PromptsHeldBack, moves.BatchAdmitted, moves.SourceExhausted),
    "Run": (moves.RunResumed, moves.RunRegenerated, moves.RunCompleted, moves.RunStopped),
}  # fmt: skip
"""Per machine the moves that move it."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked for. None: anything."""

    step: int | None = None
    """While the step was assembled, trained, finished and synced; and what became before of the groups in it."""
    group: int | None = None
    """The life of a slot: its attempts, retries and replacements, until it is trained or lost."""
    prompt: int | None = None
    machine: str | None = None
    """A key of MACHINES."""
    since_s: float | None = None
    """On the trace's monotonic clock."""
    kind: str | None = None
    """Name of an event, move, effect or note; or Snapshot."""


class NotInTrace(Exception):
    """What is asked for is not in the trace."""


Wanted = Callable[[Record], bool]


def select(trace: TraceFile, question: Question) -> Iterator[Record]:
    """The records that a question asks for, in order. Raises TraceUnreadable."""
    pattern, wanted = matcher(trace, question)
    for line in trace.lines(pattern):
        record = trace.parse(line)
        if wanted(record):
            yield record


def matcher(trace: TraceFile, question: Question) -> tuple[re.Pattern[bytes] | None, Wanted]:
    """What a line must have to be parsed, and whether a record is asked for."""
    patterns: list[bytes] = []
    tests: list[Wanted] = []
    if question.since_s is not None:
        tests.append(_since(question.since_s))
    if question.kind is not None:
        patterns.append(_kind_pattern(question.kind))
        tests.append(_kind(question.kind))
    if question.machine is not None:
        kinds = frozenset(MACHINES[question.machine])
        patterns.append(b"|".join(_code(kind) for kind in kinds))
        tests.append(lambda record: any(type(move) in kinds for move in _moves(record)))
    if question.prompt is not None:
        patterns.append(_prompts_pattern([question.prompt]))
        tests.append(_about([question.prompt]))
    if question.group is not None:
        prompts = _prompts_of_slot(trace, question.group)
        patterns.append(_prompts_pattern(prompts))
        tests.append(_about(prompts))
    if question.step is not None:
        pattern, test = _step(trace, question.step)
        if pattern is not None:
            patterns.append(pattern)
        tests.append(test)
    rarest = min(patterns, key=len, default=None)  # one is enough: the tests decide
    return None if rarest is None else re.compile(rarest), lambda record: all(test(record) for test in tests)


def _code(kind: type[Any]) -> bytes:
    return b'\\["' + CODES[kind].encode() + b'"'


def _kind_pattern(name: str) -> bytes:
    return re.escape(SNAPSHOT_MARK) if name == SNAPSHOT else _code(BY_NAME[name])


def _kind(name: str) -> Wanted:
    if name == SNAPSHOT:
        return lambda record: isinstance(record, SnapshotRecord)
    kind = BY_NAME[name]
    return lambda record: any(type(value) is kind for value in _values(record))


def _since(since_s: float) -> Wanted:
    return lambda record: record.monotonic_s >= since_s


def _values(record: Record) -> tuple[Any, ...]:
    match record:
        case TransitionRecord(transition=transition):
            return transition.event, *transition.moves, *transition.effects
        case NoteRecord(note=note):
            return (note,)
    return ()


def _moves(record: Record) -> tuple[Any, ...]:
    return record.transition.moves if isinstance(record, TransitionRecord) else ()


def _prompts_pattern(prompts: list[int]) -> bytes:
    """Any number that could be one of the prompts, and admissions, which name the first of a range."""
    numbers = b"|".join(str(prompt).encode() for prompt in prompts) or b"(?!)"
    return rb"[\[,](?:" + numbers + rb")[,\]]|" + _code(BatchAdmitted) + b"|" + _code(PromptsHeldBack)


def _about(prompts: list[int]) -> Wanted:
    """Records that name one of the prompts, or admit it."""
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
    """Every prompt that was ever started in a slot, in order."""
    pattern = re.compile(_code(StartRollout) + rb",\[[0-9,]+\]," + str(slot).encode() + b",")
    found: dict[int, None] = {}
    for line in trace.lines(pattern):
        for value in _values(trace.parse(line)):
            if isinstance(value, StartRollout) and value.slot == slot:
                found[value.attempt.prompt] = None
    if not found:
        raise NotInTrace(f"{trace.path} has no rollout in slot {slot}: --group takes the slot of a StartRollout")
    return list(found)


def _step(trace: TraceFile, step: int) -> tuple[bytes | None, Wanted]:
    """From the close of the step before to the sync of this one; and what names its groups, stamps or charges it."""
    first, last, prompts = _span(trace, step)
    number = str(step).encode()
    about = _about(prompts)

    def wanted(record: Record) -> bool:
        if first <= record.seq <= last:
            return True
        if isinstance(record, SnapshotRecord):
            return False
        return record.seq < first and (about(record) or any(_is_for(value, step) for value in _values(record)))

    width = len(str(last))
    if first <= 0 or last - first > 100_000 or width > 15:
        return None, wanted
    span = b'"q":(?:' + _numbers(first, last) + b"),"
    stamped = (
        _code(StartRollout) + rb",\[[0-9,]+\],[0-9]+," + number + b",|" + _code(GroupLost) + b"," + number + rb"\]"
    )
    numbers = b"|".join(str(prompt).encode() for prompt in prompts) or b"(?!)"
    return span + b"|" + stamped + rb"|[\[,](?:" + numbers + rb")[,\]]", wanted


def _numbers(first: int, last: int) -> bytes:
    """An expression for all numbers of a range, by their common beginnings."""
    tens = sorted({number // 10 for number in range(first, last + 1)})
    parts = []
    for ten in tens:
        low, high = max(first, ten * 10) % 10, min(last, ten * 10 + 9) % 10
        parts.append(f"{ten or ''}[{low}-{high}]")
    return "|".join(parts).encode()


def _is_for(value: Any, step: int) -> bool:
    if isinstance(value, StartRollout):
        return value.target_step == step
    return isinstance(value, GroupLost) and value.charged_step == step


def _span(trace: TraceFile, step: int) -> tuple[int, int, list[int]]:
    """First and last record while a step was the trainer's, and the prompts selected into it.

    The first is that after the close of the step before, or the first of the trace; the last that in which its weights
    were synced, or the last of the trace.
    """
    first, last = -1, 1 << 62
    prompts: list[int] = []
    wanted = (
        _code(StepClosed) + b",%d," % (step - 1),
        _code(WeightsSynced) + b",%d\\]" % (step + 1),
        _code(TrainChunk) + b",%d," % step,
    )
    for line in trace.lines(re.compile(b"|".join(wanted))):
        record = trace.parse(line)
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
    """The step that was open when the trace began."""
    for line in trace.lines(re.compile(_code(StepClosed))):
        for value in _values(trace.parse(line)):
            if isinstance(value, StepClosed):
                return value.step
    saved = trace.header["snapshot"]
    step: int = 0 if saved is None else saved["state"]["trainer"][1]
    return step
