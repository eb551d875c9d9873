"""Verdicts that are missing: how many attempts and held-out rollouts failed for their data or its verifier, and why."""

from collections.abc import Iterator
from dataclasses import dataclass

from fsm.events import FailureKind, GroupFailed
from runtime.explain.situation import Situation
from runtime.groups import kind_of_failure
from runtime.trace.choose import with_text
from runtime.trace.kinds import mark_of
from runtime.trace.notes import Validated
from runtime.trace.records import NoteRecord, TransitionRecord


@dataclass(slots=True)
class DataFailures:
    """Failures of one kind."""

    attempts: int = 0
    """Of training."""
    validations: int = 0
    newest: str = ""

    def __str__(self) -> str:
        counts = ((self.attempts, "attempt"), (self.validations, "validation"))
        told = " and in ".join(f"{count} {what}{'s' * (count > 1)}" for count, what in counts if count)
        return f"in {told}: {self.newest}"


def failures_of(situation: Situation) -> list[DataFailures]:
    """The kinds of failures up to this moment, the most frequent first."""
    kinds: dict[str, DataFailures] = {}
    for why, in_training in _told(situation):
        found = kinds.setdefault(kind_of_failure(why), DataFailures())
        found.attempts += in_training
        found.validations += not in_training
        found.newest = why
    return sorted(kinds.values(), key=lambda found: -found.attempts - found.validations)


def _told(situation: Situation) -> Iterator[tuple[str, bool]]:
    """Each failed attempt of training, and each kind of failure of each validation."""
    for line in situation.lines(with_text([mark_of(GroupFailed), mark_of(Validated)])):
        match situation.trace.parse(line):
            case TransitionRecord(transition=transition) if isinstance(transition.event, GroupFailed):
                if transition.event.kind is FailureKind.DATA:
                    yield transition.event.error, True
            case NoteRecord(note=Validated() as validated):
                yield from ((why, False) for why in validated.failures)
