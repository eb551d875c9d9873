"""In flight, ready, pool, queue, gate and dispatch index over time: the sheet, updated by each change.

The rule table of PromptGroup says from which place to which a change takes groups; nothing is decided here.
"""

from array import array
from collections.abc import Callable, Mapping
from typing import Any

from fsm.machines.admission_gate import GateState
from fsm.machines.prompt_group import PROMPT_GROUP, BalanceSheet, GroupState
from fsm.rules import changes
from fsm.rules.changes import Change, Picks
from runtime.report.columns import Columns
from runtime.trace.kinds import Json

COLUMNS: Mapping[str, str] = {
    "t": "I",  # ms
    "in_flight": "i",
    "ready": "i",
    "spare": "i",
    "queued": "i",
    "gate": "B",  # 1 open, 0 closed
    "dispatch_index": "i",
}
_SHOWN = tuple(map(int, (GroupState.IN_FLIGHT, GroupState.READY, GroupState.SPARE, GroupState.QUEUED)))


def _all(picks: Picks) -> int:
    return sum(groups for _, groups in picks)


_MOVED: Mapping[type[Any], tuple[str, Callable[[Any], int]]] = {
    changes.PromptsHeldBack: ("hold_back", lambda change: change.groups),
    changes.QueueDispatched: ("dispatch", lambda change: change.groups),
    changes.GroupCommitted: ("commit", lambda _: 1),
    changes.GroupFiltered: ("filter", lambda _: 1),
    changes.GroupDropped: ("drop", lambda _: 1),
    changes.GroupReplaced: ("replace", lambda _: 1),
    changes.ClaimFailed: ("claim_failed", lambda _: 1),
    changes.ChunkSelected: ("select", lambda change: _all(change.picks)),
    changes.StepClosed: ("train", lambda change: change.selected),
    changes.GroupsEvicted: ("evict", lambda change: _all(change.picks)),
    changes.GroupsAborted: ("abort", lambda change: _all(change.picks)),
}
"""By change that takes groups elsewhere: the event in PromptGroup's table, and how many groups."""
_ENDS: Mapping[str, tuple[int, int]] = {
    rule.event: (GroupState(rule.sources[0]).value, GroupState(rule.dest).value) for rule in PROMPT_GROUP.rules
}
"""By event of the table: the place that groups leave, and the place that they enter."""
_ALL_IN_HAND = next(rule for rule in PROMPT_GROUP.rules if rule.event == "regenerate").sources


class Counters:
    """The sheet after each transition."""

    def __init__(self) -> None:
        self.rows = Columns(COLUMNS)
        self.counts = [0] * len(GroupState)
        """By `GroupState`; DATA holds minus the pulled prompts. Relative until `anchored`."""
        self.replaced = 0
        self.gate_open = True
        self.dispatch_index = -1
        self.version = 0
        """The version that the run began with."""
        self.anchored = False
        """The counts are absolute: the trace has its beginning, or a snapshot was read."""
        self._gate_known = False
        self._sampled: tuple[int, ...] = ()
        """The last row without its time."""

    def begin(self, saved: Json | None) -> None:
        """The trace has the run's beginning: empty, or the snapshot that it was restored from."""
        self.counts, self.replaced = [0] * len(GroupState), 0
        self.gate_open, self.dispatch_index, self.version = True, -1, 0
        if saved is not None:
            self._take(saved)
        self.anchored = self._gate_known = True

    def transition(self, now: int, done: tuple[Change, ...]) -> None:
        for change in done:
            self._change(change)
        if done:
            self.sample(now)

    def snapshot(self, saved: Json) -> None:
        """Correct all rows of a trace without its beginning by the state after the last record."""
        if self.anchored:
            return
        before, rows, index = list(self.counts), self.rows, self.dispatch_index
        self._take(saved)
        self._sampled = ()
        for name, place in zip(("in_flight", "ready", "spare", "queued"), _SHOWN, strict=True):
            shift = self.counts[place] - before[place]
            for row in range(len(rows)):
                rows[name][row] += shift
        for row in range(len(rows)):
            rows["dispatch_index"][row] += self.dispatch_index - index
        self._gate_was(self.gate_open)
        self.anchored = True

    def sample(self, now: int) -> None:
        """Append a row, or replace the last one if it has the same millisecond."""
        counts = self.counts
        in_flight, ready, spare, queued = _SHOWN
        shown = (
            counts[in_flight], counts[ready], counts[spare], counts[queued], self.gate_open, self.dispatch_index,
        )  # fmt: skip
        if shown == self._sampled:
            return
        self._sampled = shown
        if len(self.rows) and self.rows["t"][-1] == now:
            for column, value in zip(self.rows.columns.values(), (now, *shown), strict=True):
                column[-1] = value
        else:
            self.rows.append(now, *shown)

    def sheet(self) -> dict[str, int]:
        """The sheet by name, after the last record (X4)."""
        pulled = -self.counts[GroupState.DATA]
        places = {state.name.lower(): self.counts[state] for state in GroupState if state is not GroupState.DATA}
        return {"pulled": pulled, **places, "replaced": self.replaced}

    def _take(self, saved: Json) -> None:
        sheet = BalanceSheet(*saved["state"]["tally"])
        named = sheet._asdict()
        self.counts = [named.get(state.name.lower(), 0) for state in GroupState]
        self.counts[GroupState.DATA] = -sheet.pulled
        self.replaced = sheet.replaced
        gate, self.dispatch_index = saved["state"]["gate"]
        self.version = saved["state"]["trainer"][1]
        self.gate_open = gate == GateState.OPEN

    def _change(self, change: Change) -> None:
        kind = type(change)
        if kind in _MOVED:
            event, groups = _MOVED[kind]
            self._carry(event, groups(change))
            self.replaced += kind is changes.GroupReplaced
        elif type(change) is changes.BatchAdmitted:
            self._carry("admit_spares" if change.from_spares else "admit", change.groups)
            self.dispatch_index += 1
        elif type(change) is changes.GateMoved:
            self._gate_was(not change.open)
            self.gate_open = change.open
        elif kind is changes.RunResumed:
            self._carry("take_back", self.counts[GroupState.SELECTED])
        elif kind in (changes.RunRegenerated, changes.DataReplaced):
            self._empty_hands()

    def _gate_was(self, is_open: bool) -> None:
        """Fill in the gate's state up to here, if it was unknown."""
        if not self._gate_known:
            self._gate_known = True
            gates = self.rows["gate"]
            gates[:] = array(gates.typecode, [is_open] * len(gates))

    def _carry(self, event: str, groups: int) -> None:
        source, dest = _ENDS[event]
        self.counts[source] -= groups
        self.counts[dest] += groups

    def _empty_hands(self) -> None:
        """C3: every prompt in hand counts as not pulled."""
        for place in _ALL_IN_HAND:
            self.counts[GroupState.DATA] += self.counts[place]
            self.counts[place] = 0
        self.dispatch_index = self.version - 1
