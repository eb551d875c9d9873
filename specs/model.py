"""The world as the checker sees it: every answer that may come in a state, at any time.

An answer names a class, not a group. Whether a failed attempt is retried or given up on is an answer of the world too,
since the counts do not hold a prompt's attempts (DESIGN, section 3).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from fsm import answers, own_moves, pages
from fsm.explain import status
from fsm.laws import Laws
from fsm.moves import FailureKind, Move
from fsm.prompt_group import Tally
from fsm.samplers.protocol import labels_of
from fsm.state import NONE, GroupClass, State, is_over
from fsm.table import Fairness
from fsm.trainer import TrainerState


class Answer(NamedTuple):
    """One thing that the world may do."""

    name: str
    group_class: GroupClass | None = None
    label: int = 0


class World(NamedTuple):
    """What the world may do beside the answers that every run needs."""

    fails: bool = True
    """Attempts fail, and are retried or given up on."""
    backs_off: bool = True
    """A retry waits for its backoff."""
    claims_fail: bool = True
    crashes: bool = True
    """The process dies at any moment and resumes from a snapshot of that moment."""


FAIRNESS: dict[str, Fairness] = {
    "commit": Fairness.WEAK,
    "filter": Fairness.NONE,
    "retry": Fairness.NONE,
    "back_off": Fairness.NONE,
    "end_backoff": Fairness.WEAK,
    "drop": Fairness.NONE,
    "skip": Fairness.NONE,
    "claim_failed": Fairness.NONE,
    "chunk_trained": Fairness.WEAK,
    "step_finished": Fairness.WEAK,
    "weights_synced": Fairness.WEAK,
    "crash": Fairness.NONE,
}
"""What the world must do in the end if it stays possible; no run needs more than weak fairness."""


def initial(laws: Laws) -> State:
    """The state after Begin."""
    return own_moves.settle(answers.begin(laws), laws)[0]


def possible(state: State, laws: Laws, world: World) -> Iterator[Answer]:
    """Every answer that may come in this state."""
    if is_over(state):
        return
    labels = labels_of(laws.sampler)
    for group_class, _ in pages.items(state.running):
        for label in range(labels):
            yield Answer("commit", group_class, label)
        if laws.limits.dynamic_sampling:
            yield Answer("filter", group_class)
        if world.fails:
            yield Answer("back_off" if world.backs_off else "retry", group_class)
            yield Answer("drop", group_class)
            if laws.limits.max_skipped:
                yield Answer("skip", group_class)
    for group_class, _ in pages.items(state.backing_off):
        yield Answer("end_backoff", group_class)
    match state.trainer.status:
        case TrainerState.TRAINING:
            yield Answer("chunk_trained")
            if world.claims_fail:
                for group_class, _ in pages.items(state.chunk):
                    yield Answer("claim_failed", group_class)
        case TrainerState.FINISHING:
            yield Answer("step_finished")
        case TrainerState.SYNCING:
            yield Answer("weights_synced")
    if world.crashes:
        yield Answer("crash")


def _answer(state: State, laws: Laws, answer: Answer) -> answers.Done:
    group_class = answer.group_class or GroupClass()
    match answer.name:
        case "commit":
            return answers.commit(state, laws, group_class, answer.label)
        case "filter":
            return answers.filter_group(state, laws, group_class)
        case "retry" | "back_off":
            backs_off = answer.name == "back_off"
            return answers.retry(state, laws, group_class, FailureKind.INFRA, backs_off)
        case "end_backoff":
            return answers.end_backoff(state, laws, group_class)
        case "drop":
            return answers.give_up(state, laws, group_class, FailureKind.INFRA, "an attempt failed")
        case "skip":
            return answers.give_up(state, laws, group_class, FailureKind.DATA, "an attempt failed")
        case "claim_failed":
            return answers.fail_claim(state, laws, group_class, "a group is unreadable")
        case "chunk_trained":
            return answers.finish_chunk(state, laws)
        case "step_finished":
            return answers.close_step(state, laws)
        case "weights_synced":
            return answers.finish_sync(state, laws)
        case "crash":
            return answers.resume(state, laws)
    raise ValueError(f"{answer.name} is no answer of the world")


def after(state: State, laws: Laws, answer: Answer) -> tuple[State, list[Move]]:
    """The state after an answer and all of the core's own moves."""
    state, done = _answer(state, laws, answer)
    state, own = own_moves.settle(state, laws)
    return state, done + own


def key(state: State) -> State:
    """The state without what no rule reads: the balance sheet's closed columns."""
    tally = state.tally
    return state._replace(tally=Tally(NONE, tally.spare, tally.queued, tally.in_flight, tally.ready, tally.selected))


def deadlocked(state: State) -> bool:
    """Nothing can ever happen again, and the run is not over."""
    return status(state) == "deadlocked"
