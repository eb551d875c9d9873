"""Each way of being stuck is told by its verdict and its root, from the trace alone."""

from pathlib import Path
from unittest.mock import patch

import pytest

from fsm.events import FailureKind
from fsm.rules import losses, own_moves
from fsm.state import GroupClass
from runtime.explain.finding import RunVerdict
from runtime.trace.notes import CallBegan, CallEnded, WorkerDied, WorkerStarted
from runtime.wording import counted
from tests.runtime.explain.helpers import (
    BEGAN_UNIX_S,
    Recorded,
    charged_to_none,
    config_of,
    explained_run,
    recorded,
    recording,
    restamped,
)

REPLACE = {"on_dropped_prompt": "replace"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.jsonl"


def test_a_weight_fifo_bucket_two_short_is_a_deadlock_whose_root_is_the_bucket(path: Path) -> None:
    """D3, S2: 16 groups ready, none selectable, spares left."""
    config = config_of("weight_fifo", 8, grpo={"use_dynamic_sampling": True}, failure=REPLACE)

    def drive(run: Recorded) -> None:
        run.commit(*run.in_flight()[:8])
        run.close()
        run.filter(*[prompt for prompt in run.in_flight() if prompt < 24][:2])
        run.commit(*run.in_flight())

    with patch.object(losses, "replace_or_lose", restamped):
        explanation = recorded(path, config, drive)
    state = explanation.situation.state
    assert explanation.verdict is RunVerdict.DEADLOCKED
    assert (state.sheet.ready, state.sheet.in_flight, state.pool.spares > 0) == (16, 0, True)
    assert "the oldest bucket, 0, cannot be filled any more: 6 of 8" in explanation.root
    assert "nothing queued or in flight for it" in explanation.root
    assert any("6 of 16 ready groups are eligible, 8 are needed" in line for line in explanation.proof)


def test_a_loss_charged_to_no_step_is_a_deadlock_once_nothing_else_is_in_flight(path: Path) -> None:
    """L3."""
    config = config_of(
        "in_order", 2, failure={"max_infra_attempts_per_prompt": 1, "max_consecutive_dropped_prompts": 9}
    )

    def drive(run: Recorded) -> None:
        run.commit(0, 2, 3)
        run.world.drop(1, FailureKind.INFRA)
        run.later(34.0)

    with patch.object(losses, "ask_charge", charged_to_none):
        explanation = recorded(path, config, drive)
    assert explanation.verdict is RunVerdict.DEADLOCKED
    situation = explanation.situation
    assert (situation.step, situation.state.step.selected, situation.charged, situation.limits.size) == (0, 0, 0, 2)
    assert "the step waits for a group that was lost: prompt 1 (dispatch 1, for step 0" in explanation.root
    assert "34 s ago, given up on after infra failures: the world failed it; charged to no step" in explanation.root


def test_a_loss_charged_to_no_step_is_a_livelock_while_others_go_on(path: Path) -> None:
    """L3: the groups of the next step may still finish, and step 0 can never close."""
    config = config_of("in_order", 2, grpo={"use_dynamic_sampling": True}, failure=REPLACE)

    def drive(run: Recorded) -> None:
        assert run.in_flight() == [2, 3, 4, 5]  # the first two are spares
        run.commit(2)
        run.filter(3)
        run.filter(0)  # the spare that took over the slot, and the last that it may have
        assert run.in_flight() == [4, 5]

    with patch.object(losses, "ask_charge", charged_to_none):
        explanation = recorded(path, config, drive)
    assert explanation.verdict is RunVerdict.LIVELOCKED
    assert "the step waits for a group that was lost: prompt" in explanation.root
    assert "filtered, all rewards 1; charged to no step" in explanation.root
    assert explanation.proof[0].startswith("of all ")
    assert explanation.proof[0].endswith("none closes step 0")


def test_a_buffer_below_the_streaming_minimum_is_a_deadlock_whose_root_is_the_buffer(path: Path) -> None:
    """A4."""
    config = config_of("ready_first", 8, async_rl={"max_buffered_rollouts": 4})
    explanation = recorded(path, config, lambda run: run.commit(*run.in_flight()))
    assert explanation.verdict is RunVerdict.DEADLOCKED
    assert "the buffer is full, below what selection needs: max_buffered_rollouts is 4" in explanation.root
    assert "8 eligible groups are needed" in explanation.root
    assert "max_buffered_rollouts" in explanation.advice


def test_a_sampler_that_never_selects_is_named_with_what_was_ready(path: Path) -> None:
    config = config_of({"name": "custom", "target": "tests.runtime.explain.helpers:NeverSelects"}, 2)
    explanation = recorded(path, config, lambda run: run.commit(*run.in_flight()))
    assert explanation.verdict is RunVerdict.DEADLOCKED
    name = "custom tests.runtime.explain.helpers:NeverSelects"
    assert f"sampler {name} selects none of the 4 groups that are ready" in explanation.root
    assert "4 start weight 0" in explanation.root


def test_a_sampler_that_wants_more_than_it_is_asked_for_is_the_root_and_not_the_gate(path: Path) -> None:
    target = "tests.runtime.explain.helpers:AsksForTwice"
    config = config_of({"name": "custom", "target": target, "max_staleness_versions": 0}, 4)
    explanation = recorded(path, config, lambda run: run.commit(*run.in_flight()))
    assert explanation.verdict is RunVerdict.DEADLOCKED
    name = "custom tests.runtime.explain.helpers:AsksForTwice"
    assert f"sampler {name} selects none of the 4 groups that are ready" in explanation.root
    assert any("takes none of 4 ready groups when it is asked for 4 to 4" in line for line in explanation.proof)


def test_a_gate_that_waits_for_a_version_of_the_step_itself_is_a_deadlock(path: Path) -> None:
    """A1."""
    config = config_of({"name": "custom", "target": "tests.runtime.explain.helpers:WaitsForTheNextVersion"}, 2)
    explanation = recorded(path, config, lambda run: run.later(5.0))
    assert explanation.verdict is RunVerdict.DEADLOCKED
    assert "the gate is closed at dispatch index -1: it needs version 1, and the version is 0" in explanation.root
    assert "the version moves when step 0 closes, which waits for that batch" in explanation.root


def a_usual_step(run: Recorded, each_s: float = 2.0) -> None:
    """The step being assembled closes; every rollout takes `each_s`, every call of the trainer 1 s."""
    run.later(each_s)
    version = run.world.core.state.trainer.version
    for prompt in run.in_flight():
        if run.world.core.state.trainer.version == version and run.world.status == "waiting_for_rollouts":
            run.commit(prompt)
    for step in (run.world.chunk_trained, run.world.step_finished):
        run.later(1.0)
        step()
    run.note(CallBegan("load", version + 1))
    run.later(1.0)
    run.note(CallEnded("load", version + 1))
    run.world.weights_synced()
    run.later(0.0)


def test_a_rollout_that_hangs_without_a_deadline_is_a_stall_whose_root_is_that_rollout(path: Path) -> None:
    def drive(run: Recorded) -> None:
        for _ in range(3):
            a_usual_step(run)
        run.commit(*run.in_flight()[1:])
        run.later(1_200.0)

    explanation = recorded(path, config_of("in_order", 4), drive)
    [(prompt, _)] = [(r.attempt.prompt, r) for r in explanation.situation.vitals.rollouts.values()]
    assert explanation.verdict is RunVerdict.STALLED
    assert f"prompt {prompt} (dispatch {prompt}, slot {prompt}, start weight" in explanation.root
    assert f"on generation-{prompt % 2} for 20 min" in explanation.root
    assert "rollouts that finished: typically" in explanation.root
    assert "no deadline" in explanation.root
    assert "rollout_timeout_s" in explanation.advice


def test_a_rollout_that_hangs_beside_enough_others_stalls_nothing(path: Path) -> None:
    """ready_first goes on with whatever is ready, so the hanging rollout only holds a slot."""

    def drive(run: Recorded) -> None:
        for _ in range(3):
            a_usual_step(run)
        run.later(1_200.0)
        run.commit(*run.in_flight()[1:5])
        run.close()

    explanation = recorded(path, config_of({"name": "ready_first", "max_staleness_versions": 2}, 4), drive)
    assert explanation.verdict in (RunVerdict.HEALTHY, RunVerdict.SLOW)


def test_all_workers_dead_is_a_stall_since_when(path: Path) -> None:
    def drive(run: Recorded) -> None:
        a_usual_step(run)
        run.note(WorkerDied("generation-0", "killed by signal 9\nwith a second line"))
        run.later(10.0)
        run.note(WorkerDied("generation-1", "out of memory"))
        run.later(50.0)

    explanation = recorded(path, config_of("in_order", 4), drive)
    assert explanation.verdict is RunVerdict.STALLED
    assert "all 2 generation workers are dead, the last for 50 s" in explanation.root
    assert "generation-0 for 60 s, killed by signal 9; generation-1 for 50 s, out of memory" in explanation.root


def test_one_dead_worker_of_two_is_no_stall(path: Path) -> None:
    def drive(run: Recorded) -> None:
        a_usual_step(run)
        run.note(WorkerDied("generation-0", "killed"))
        run.later(1.0)
        run.note(WorkerStarted("generation-0"))
        run.note(WorkerDied("generation-1", "killed"))
        run.later(1.0)

    assert recorded(path, config_of("in_order", 4), drive).verdict is RunVerdict.SLOW


@pytest.mark.parametrize(
    ("call", "root"),
    [
        ("accumulate", "the trainer has a chunk of step 2 and has not reported it trained, for 15 min"),
        ("finish_step", "the trainer was asked for the optimizer step 2 and has not reported it done, for 15 min"),
        ("sync", "the sync of version 3 has not ended"),
        ("load", "the generation workers were asked to load version 3 and have not all done so, for 15 min"),
    ],
)
def test_a_call_that_is_not_answered_is_a_stall_with_its_step_and_age(path: Path, call: str, root: str) -> None:
    def drive(run: Recorded) -> None:
        for _ in range(2):
            a_usual_step(run)
        run.commit(*run.in_flight()[:4])
        if call != "accumulate":
            run.world.chunk_trained()
        if call in ("sync", "load"):
            run.world.step_finished()
        if call == "load":
            run.note(CallBegan("load", 3))
        run.later(900.0)

    explanation = recorded(path, config_of("in_order", 4), drive)
    assert explanation.verdict is RunVerdict.STALLED
    assert root in explanation.root
    assert "typically 1.0 s (p99 1.0 s, last 2)" in explanation.root
    assert "sync" not in call or explanation.situation.step == 3


def test_a_run_that_filters_everything_is_starved_with_the_shares(path: Path) -> None:
    """L1: three of four groups are all right, one all wrong."""
    config = config_of("windowed", 4, grpo={"use_dynamic_sampling": True})

    def drive(run: Recorded) -> None:
        for number in range(20):
            run.later(1.0)
            run.filter(run.in_flight()[0], correct=0 if number % 4 == 0 else 4)

    explanation = recorded(path, config, drive, num_prompts=1_000)
    assert explanation.verdict is RunVerdict.STARVED
    assert "of the last 20 groups 75% are all right and 25% all wrong" in explanation.root
    assert "too easy" in explanation.advice


def test_a_search_that_was_given_up_is_starved(path: Path) -> None:
    """L8."""
    config = config_of("in_order", 2, grpo={"use_dynamic_sampling": True, "dynamic_sampling_max_gen_batches": 1},
                       failure={**REPLACE, "max_replacement_attempts": 9})  # fmt: skip

    def drive(run: Recorded) -> None:
        while not run.world.over:
            run.filter(min(run.in_flight()), correct=0)

    explanation = recorded(path, config, drive)
    assert (explanation.verdict, explanation.before) == (RunVerdict.STOPPED, RunVerdict.STARVED)
    assert "the run was stopped after 0 steps: SearchExceeded" in explanation.waits_for[0]
    assert "100% all wrong" in explanation.root


def test_long_rollouts_and_nothing_wrong_is_slow_with_the_oldest_rollouts(path: Path) -> None:
    def drive(run: Recorded) -> None:
        for seconds in (200.0, 400.0, 600.0):
            a_usual_step(run, seconds)
        run.later(300.0)

    explanation = recorded(path, config_of("in_order", 4), drive)
    oldest = min(explanation.situation.vitals.rollouts)
    assert explanation.verdict is RunVerdict.SLOW
    assert "the oldest rollouts, within the usual range: prompt" in explanation.root
    assert f"(dispatch {oldest}, " in explanation.root
    assert "typically 10 min 3 s" in explanation.root


def test_a_rollout_older_than_all_before_is_not_said_to_be_usual(path: Path) -> None:
    def drive(run: Recorded) -> None:
        for _ in range(3):
            a_usual_step(run)
        run.later(25.0)

    explanation = recorded(path, config_of("in_order", 4), drive)
    assert explanation.verdict is RunVerdict.SLOW
    assert "the oldest rollouts, older than usual (99 % took at most" in explanation.root
    assert "it counts as stalled from 70 s on" in explanation.advice
    assert "within the usual range" not in explanation.root
    assert "nothing is wrong" not in explanation.advice


def test_a_run_whose_rollouts_are_young_is_healthy(path: Path) -> None:
    def drive(run: Recorded) -> None:
        for _ in range(3):
            a_usual_step(run, 200.0)
        run.later(3.0)

    explanation = recorded(path, config_of("in_order", 4), drive)
    assert explanation.verdict is RunVerdict.HEALTHY
    assert explanation.waits_for[0].startswith("step 3 has 0 selected and 0 charged of 4 and waits for 4 more")


@pytest.mark.parametrize(
    ("max_num_steps", "ended_by"),
    [
        (None, "its data is used up, with grpo.max_num_epochs 1 (X1), 0 prompts left over"),
        (1, "grpo.max_num_steps is 1 (X3), 0 prompts left over"),
    ],
)
def test_a_run_that_is_over_is_completed_and_says_which_limit_ended_it(
    path: Path, max_num_steps: int | None, ended_by: str
) -> None:
    def drive(run: Recorded) -> None:
        while not run.world.over:
            a_usual_step(run)

    config = config_of("in_order", 4, grpo={"max_num_steps": max_num_steps})
    explanation = recorded(path, config, drive, num_prompts=8)
    assert explanation.verdict is RunVerdict.COMPLETED
    steps = max_num_steps or 2
    assert explanation.root == f"the run is completed after {counted(steps, 'step')} and waits for nothing: {ended_by}"


def test_a_run_that_the_watchdog_stopped_is_explained_as_it_was_before(path: Path) -> None:
    """W2."""
    config = config_of("ready_first", 8, async_rl={
        "max_buffered_rollouts": 4, "stall_watchdog": {"stall_timeout_s": 60, "stall_action": "abort"}})  # fmt: skip

    def drive(run: Recorded) -> None:
        run.commit(*run.in_flight())
        run.later(61.0)
        assert run.world.over

    explanation = recorded(path, config, drive)
    assert (explanation.verdict, explanation.before) == (RunVerdict.STOPPED, RunVerdict.DEADLOCKED)
    assert explanation.waits_for[0].startswith("the run was stopped after 0 steps: Stalled: no group finished")
    assert explanation.waits_for[1].startswith("before that it was deadlocked: step 0 has 0 selected")
    assert explanation.proof
    assert "the buffer is full" in explanation.root


def test_an_earlier_moment_is_explained_as_it_was(path: Path) -> None:
    with recording(path, config_of("in_order", 4)) as run:
        for _ in range(3):
            a_usual_step(run)
        seq = run.trace.records
        first, *others = run.in_flight()
        run.commit(*others)
        run.later(1_200.0)
        run.commit(first)
    assert explained_run(path).verdict is RunVerdict.HEALTHY
    assert explained_run(path, seq=seq - 1).verdict is RunVerdict.HEALTHY
    then = explained_run(path, unix_s=BEGAN_UNIX_S + 900.0)
    assert then.verdict is RunVerdict.STALLED
    assert f"prompt {first} " in then.root


def test_a_move_that_was_due_and_not_made_is_named(path: Path) -> None:
    """A3: a gate that nobody opens."""
    without = tuple(move for move in own_moves.OWN_MOVES if move is not own_moves.admit)

    with (
        patch.object(own_moves, "OWN_MOVES", without),
        patch.object(own_moves, "_WHILE_THE_GATE_STAYS", without),
        recording(path, config_of("in_order", 2)) as run,
    ):
        run.later(1.0)
    explanation = explained_run(path)
    assert explanation.verdict is RunVerdict.DEADLOCKED
    assert "the core did not make a move that was due: BatchAdmitted" in explanation.root


def test_what_holds_a_step_up_is_looked_for_among_its_own_groups(path: Path) -> None:
    """S2: under in_order the groups of the next step, however old, hold nothing up."""

    def drive(run: Recorded) -> None:
        for seconds in (200.0, 300.0):
            a_usual_step(run, seconds)
        run.later(290.0)

    explanation = recorded(path, config_of("in_order", 4), drive)
    own = GroupClass(target_step=2)
    assert explanation.verdict is RunVerdict.SLOW
    assert f"(for step {own.target_step}, start weight" in explanation.waits_for[1]
    assert "step 3" not in explanation.waits_for[1]
