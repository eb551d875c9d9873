"""Our side of the comparison: how many states and transitions the core has, counted with nothing else going on."""

from __future__ import annotations

import time
from collections.abc import Iterator

from fsm import answers, own_moves, pages
from fsm.laws import Laws
from fsm.moves import FailureKind
from fsm.prompt_group import Tally
from fsm.state import NONE, State, is_over
from fsm.trainer import TrainerState
from specs.twins.configurations import Configuration
from specs.twins.counts import Counts


def _key(state: State) -> State:
    """The state without what no rule reads: the balance sheet's closed columns."""
    tally = state.tally
    return state._replace(tally=Tally(NONE, tally.spare, tally.queued, tally.in_flight, tally.ready, tally.selected))


def _said(state: State, laws: Laws, run: Configuration) -> Iterator[answers.Done]:
    """The state after each answer that the world may give now."""
    limits, infra, data = laws.limits, FailureKind.INFRA, FailureKind.DATA
    for group_class, _ in pages.items(state.running):
        yield answers.commit(state, laws, group_class, 0)
        if limits.dynamic_sampling:
            yield answers.filter_group(state, laws, group_class)
        if run.fails:
            yield answers.retry(state, laws, group_class, infra, run.backs_off)
            yield answers.give_up(state, laws, group_class, infra, "an attempt failed")
            if limits.max_skipped:
                yield answers.give_up(state, laws, group_class, data, "an attempt failed")
    for group_class, _ in pages.items(state.backing_off):
        yield answers.end_backoff(state, laws, group_class)
    match state.trainer.status:
        case TrainerState.TRAINING:
            yield answers.finish_chunk(state, laws)
            if run.claims_fail:
                for group_class, _ in pages.items(state.chunk):
                    yield answers.fail_claim(state, laws, group_class, "a group is unreadable")
        case TrainerState.FINISHING:
            yield answers.close_step(state, laws)
        case TrainerState.SYNCING:
            yield answers.finish_sync(state, laws)
    if run.crashes:
        yield answers.resume(state, laws)


def count(run: Configuration) -> Counts:
    """All states and transitions of a run. Raises ConfigError."""
    laws = run.laws()
    begun = time.perf_counter()
    first = own_moves.settle(answers.begin(laws), laws)[0]
    reached, frontier, transitions = {_key(first)}, [first], 0
    while frontier:
        state = frontier.pop()
        if is_over(state):
            continue
        for answered, _ in _said(state, laws, run):
            following = own_moves.settle(answered, laws)[0]
            transitions += 1
            if (known := _key(following)) not in reached:
                reached.add(known)
                frontier.append(known)
    return Counts(len(reached), transitions, time.perf_counter() - begun)
