"""`validation.sets`: what a set inherits and is refused for; a configuration without sets is as before."""

import json
import re
from pathlib import Path

import pytest
import yaml
from transformers import GPT2Config, GPT2LMHeadModel

from fsm.errors import ConfigError
from runtime.evaluation.config import DEFAULT_SET
from runtime.evaluation.sets import EvaluationSet, engine_limits
from runtime.generation.config import Sampling
from runtime.launch.examinee import load_evaluation
from runtime.launch.model import model_refusals
from runtime.launch.preflight import trained_sets
from runtime.settings import load_settings
from runtime.tasks.config import DataConfig, JsonlTaskConfig, SortTaskConfig
from runtime.tasks.data import load_task
from runtime.tasks.rewards import RatedByFunctions
from runtime.tasks.split import Split


def sets(*overrides: str) -> dict[str, EvaluationSet]:
    return {each.name: each for each in load_settings(None, overrides).sets}


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "test.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"{n}", "answer": f"{n}"}) + "\n" for n in range(30)))
    return path


def test_without_sets_there_is_the_one_that_validation_describes() -> None:
    found = sets("validation.rollouts_per_prompt=4", "generation.top_p=0.9", "validation.every_steps=7")
    assert list(found) == [DEFAULT_SET]
    one = found[DEFAULT_SET]
    assert one.sampling == Sampling(1.0, 0.9, None, 16, "evaluation")
    assert (one.rollouts_per_prompt, one.every_steps, one.key) == (4, 7, "validation")
    assert sets("data.validation_size=0") == {}


def test_a_set_has_its_own_keys_then_those_of_validation_then_those_of_generation() -> None:
    found = sets(
        "validation.temperature=0.6",
        "generation.top_k=5",
        "validation.sets.greedy={temperature: 0, top_k: 0, every_steps: 0}",
        "validation.sets.long={max_new_tokens: 50, rollouts_per_prompt: 8, seed: 3}",
    )
    assert list(found) == ["greedy", "long"], "in the order of the file; the default set is not among them"
    assert found["greedy"].sampling == Sampling(0.0, 1.0, None, 16, "evaluation")
    assert found["greedy"].every_steps is None
    assert found["long"].sampling == Sampling(0.6, 1.0, 5, 50, "evaluation")
    assert (found["long"].rollouts_per_prompt, found["long"].seed, found["long"].every_steps) == (8, 3, 50)


def test_a_file_of_its_own_is_measured_whole_and_the_rest_of_the_data_block_is_the_run_s(lines: Path) -> None:
    found = sets(
        "data.prompt_template='Q: {prompt}'",
        "data.num_prompts=100",
        f"validation.sets.test.data.task={{name: jsonl, path: {lines}}}",
        "validation.sets.other.data.validation_size=5",
    )
    test, other = found["test"].data, found["other"].data
    assert test.prompt_template == "Q: {prompt}"
    assert load_task(test, "validation").num_prompts == 30
    assert other.task.name == "reverse"
    assert load_task(other, "validation").num_prompts == 5
    few = sets(f"validation.sets.test.data={{task: {{name: jsonl, path: {lines}}}, held_out_fraction: 0.3}}")
    assert 0 < load_task(few["test"].data, "validation").num_prompts < 30


RATED = "{name: jsonl, path: %s, rewards: [{target: 'm:f'}, {target: 'm:g', weight: 0.5}], correct_from: f}"


@pytest.mark.parametrize("name", ["jsonl", "dataset"])
def test_a_file_of_its_own_is_rated_as_the_run_s_rows_are(name: str, lines: Path) -> None:
    run = f"data.task={RATED % lines}"
    [own] = sets(run, f"validation.sets.hard.data.task={{name: {name}, path: {lines}, correct_at: 0.5}}").values()
    assert isinstance(own.data.task, RatedByFunctions)
    assert [reward.label for reward in own.data.task.rewards] == ["f", "g"]
    assert (own.data.task.verifier, own.data.task.correct_from, own.data.task.correct_at) == (None, "f", 0.5)


