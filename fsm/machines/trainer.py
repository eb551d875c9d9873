"""Trainer: what the trainer is busy with, and the weight version.

The version moves when the optimizer step finishes, before its weights are synced.
"""

from enum import IntEnum
from typing import NamedTuple

from fsm.machines.table import Rule, Table


class TrainerState(IntEnum):
    """What the trainer is busy with."""

    ASSEMBLING = 0
    """With nothing: the step being assembled waits for groups."""
    TRAINING = 1
    """A chunk."""
    FINISHING = 2
    """The optimizer step."""
    SYNCING = 3
    """With nothing: the generation workers load the weights that it has published."""


class Trainer(NamedTuple):
    """The trainer's value."""

    status: TrainerState = TrainerState.ASSEMBLING
    version: int = 0
    """Optimizer steps done; also the number of the step being trained. Never falls."""


class TrainerContext(NamedTuple):
    """What the trainer's rules look at."""

    chunk: int = 0
    """Groups of the chunk that is handed over; at least 1."""


def _has_groups(_: Trainer, context: TrainerContext) -> bool:
    return context.chunk >= 1


def _next_version(trainer: Trainer, _: TrainerContext) -> Trainer:
    return Trainer(trainer.status, trainer.version + 1)


def trainer_holds(trainer: Trainer, _: TrainerContext) -> bool:
    """The version counts optimizer steps."""
    return trainer.version >= 0


_ASSEMBLING, _TRAINING, _FINISHING, _SYNCING = TrainerState

TRAINER: Table[Trainer, TrainerContext] = Table(
    name="Trainer",
    states=TrainerState,
    initial=_ASSEMBLING,
    rules=(
        Rule("train_chunk", (_ASSEMBLING,), _TRAINING, ("S1", "S4"), guards=(_has_groups,)),
        Rule("chunk_trained", (_TRAINING,), _ASSEMBLING, ("S5", "L5")),
        Rule("finish", (_ASSEMBLING,), _FINISHING, ("L5",)),
        Rule("step_finished", (_FINISHING,), _SYNCING, ("L5",), update=_next_version),
        Rule("weights_synced", (_SYNCING,), _ASSEMBLING, ("D1", "X3")),
        # A checkpoint taken during a sync resumes after it; any other unfinished work is taken back.
        Rule("resume", (_ASSEMBLING, _TRAINING, _FINISHING, _SYNCING), _ASSEMBLING, ("C2",)),
    ),
    refusals={
        "train_chunk": "a chunk of at least one group is handed to a trainer that is assembling",
        "chunk_trained": "a chunk is reported trained while one is in training",
        "finish": "the optimizer step is asked for while no chunk is in training",
        "step_finished": "an optimizer step is reported finished after it was asked for",
        "weights_synced": "a sync is reported over after it was asked for",
        "resume": "always possible",
    },
    invariant=trainer_holds,
)
