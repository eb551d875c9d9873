"""The trainer's phases, the steps that it closed, and what it waited for while it was assembling."""

from collections.abc import Mapping
from enum import IntEnum

from fsm.core import AppliedEvent
from fsm.events import BackoffOver, Begin, ClaimUnreadable, GroupFailed, GroupFinished, SyncFinished
from fsm.machines.trainer import TrainerState
from fsm.rules import changes
from fsm.state import NONE
from runtime.report.columns import NOT_YET, Columns

PHASES = [state.name.lower() for state in TrainerState]
"""Names by value of the column `phase`."""


class WaitCause(IntEnum):
    """What an assembling trainer waits for."""

    ROLLOUTS = 0
    RETRIES = 1
    GATE = 2
    BUFFER = 3
    NOTHING_RUNS = 4


CAUSES = [
    "running rollouts",
    "retries and replacements that wait to start",
    "nothing runs: the gate is closed",
    "nothing runs: the buffer is full",
    "nothing runs, though the gate is open",
]
"""Texts by value of `WaitCause`."""
ENDED_BY = {
    GroupFinished: "a group finished",
    GroupFailed: "an attempt failed",
    ClaimUnreadable: "a claim failed",
    BackoffOver: "a backoff was over",
    SyncFinished: "weights were synced",
    Begin: "the run began",
}
"""Texts by the event that ended a wait."""
ENDINGS = [*ENDED_BY.values(), "another event", "it goes on"]
"""Texts by value of the column `ended_by`."""
_NUMBER = {kind: number for number, kind in enumerate(ENDED_BY)}
GOES_ON = len(ENDINGS) - 1

PHASE_COLUMNS: Mapping[str, str] = {"step": "i", "phase": "B", "begun": "I", "ended": "I"}
"""`step` is −1 where a resumed run did the step again."""
CLOSING_COLUMNS: Mapping[str, str] = {
    "step": "i", "selected": "I", "charged": "I", "short": "I", "finishing": "I", "closed": "I", "synced": "I"
}  # fmt: skip
"""Times in ms; `synced` is NOT_YET until all workers run the version."""
WAIT_COLUMNS: Mapping[str, str] = {
    "step": "i",
    "begun": "I",
    "ended": "I",
    "prompt": "i",  # named by the event that ended it, or −1
    "ended_by": "B",
    **{cause.name.lower(): "I" for cause in WaitCause},  # ms of the wait, by cause
}


class Phases:
    """The trainer's phases, its closed steps, and its waits."""

    def __init__(self) -> None:
        self.rows = Columns(PHASE_COLUMNS)
        self.closings = Columns(CLOSING_COLUMNS)
        self.waits = Columns(WAIT_COLUMNS)
        self.now: tuple[TrainerState, int, int] | None = None
        """Phase, step and since when; None if unknown."""
        self._finishing = NOT_YET
        self._causes = [0] * len(WaitCause)
        """The present wait's time by cause."""

    def begin(self, step: int, now: int) -> None:
        """The run begins or resumes with this step."""
        self.now = (TrainerState.ASSEMBLING, step, now)

    def go_on(self, step: int, ended: int) -> None:
        """The process ended then; the next one goes on with this step. Steps from it on are done again."""
        self.finish(ended)
        self.now, self._finishing, self._causes = None, NOT_YET, [0] * len(WaitCause)
        for row, of_step in enumerate(self.rows["step"]):
            if of_step >= step:
                self.rows["step"][row] = NONE
        self.closings.drop_from("step", step)
        self.waits.drop_from("step", step)
        if len(self.closings) and self.closings["synced"][-1] == NOT_YET:
            self.closings["synced"][-1] = ended

    def waited(self, cause: WaitCause, for_ms: int) -> None:
        """The trainer was assembling for so long, and waited for this cause."""
        self._causes[cause] += for_ms

    def transition(self, now: int, transition: AppliedEvent) -> None:
        for change in transition.changes:
            match change:
                case changes.ChunkSelected(step):
                    self._turn(now, TrainerState.TRAINING, step, transition)
                case changes.ChunkAccumulated(step):
                    self._turn(now, TrainerState.ASSEMBLING, step, transition)
                case changes.StepFinishing(step):
                    self._finishing = now
                    self._turn(now, TrainerState.FINISHING, step, transition)
                case changes.StepClosed(step, selected, charged, short):
                    self.closings.append(step, selected, charged, short, self._finishing, now, NOT_YET)
                    self._finishing = NOT_YET
                    self._turn(now, TrainerState.SYNCING, step, transition)
                case changes.WeightsSynced(version):
                    if len(self.closings):
                        self.closings["synced"][-1] = now
                    self._turn(now, TrainerState.ASSEMBLING, version, transition)
                case changes.RunCompleted() | changes.RunStopped():
                    self.finish(now)
                    self.now = None

    def finish(self, now: int) -> None:
        """Close the present phase: the trace or the run is over."""
        if self.now is not None and self.now[2] < now:
            self._close(now, GOES_ON, NONE)

    def _turn(self, now: int, phase: TrainerState, step: int, transition: AppliedEvent) -> None:
        if self.now is not None and self.now[2] < now:
            event = transition.event
            ended_by = _NUMBER.get(type(event), len(ENDED_BY))
            prompt = event.attempt.prompt if isinstance(event, GroupFinished | GroupFailed | BackoffOver) else NONE
            self._close(now, ended_by, prompt)
        self.now = (phase, step, now)

    def _close(self, now: int, ended_by: int, prompt: int) -> None:
        assert self.now is not None, "only what began is closed"
        phase, step, since = self.now
        self.rows.append(step, phase, since, now)
        if phase is TrainerState.ASSEMBLING:
            self.waits.append(step, since, now, prompt, ended_by, *self._causes)
            self._causes = [0] * len(WaitCause)


def cause_of(*, running: int, in_flight: int, buffered: int, max_buffered: int | None, gate_open: bool) -> WaitCause:
    """What an assembling trainer waits for in such a state."""
    if running:
        return WaitCause.ROLLOUTS
    if in_flight:
        return WaitCause.RETRIES
    if not gate_open:
        return WaitCause.GATE
    if max_buffered is not None and buffered >= max_buffered:
        return WaitCause.BUFFER
    return WaitCause.NOTHING_RUNS
