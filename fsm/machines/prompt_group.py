"""PromptGroup: a group's life, and the balance sheet of all groups (X4).

Groups are moved as counts: a rule of this table takes groups from one column of the balance sheet to another. There is
no machine object or trigger per group.
"""

from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple

from fsm.errors import InvariantBroken
from fsm.machines.table import Fairness, Rule, Table
from fsm.values.updates import fast_replace


class GroupState(IntEnum):
    """Where a prompt group is. The values are the positions of the columns of the balance sheet."""

    DATA = 0
    """Not pulled yet, or to be generated again (C3)."""
    SPARE = 1
    QUEUED = 2
    IN_FLIGHT = 3
    READY = 4
    SELECTED = 5
    TRAINED = 6
    FILTERED = 7
    DROPPED = 8
    EVICTED = 9
    ABORTED = 10


@fast_replace
class BalanceSheet(NamedTuple):
    """The balance sheet: prompts pulled, and how many are where (X4). All counts are at least 0."""

    pulled: int = 0
    spare: int = 0
    queued: int = 0
    in_flight: int = 0
    """The permits of max_inflight_prompts that are taken (D1)."""
    ready: int = 0
    """With in_flight the slots of max_buffered_rollouts that are taken (D1)."""
    selected: int = 0
    """Selected into the open step. Trained once it closes."""
    trained: int = 0
    filtered: int = 0
    dropped: int = 0
    evicted: int = 0
    aborted: int = 0
    replaced: int = 0
    """Spares that took over a slot; they are counted in another column too."""

    @property
    def leftover(self) -> int:
        """Groups left over if the run ends now (X4)."""
        return self.spare + self.queued + self.in_flight + self.ready + self.selected

    def as_counts(self) -> dict[str, int]:
        """By name: pulled, the ten places, replaced and leftover."""
        return {**self._asdict(), "leftover": self.leftover}

    @property
    def balanced(self) -> bool:
        """Every prompt pulled is in exactly one place (X4)."""
        pulled, spare, queued, in_flight, ready, selected, trained, filtered, dropped, evicted, aborted, replaced = self
        if pulled != spare + queued + in_flight + ready + selected + trained + filtered + dropped + evicted + aborted:
            return False
        # The bitwise or of integers is negative exactly when one of them is.
        counts = pulled | spare | queued | in_flight | ready | selected | trained
        return (counts | filtered | dropped | evicted | aborted | replaced) >= 0


class GroupCount(NamedTuple):
    """The value of this table: how many groups are in the place that a rule takes them from."""

    status: GroupState
    groups: int


class GroupContext(NamedTuple):
    """How many groups move."""

    groups: int


def _are_there(count: GroupCount, context: GroupContext) -> bool:
    return 0 <= context.groups <= count.groups


def _move_out(count: GroupCount, context: GroupContext) -> GroupCount:
    """What stays in the source; the others go to the rule's dest."""
    return count._replace(groups=count.groups - context.groups)


def group_count_holds(count: GroupCount, _: GroupContext) -> bool:
    """No place has a negative count."""
    return count.groups >= 0


_S = GroupState


def _rule(
    event: str, source: GroupState, dest: GroupState, implements: str, fairness: Fairness = Fairness.WEAK
) -> Rule[GroupCount, GroupContext]:
    return Rule(event, (source,), dest, tuple(implements.split()), (_are_there,), _move_out, fairness)


PROMPT_GROUP: Table[GroupCount, GroupContext] = Table(
    name="PromptGroup",
    states=GroupState,
    initial=_S.DATA,
    rules=(
        _rule("admit", _S.DATA, _S.QUEUED, "A1 A2 A5"),
        _rule("hold_back", _S.DATA, _S.SPARE, "P1 A5"),
        _rule("admit_spares", _S.SPARE, _S.QUEUED, "P2"),
        _rule("replace", _S.SPARE, _S.IN_FLIGHT, "L2", Fairness.NONE),
        _rule("dispatch", _S.QUEUED, _S.IN_FLIGHT, "D1 D2 D3"),
        _rule("start", _S.IN_FLIGHT, _S.IN_FLIGHT, "D2 L7"),
        _rule("commit", _S.IN_FLIGHT, _S.READY, "S2"),
        _rule("filter", _S.IN_FLIGHT, _S.FILTERED, "L1", Fairness.NONE),
        _rule("drop", _S.IN_FLIGHT, _S.DROPPED, "L7", Fairness.NONE),
        _rule("abort", _S.IN_FLIGHT, _S.ABORTED, "E1"),
        _rule("select", _S.READY, _S.SELECTED, "S1 S2 S3 S4"),
        _rule("evict", _S.READY, _S.EVICTED, "E1"),
        _rule("claim_failed", _S.SELECTED, _S.DROPPED, "S5", Fairness.NONE),
        _rule("train", _S.SELECTED, _S.TRAINED, "L5"),
        _rule("take_back", _S.SELECTED, _S.READY, "C2", Fairness.NONE),
        Rule("regenerate", (_S.SPARE, _S.QUEUED, _S.IN_FLIGHT, _S.READY, _S.SELECTED), _S.DATA, ("C3",),
             (_are_there,), _move_out, Fairness.NONE),
    ),
    refusals={
        "admit": "a prompt is admitted from the data",
        "hold_back": "a prompt is held back from the data",
        "admit_spares": "whole batches of spares are admitted once the data is used up",
        "replace": "a spare replaces a lost group",
        "dispatch": "a queued prompt is dispatched once",
        "start": "attempts belong to groups in flight",
        "commit": "a rollout finishes in flight",
        "filter": "a rollout finishes in flight",
        "drop": "a group in flight is given up on",
        "abort": "a rollout in flight is aborted",
        "select": "a ready group is selected",
        "evict": "a ready group is evicted",
        "claim_failed": "a selected group turns out unreadable",
        "train": "selected groups are trained when their step closes",
        "take_back": "selected groups are ready again after a crash",
        "regenerate": "prompts that are not yet trained, and not lost, are generated again",
    },
    invariant=group_count_holds,
)  # fmt: skip


def _mover(event: str, source: GroupState, dest: GroupState) -> Callable[[BalanceSheet, int], BalanceSheet]:
    """A function that moves groups from one column to another; groups from the data count as pulled (X4)."""
    takes, gives, from_data = source.value, dest.value, source is GroupState.DATA

    def move(sheet: BalanceSheet, groups: int) -> BalanceSheet:
        if groups < 0 or (not from_data and groups > sheet[takes]):
            raise InvariantBroken(f"PromptGroup refuses {event} of {groups} groups: {sheet}")
        if takes == gives:
            return sheet
        columns = list(sheet)
        columns[takes] += groups if from_data else -groups
        columns[gives] += groups
        return tuple.__new__(BalanceSheet, columns)  # as `_make` does, without its call

    return move


TRANSFER: dict[str, Callable[[BalanceSheet, int], BalanceSheet]] = {
    rule.event: _mover(rule.event, GroupState(rule.sources[0]), GroupState(rule.dest))
    for rule in PROMPT_GROUP.rules
    if len(rule.sources) == 1
}
"""Per event of the table: a function from a balance sheet and a number of groups to the sheet after they have moved."""
