"""JSON lines with a verifier, and reasoning-gym's tasks: what counts, and what a mistake in them is told like."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from runtime.tasks.base import Task
from runtime.tasks.config import DataConfig
from runtime.tasks.errors import DataFailure, TaskError, VerifierFailed
from runtime.tasks.load import load_task
from runtime.tasks.split import Split
from runtime.tasks.verifiers import exact, last_number


def write(path: Path, lines: list[Any]) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def sums(path: Path, count: int = 40) -> Path:
    return write(path, [{"prompt": f"{number} + 1 =", "answer": str(number + 1)} for number in range(count)])


def load(path: Path, split: Split = "training", data: dict[str, Any] | None = None, **task: Any) -> Task:
    config = DataConfig.model_validate({"task": {"name": "jsonl", "path": path, **task}, **(data or {})})
    return load_task(config, split)


def gym(split: Split = "training", data: dict[str, Any] | None = None, **task: Any) -> Task:
    config = {"num_prompts": 100, "validation_size": 20, **(data or {})}
    return load_task(DataConfig.model_validate({"task": {"name": "reasoning_gym", **task}, **config}), split)


SUMS = {"dataset": "chain_sum", "options": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}}


def test_lines_are_split_without_overlap_and_rated_against_their_answer(tmp_path: Path) -> None:
    path = sums(tmp_path / "sums.jsonl")
    training, validation = (load(path, split, {"held_out_fraction": 0.3}) for split in ("training", "validation"))  # type: ignore[arg-type]
    sides = [{task.prompt(index) for index in range(task.num_prompts)} for task in (training, validation)]
    assert not sides[0] & sides[1]
    assert len(sides[0] | sides[1]) == 40
    assert len(sides[1]) > 3
    answer = training.reference(0)
    assert answer is not None
    assert training.verify(0, (f" {answer}\n",), 0).correct
    assert training.verify(0, ("no idea",), 0).reward == 0.0


def test_a_validation_file_takes_its_prompts_out_of_training(tmp_path: Path) -> None:
    path = sums(tmp_path / "all.jsonl")
    validation_path = sums(tmp_path / "some.jsonl", 10)
    assert load(path, validation_path=validation_path).num_prompts == 30
    assert load(path, "validation", validation_path=validation_path).num_prompts == 10


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{not json", r"bad.jsonl:2: is not JSON .*; write one object a line"),
        ("[1, 2]", r"bad.jsonl:2: is a list; write an object"),
        ({"prompt": "a"}, r"bad.jsonl:2: 'answer' is missing; the line has \['prompt'\]; give it as a string"),
        ({"prompt": "a", "answer": 3}, r"bad.jsonl:2: 'answer' is a int; give it as a string"),
        ({"prompt": "", "answer": "b"}, r"bad.jsonl:2: 'prompt' is empty"),
    ],
)
def test_a_wrong_line_is_told_with_file_line_and_remedy(tmp_path: Path, line: Any, message: str) -> None:
    path = write(tmp_path / "bad.jsonl", [{"prompt": "a", "answer": "b"}, line])
    with pytest.raises(TaskError, match=message):
        load(path)


def test_a_file_that_is_missing_or_empty_is_told_by_name(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"nowhere.jsonl: cannot be read .*check data.task.path"):
        load(tmp_path / "nowhere.jsonl")
    with pytest.raises(TaskError, match=r"empty.jsonl: has no lines"):
        load(write(tmp_path / "empty.jsonl", ["", " "]))
    one = write(tmp_path / "one.jsonl", [{"prompt": "a", "answer": "b"}])
    with pytest.raises(TaskError, match=r"of 1 lines none is left for validation"):
        load(one, "validation", {"held_out_fraction": 0.0})


@pytest.mark.parametrize(
    ("verifier", "message"),
    [
        ("exact", r"'exact': write it as module:function"),
        ("no_such_module:exact", r"importing no_such_module failed"),
        ("runtime.tasks.verifiers:exakt", r"has no function 'exakt'; it has exact, last_number"),
    ],
)
def test_a_verifier_that_is_not_there_is_told_with_what_is(tmp_path: Path, verifier: str, message: str) -> None:
    with pytest.raises(TaskError, match=message):
        load(sums(tmp_path / "sums.jsonl"), verifier=verifier)


def test_a_verifier_that_raises_or_returns_no_reward_is_a_data_failure_of_that_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_verifiers.py").write_text(
        "def strict(completion, answer):\n    return int(completion) == int(answer)\n\n"
        "def loose(completion, answer):\n    return 7\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_verifiers", raising=False)
    path = write(tmp_path / "d.jsonl", [{"prompt": "2 =", "answer": "2"}])
    strict = load(path, data={"held_out_fraction": 0.0}, verifier="my_verifiers:strict")
    assert strict.verify(0, ("2",), 0).correct
    with pytest.raises(
        DataFailure, match=r"d.jsonl:1: .*'my_verifiers:strict' raised ValueError.*'two'.*'2 ='"
    ) as failure:
        strict.verify(0, ("two",), 0)
    assert isinstance(failure.value.__cause__, ValueError)
    loose = load(path, data={"held_out_fraction": 0.0}, verifier="my_verifiers:loose")
    with pytest.raises(VerifierFailed, match=r"returned 7 for .*'2 ='.*; return a reward in \[0, 1\]"):
        loose.verify(0, ("2",), 0)


def test_the_verifiers_that_come_along() -> None:
    assert exact(" 4 ", "4") == 1.0
    assert exact("4.", "4") == 0.0
    assert last_number("1,000 + 2 = 1,002.", "1002") == 1.0
    assert last_number("-3", "3") == 0.0
    assert last_number("none", "3") == 0.0


def test_gym_items_are_pure_held_apart_and_verified_by_their_own_scorer() -> None:
    training, again = gym(**SUMS), gym(**SUMS)
    validation = gym("validation", **SUMS)
    prompts = [training.prompt(index) for index in range(100)]
    assert prompts == [again.prompt(index) for index in range(100)]
    assert prompts[:5] != [gym(data={"seed": 1}, **SUMS).prompt(index) for index in range(5)]
    held_out = {validation.prompt(index) for index in range(validation.num_prompts)}
    assert len(held_out) == validation.num_prompts >= 5
    assert not held_out & set(prompts)
    answer = training.reference(0)
    assert answer is not None
    assert training.verify(0, (answer,), 0).correct
    assert not training.verify(0, ("x",), 0).correct


def test_an_answer_pattern_rates_its_last_match_and_no_match_is_wrong() -> None:
    task = gym(answer_pattern=r"(-?\d+)", **SUMS)
    answer = task.reference(0)
    assert task.verify(0, (f"first 77, then {answer} it is",), 0).correct
    assert task.verify(0, ("no number",), 0).reward == 0.0


def test_crumbs_for_junk_are_no_reward() -> None:
    task = gym(dataset="power_function", reward="score")
    raw = task._dataset.score_answer(answer="junk", entry=task._item(0).entry)  # type: ignore[attr-defined]
    assert 0 < raw < 0.05
    verdict = task.verify(0, ("junk",), 0)
    assert (verdict.reward, verdict.correct) == (0.0, False)


def test_a_scorer_that_raises_is_a_data_failure_that_names_the_entry() -> None:
    task = gym(dataset="prime_factorization")
    with pytest.raises(VerifierFailed, match=r"'prime_factorization', entry 3 \(.*scorer raised ValueError.*'junk'"):
        task.verify(3, ("junk",), 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dataset": "chain_sums"}, r"'chain_sums' is none of reasoning-gym's \d+ datasets: .*chain_sum"),
        ({"dataset": "chain_sum", "options": {"terms": 2}}, r"do not suit .*'terms'.*fields of ChainSumConfig"),
        ({"dataset": "chain_sum", "options": {"min_terms": 5, "max_terms": 2}}, r"do not suit reasoning-gym's"),
        ({"dataset": "chain_sum", "answer_pattern": "("}, r"is no regular expression"),
        ({"dataset": "chain_sum", "answer_pattern": "a"}, r"has 0 groups"),
    ],
)
def test_a_wrong_gym_option_is_told_before_anything_runs(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TaskError, match=message):
        gym(**options)


@pytest.mark.parametrize("name", ["products", "basic_arithmetic", "gcd", "lcm", "letter_counting", "spell_backward"])
def test_the_tasks_within_reach_of_small_models_accept_their_own_answers(name: str) -> None:
    task = gym("validation", {"validation_size": 3}, dataset=name)
    for index in range(task.num_prompts):
        answer = task.reference(index)
        assert answer is not None
        assert task.verify(index, (answer,), 0).correct