def test_a_file_with_a_verifier_of_its_own_inherits_nothing_of_the_run_s(lines: Path) -> None:
    run = f"data.task={RATED % lines}"
    [own] = sets(run, f"validation.sets.hard.data.task={{name: jsonl, path: {lines}, verifier: 'm:h'}}").values()
    assert own.data.task == JsonlTaskConfig(path=lines, verifier="m:h")
    [drawn] = sets(run, "validation.sets.drawn.data.task={name: sort}").values()
    assert drawn.data.task == SortTaskConfig()


def test_the_resolved_configuration_reads_back_as_the_same_sets(lines: Path, tmp_path: Path) -> None:
    settings = load_settings(None, [f"validation.sets.test.data.task={{name: jsonl, path: {lines}}}"])
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(settings.model_dump(mode="json")))
    assert load_settings(tmp_path / "config.yaml") == settings


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("validation.sets.a.temperatur=0", r"sets\.a\.temperatur is not a known key .*did you mean temperature"),
        ("validation.sets.a.data.chatt=true", r"sets\.a\.data\.chatt is not a known key .*did you mean chat"),
        ("validation.sets={training: {}}", r"sets has the name 'training'.*other than training"),
        ("validation.sets.validation.seed=1", r"sets has the name 'validation'.*training and validation"),
        (
            f"validation.sets={{{'a' * 64}: {{}}, {'b' * 300}: {{}}}}",
            r"sets has the name 'b{20}'… of 300.* at most 64 in",
        ),
        ("validation.sets={'2 b': {}}", r"sets has the name '2 b'.*take a letter followed by"),
        (
            "validation.sets.a.data.validation_size=0",
            r"sets\.a has no prompts.*set validation\.sets\.a\.data",
        ),
        ("validation.sets.a.rollouts_per_prompt=1000", r"sets\.a\.rollouts_per_prompt is 1000.*max_batch_sequences"),
    ],
)
def test_a_set_that_cannot_be_is_refused_with_its_key(override: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load_settings(None, [override])


def test_a_key_of_the_data_block_is_named_once_for_all_the_places_it_may_be_in() -> None:
    with pytest.raises(ConfigError, match=r"generation\.validation_size .*it is a key of data; the known"):
        load_settings(None, ["generation.validation_size=3"])


def test_an_engine_serves_training_and_the_longest_set() -> None:
    settings = load_settings(None, ["validation.sets.long={max_new_tokens: 500, max_prompt_tokens: 30}"])
    limits = engine_limits(settings.generation, settings.sets)
    assert (limits.max_new_tokens, limits.max_prompt_tokens) == (500, 64)


@pytest.mark.parametrize(
    ("long", "says"),
    [
        ("{max_new_tokens: 8}", r"positions and generation\.max_prompt_tokens \+ max_new_tokens is 80"),
        ("{max_new_tokens: 500}", r"generation\.max_prompt_tokens \+ validation\.sets\.long\.max_new_tokens is 564"),
        (
            "{max_new_tokens: 500, max_prompt_tokens: 70}",
            r"validation\.sets\.long\.max_prompt_tokens \+ max_new_tokens is 570",
        ),
    ],
)
def test_a_set_that_is_longer_than_the_model_is_refused_with_its_key(long: str, says: str) -> None:
    settings = load_settings(None, [f"validation.sets.long={long}"])
    model = GPT2LMHeadModel(GPT2Config(n_positions=72, n_embd=8, n_layer=1, n_head=1, vocab_size=8))
    refusals = model_refusals(settings, model)
    assert any(re.search(says, refusal) for refusal in refusals), refusals


def test_what_only_training_needs_is_not_refused_for_an_evaluation(tmp_path: Path) -> None:
    greedy = ["generation.temperature=0", "generation.max_new_tokens=500"]
    with pytest.raises(ConfigError, match="siblings would be equal"):
        load_settings(None, greedy)
    (tmp_path / "empty.yaml").write_text("")
    [one] = load_evaluation(tmp_path / "empty.yaml", greedy).sets
    assert one.sampling == Sampling(0.0, 1.0, None, 500, "evaluation")


OTHER = "validation.sets.a.data.task={{name: jsonl, path: {path}, verifier: contains}}"


def prompts_of(data: DataConfig, split: Split) -> set[str]:
    task = load_task(data, split)
    return {task.prompt(index) for index in range(task.num_prompts)}


@pytest.mark.parametrize("held_out_apart", [False, True])
def test_a_set_on_the_training_file_measures_what_the_run_holds_out(lines: Path, held_out_apart: bool) -> None:
    apart = lines.with_name("apart.jsonl")
    apart.write_text("".join(lines.read_text().splitlines(keepends=True)[:7]))
    validation = f", validation_path: {apart}" if held_out_apart else ""
    run = [f"data.task={{name: jsonl, path: {lines}{validation}}}", "data.held_out_fraction=0.3"]
    same_file = lines.parent / ".." / lines.parent.name / lines.name
    settings = load_settings(None, [*run, OTHER.format(path=same_file)])
    [one] = settings.sets
    measured = prompts_of(one.data, "validation")
    assert measured == prompts_of(settings.data, "validation")
    assert measured.isdisjoint(prompts_of(settings.data, "training"))
    assert trained_sets(settings.data, settings.sets) == []


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (
            ["data.validation_size=0", "validation.sets.a.data.validation_size=9"],
            r"validation_size is 0; set that",
        ),
        (["data.held_out_fraction=0", OTHER], r"data\.held_out_fraction is 0; set that above 0"),
        (["validation.sets.a.data.held_out_fraction=1"], r"all but 0\.1 of .*set it to 0\.1 or less"),
        (
            ["validation.sets.a.data.task={{name: jsonl, path: {path}, validation_path: {path}}}"],
            r"leave validation_path .* data\.held_out_fraction holds out",
        ),
        (
            ["data.task.validation_path={apart}", "validation.sets.a.data.task={{name: dataset, path: {path}}}"],
            r"leave validation_path .* what data\.task of the run holds out",
        ),
    ],
)
def test_a_set_of_rows_that_are_trained_on_is_refused(lines: Path, overrides: list[str], says: str) -> None:
    apart = lines.with_name("apart.jsonl")
    apart.write_text('{"prompt": "3", "answer": "3"}\n')
    given = [f"data.task={{name: jsonl, path: {lines}}}", *(each.format(path=lines, apart=apart) for each in overrides)]
    settings = load_settings(None, given)
    [problem] = trained_sets(settings.data, settings.sets)
    assert problem.startswith("validation.sets.a: it")
    assert re.search(says, problem)


@pytest.mark.parametrize(
    "task",
    ["{name: reverse}", "{name: sort}", "{name: reasoning_gym, dataset: chain_sum}"],
)
def test_a_set_of_drawn_prompts_that_holds_out_more_than_the_run_is_refused(task: str) -> None:
    def problems(*overrides: str) -> list[str]:
        settings = load_settings(None, [f"data.task={task}", "data.held_out_fraction=0.2", *overrides])
        return trained_sets(settings.data, settings.sets)

    [problem] = problems("validation.sets.a.data.held_out_fraction=0.5")
    assert problem.startswith("validation.sets.a: its data.held_out_fraction is 0.5, and the run draws prompts of the")
    assert problem.endswith("all but 0.2 of them; leave it out, or raise data.held_out_fraction of the run")
    assert problems("validation.sets.a.data.held_out_fraction=0.1") == []
    other = "{name: sort}" if "sort" not in task else "{name: reverse}"
    assert problems(f"validation.sets.a.data={{held_out_fraction: 0.5, task: {other}}}") == []
