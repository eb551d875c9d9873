"""W2: a run that the watchdog stopped at a dead end is explained as it was, and its trace is replayed."""

from pathlib import Path

from fsm.errors import Deadlocked
from fsm.events import DeadEndReached
from runtime.explain.dead_ends import cause_of
from runtime.explain.explanation import EXIT
from runtime.explain.finding import RunVerdict
from runtime.trace.reader import open_trace
from runtime.trace.records import TransitionRecord
from runtime.trace.replay import replay
from tests.runtime.explain.helpers import Recorded, config_of, explained_run, recorded, recording

SAMPLER = {"name": "custom", "target": "tests.runtime.explain.helpers:NeverSelects", "max_staleness_versions": 1}


def to_the_dead_end(run: Recorded) -> None:
    run.commit(*run.in_flight())
    assert not run.world.core.can_go_on
    run.world.apply(DeadEndReached())


def test_it_is_deadlocked_and_the_error_comes_first(tmp_path: Path) -> None:
    explanation = recorded(tmp_path / "trace.jsonl", config_of(SAMPLER, 2), to_the_dead_end)
    assert (explanation.verdict, explanation.before) == (RunVerdict.STOPPED, RunVerdict.DEADLOCKED)
    assert EXIT[explanation.verdict] == 1
    assert explanation.waits_for[0].startswith("the run was stopped after 0 steps: Deadlocked: the run can")
    assert "led here by what it decided in select" in explanation.waits_for[0]
    assert "selects none of the 4 groups that are ready" in explanation.root


def test_its_trace_has_the_event_and_the_error_and_is_answered_the_same_by_todays_core(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    with recording(path, config_of(SAMPLER, 2)) as run:
        to_the_dead_end(run)
    assert explained_run(path).situation.stopped_by is not None
    assert type(explained_run(path).situation.stopped_by) is Deadlocked
    last = [record for record in open_trace(path).records() if isinstance(record, TransitionRecord)][-1]
    assert last.transition.event == DeadEndReached()
    result = replay(path, to=None, check=lambda core, before, transition: None)
    assert result.difference is None
    assert result.status == "stopped"


def test_a_step_that_lacks_a_known_cause_is_not_said_to_lack_data_while_data_is_left(tmp_path: Path) -> None:
    def cause(name: str, num_prompts: int) -> str:
        (tmp_path / name).mkdir()
        config = config_of("in_order", 2, async_rl={"max_buffered_rollouts": 64, "max_inflight_prompts": 1})
        explanation = recorded(tmp_path / name / "trace.jsonl", config, lambda run: None, num_prompts)
        return cause_of(explanation.situation).chain[-1]

    assert cause("much", 64).startswith("data is left, and what is in hand does not make up step 0")
    assert cause("none", 2).startswith("no data is left, and what is in hand does not make up step 0")
