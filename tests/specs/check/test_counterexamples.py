"""A counterexample is told with prompts, saved as a scenario that reproduces it, and as a test of the property."""

import pytest

from fsm.config.parse import parse_config
from specs.check.cases import Case, laws_in, say_bounds
from specs.check.concrete import Untold, concrete
from specs.check.saved import breaks, pytest_text, scenario_text
from specs.check.scaling import Scaled
from specs.check.story import tell_story
from specs.check.verdicts import check_case, check_cases
from specs.checker.explore import HOLDS, UNDETERMINED, VIOLATED, Result
from specs.counterexample import replay
from specs.engine.search import Bounds
from specs.model import CORE, Answer, CrashFrom, WorldOptions, initial, possible
from specs.scenarios.run import run_file

FAILS_ONLY = WorldOptions(claims_fail=False, late=False, crash=CrashFrom.NOTHING)

EVERYTHING = WorldOptions()


def case(sampler="weight_fifo", *, filters=True, minimum=2, buffer=None, num_prompts=9, world=EVERYTHING, **failure):
    key = "max_lookahead_versions" if sampler == "in_order" else "max_staleness_versions"
    config = parse_config(
        {
            "grpo": {"num_prompts_per_step": 2, "num_generations_per_prompt": 2, "use_dynamic_sampling": filters},
            "async_rl": {
                "sampler": {"name": sampler, key: 1},
                "min_groups_for_streaming_train": minimum,
                "max_buffered_rollouts": buffer,
                "rollout_failure": {"on_dropped_prompt": "replace", "min_step_batch_fraction": 0.5, **failure},
            },
        },
        check=False,
    )
    return Case("test", Scaled(config, num_prompts, 1, ()), world)


def story_of(some_case, *answers):
    """The state after some answers as if it were a counterexample."""
    laws = laws_in(some_case)
    given, state = [], initial(laws)
    for name in answers:
        fitting = (answer for answer in possible(state, laws, some_case.world) if answer.name == name)
        given.append(next(fitting))
        state = replay(laws, some_case.world, CORE, given)[-1].situation.state
    return Result(VIOLATED, "no_poll", 0, 0, tuple(given))


@pytest.fixture(scope="module")
def hang():
    finding = check_case(case(world=WorldOptions(crash=CrashFrom.NOTHING)))
    checked = check_cases([finding.case])
    return finding, checked.violations()


def test_weight_fifo_with_dynamic_sampling_hangs_in_at_most_25_events(hang):
    finding, violations = hang

    assert finding.verdict == VIOLATED
    assert [result.broken for _, result in violations] == ["deadlock", "staleness"], "the hang comes first"
    assert len(violations[0][1].counterexample) <= 25


def test_a_saved_hang_is_a_scenario_that_ends_deadlocked(hang, tmp_path):
    found, result = hang[1][0]
    path = tmp_path / "hang.yaml"
    path.write_text(scenario_text(found, result, concrete(found, result)), encoding="utf-8")

    assert "outcome: deadlocked" in path.read_text(encoding="utf-8")
    assert run_file(path, check_setup=False).problems == ()
    assert not run_file(path).holds, "setup refuses it"


def test_a_saved_test_passes_as_long_as_the_property_breaks(hang):
    for found, result in hang[1]:
        saved: dict[str, object] = {}
        exec(compile(pytest_text(found, result), "saved.py", "exec"), saved)
        saved[f"test_the_counterexample_breaks_{result.broken}"]()  # type: ignore[operator]


def test_a_story_that_breaks_nothing_is_not_said_to_break_anything(hang):
    _, result = hang[1][0]
    whole = list(result.counterexample)
    config = {"grpo": {"num_prompts_per_step": 2, "num_generations_per_prompt": 2}}

    assert not breaks(config, 8, WorldOptions(), whole, "deadlock"), "such a run filters nothing"
    assert not breaks(config, 8, WorldOptions(), [Answer("commit", whole[0].group_class)], "balance")


def test_a_story_names_prompts_and_says_what_each_step_has_and_what_the_run_waits_for(hang):
    found, result = hang[1][0]
    lines = tell_story(found, result, concrete(found, result))

    events = [line for line in lines if line.lstrip()[0].isdigit()]
    assert len(events) == len(result.counterexample)
    assert "the rollout of prompt 2 (bucket 0, start weight 0) finishes and is kept" in events[0]
    assert any("step 1: 1 selected, 1 charged of 2" in line for line in lines)
    assert "deadlocked, nothing can ever happen: weight_fifo selects none of the 2 ready groups" in lines[-1]


@pytest.mark.parametrize(
    "answers",
    [
        ("commit", "commit", "commit", "chunk_trained", "crash", "commit"),
        ("drop", "commit"),
        ("back_off", "commit", "end_backoff", "drop"),
        ("back_off", "back_off", "end_backoff", "end_backoff", "commit"),
        ("skip", "commit"),
        ("back_off", "late", "end_backoff", "filter"),
        ("commit", "commit", "claim_failed", "chunk_trained", "chunk_trained", "step_finished"),
    ],
    ids=" ".join,
)
def test_every_answer_of_the_world_can_be_told_with_prompts(answers, tmp_path):
    some = case("ready_first", minimum=1, max_consecutive_dropped_prompts=1, max_skipped_prompts=1)
    result = story_of(some, *answers)
    path = tmp_path / "story.yaml"
    path.write_text(scenario_text(some, result, concrete(some, result)), encoding="utf-8")

    assert run_file(path, check_setup=False).problems == ()


def test_a_story_that_no_budget_of_attempts_fits_is_not_told():
    some = case("ready_first", max_consecutive_dropped_prompts=1)
    retried_then_dropped_beside_dropped_at_once = story_of(some, "drop", "back_off", "end_backoff", "drop")

    with pytest.raises(Untold, match="one budget of attempts for all prompts"):
        concrete(some, retried_then_dropped_beside_dropped_at_once)


def test_a_bound_that_is_hit_is_undetermined_and_never_holds():
    fine = case("ready_first", filters=False)

    assert check_cases([fine], Bounds(seconds=0.0)).verdict == UNDETERMINED


def test_cases_on_two_processes_have_the_same_states_as_on_one():
    fine = case("in_order", filters=False, num_prompts=4, world=FAILS_ONLY)
    other = case("in_order", filters=False, num_prompts=6, world=FAILS_ONLY)
    one, two = check_cases([fine, other]), check_cases([fine, other], jobs=2)

    assert (one.verdict, one.states, one.transitions) == (HOLDS, two.states, two.transitions)
    assert [each.states for each in one.findings] == [each.states for each in two.findings]


def test_bounds_are_said_in_words():
    said = say_bounds(case(world=FAILS_ONLY))

    assert said.startswith("N 2, window 1, streaming minimum 2, buffer 4, in flight 4, floor 1, 9 prompts")
    assert said.endswith("groups are filtered, attempts fail and are dropped, retries back off")
