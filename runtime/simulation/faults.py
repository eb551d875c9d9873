"""The kinds of faults."""

from enum import StrEnum

from fsm.errors import EvenstepError


class Fault(StrEnum):
    """What goes wrong. The value is its name in tables and reports."""

    INFRA = "attempt fails (infra)"
    DATA = "attempt fails (data)"
    VERDICT = "verifier raises"
    HANG = "attempt is never answered"
    TOO_LATE = "attempt is answered after its deadline"
    TWICE = "answer comes twice"
    EARLIER_LIFE = "answer to an earlier controller"
    WORKER_DIES = "worker dies"
    WORKER_DIES_LOADING = "worker dies in a load"
    WORKER_DIES_AGAIN = "worker dies as it restarts"
    ANSWER_AFTER_DEATH = "answer of a worker that died"
    EVALUATION_REPEATED = "part of a validation is repeated"
    ROW_UNREADABLE = "row is unreadable"
    STORE_LOST = "group store loses every row"
    TRAINER_SLOW = "trainer is slow"
    TRAINER_DIES = "trainer dies"
    SYNC_SLOW = "weight sync is slow"
    PUBLISH_FAILS = "publishing fails"
    NO_TOKENS = "step without a trained token"
    DISK_FULL = "checkpoint is refused"
    CRASH = "controller crashes"
    INTERRUPT = "run is interrupted"


SCHEDULED = (Fault.WORKER_DIES, Fault.STORE_LOST, Fault.CRASH, Fault.INTERRUPT)
"""These strike at moments; the others at what they happen to."""


class ActorGone(EvenstepError):
    """A simulated actor whose loss ends the run, which resumes from a checkpoint."""
