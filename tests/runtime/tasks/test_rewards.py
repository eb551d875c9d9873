"""What a verifier may take and return, and how several of them make up a reward."""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from runtime.tasks.base import Completion, JudgedTask, NoReward, TaskError, Verdict
from runtime.tasks.config import DataConfig
from runtime.tasks.data import load_task
from runtime.tasks.judges import as_reward


def config(path: Path, **task: Any) -> DataConfig:
    block = {"name": "jsonl", "path": str(path), **task}
    return DataConfig.model_validate({"task": block, "validation_size": 0})


def task_of(tmp_path: Path, **task: Any) -> JudgedTask:
    line = {"prompt": "2 + 2 =", "answer": "4", "columns_say": "four", "finish_reason": "taken"}
    (tmp_path / "data.jsonl").write_text(json.dumps(line) + "\n")
    loaded = load_task(config(tmp_path / "data.jsonl", **task), "training")
    assert isinstance(loaded, JudgedTask)
    return loaded


def rated(tmp_path: Path, says: str, **task: Any) -> Verdict:
    """The verdict on a completion of three tokens in two turns, as a process of verdicts makes it."""
    loaded = task_of(tmp_path, **task)
    return loaded.judge.open()(*loaded.case(0, Completion(("first", says), tokens=3, finish_reason="stop")))


def of_users(name: str) -> str:
    return f"reward_verifiers:{name}"


@pytest.mark.parametrize(
    ("name", "says", "reward"),
    [
        ("from_row", "four", 3.0),
        ("from_row", "4", 0.0),
        ("annotated", "4", 1.0),
        ("mapped", "4", 2.0 - len("2 + 2 =")),
        ("answered", "4", 1.0),
        ("answered", "5", -1.0),
        ("partial", "5", -1.0),
        ("waits", "4", 0.5),
        ("minus_length", "a" * 1000, -1000.0),
        ("parts", "4", 1.5),
        ("with_reward", "4", -2.5),
    ],
)
def test_a_verifier_may_take_the_answer_or_the_row_and_return_any_finite_number_or_parts(
    name: str, says: str, reward: float, tmp_path: Path
) -> None:
    assert rated(tmp_path, says, verifier=of_users(name)).reward == reward


def test_a_row_has_the_line_and_what_is_known_of_the_completion(tmp_path: Path) -> None:
    task = task_of(tmp_path)
    text, row = task.case(0, Completion(("first", "4"), tokens=3, finish_reason="length"))
    assert text == "4"
    assert row == {
        "prompt": "2 + 2 =",
        "answer": "4",
        "columns_say": "four",
        "turns": ["first", "4"],
        "completion_tokens": 3,
        "finish_reason": "length",
    }


def test_parts_keep_their_names_and_correct_is_what_the_verifier_says(tmp_path: Path) -> None:
    assert rated(tmp_path, "4", verifier=of_users("parts")) == Verdict(1.5, True, {"format": 0.5, "right": 1.0})
    assert rated(tmp_path, "4", verifier=of_users("with_reward")) == Verdict(-2.5, True, {"length": 1.0})
    assert rated(tmp_path, "no", verifier=of_users("with_reward"), correct_at=-9.0).correct is False


def test_correct_may_come_from_one_part(tmp_path: Path) -> None:
    chosen = {"verifier": of_users("parts"), "correct_from": "right", "correct_at": 1.0}
    assert rated(tmp_path, "4", **chosen).correct
    assert not rated(tmp_path, "5", **chosen).correct
    with pytest.raises(NoReward, match=r"returned the parts \['format', 'right'\] without 'rihgt'"):
        rated(tmp_path, "4", verifier=of_users("parts"), correct_from="rihgt")


REWARDS = [
    {"target": of_users("answered"), "weight": 2},
    {"target": of_users("minus_length"), "weight": 0.25, "name": "length"},
    {"target": of_users("parts"), "weight": 0.0},
]


def test_several_rewards_are_weighted_and_each_is_a_part(tmp_path: Path) -> None:
    verdict = rated(tmp_path, "4", rewards=REWARDS)
    parts = {"answered": 1.0, "length": -1.0, "parts": 1.5, "parts/format": 0.5, "parts/right": 1.0}
    assert verdict == Verdict(2.0 - 0.25, True, parts)
    assert rated(tmp_path, "five!", rewards=REWARDS).reward == -2.0 - 1.25


@pytest.mark.parametrize(
    ("correct_from", "correct_at", "right"),
    [(None, 1.76, False), ("answered", 1.0, True), ("length", -0.5, False), ("parts/right", 1.0, True)],
)
def test_a_named_reward_or_its_part_decides_what_is_correct(
    correct_from: str | None, correct_at: float, right: bool, tmp_path: Path
) -> None:
    chosen = {"rewards": REWARDS, "correct_from": correct_from, "correct_at": correct_at}
    assert rated(tmp_path, "4", **chosen).correct is right


def test_a_verifier_that_says_what_is_correct_decides_among_several(tmp_path: Path) -> None:
    rewards = [{"target": of_users("answered"), "weight": 5}, {"target": of_users("with_reward")}]
    assert rated(tmp_path, "4", rewards=rewards).correct
    assert not rated(tmp_path, "5", rewards=rewards, correct_at=-99.0).correct
    assert not rated(tmp_path, "5", rewards=rewards, correct_from="answered").correct


@pytest.mark.parametrize(
    ("task", "says"),
    [
        ({"rewards": [{"target": of_users("parts")}], "verifier": "a:b"}, "give one verifier, or a list of rewards"),
        ({"rewards": [{"target": "a:f"}, {"target": "b:f"}]}, "rewards has 'f' more than once: give each another name"),
        ({"rewards": [{"target": "a:f"}], "correct_from": "g"}, "correct_from is 'g', and rewards has ['f']"),
        ({"rewards": [{"target": "a:f", "weight": float("inf")}]}, "finite number"),
        ({"rewards": [{"target": "a:f", "name": "a/b"}]}, "pattern"),
        ({"verifier": None}, "verifier is None and rewards lists 0"),
        ({"correct_at": float("nan")}, "finite number"),
    ],
)
def test_rewards_that_do_not_go_together_are_refused_by_key(task: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(ValidationError) as refusal:
        config(tmp_path / "data.jsonl", **task)
    assert says in str(refusal.value)


def test_a_configuration_that_was_written_out_loads_as_the_same(tmp_path: Path) -> None:
    for task in ({}, {"verifier": of_users("parts"), "correct_from": "right"}, {"rewards": REWARDS}):
        given = config(tmp_path / "data.jsonl", **task)
        assert DataConfig.model_validate(given.model_dump(mode="json")) == given


@pytest.mark.parametrize(
    ("rewards", "says"),
    [
        ("nan_in_parts", "returned nan as the part 'right'"),
        ("of_trl_with_prompts", "returned [1.0"),
        ("huge", "returned 1e+300"),
        ("numbered", "returned a mapping with the key 1"),
        (["huge", "parts"], "returned 1e+300 as 'huge' (reward_verifiers:huge)"),
    ],
)
def test_what_is_no_reward_is_told_with_the_verifier_that_returned_it(
    rewards: str | list[str], says: str, tmp_path: Path
) -> None:
    several = not isinstance(rewards, str)
    task = {"rewards": [{"target": of_users(name)} for name in rewards]} if several else {"verifier": of_users(rewards)}
    with pytest.raises(NoReward) as refusal:
        rated(tmp_path, "4", **task)
    assert says in str(refusal.value)
    assert refusal.value.remedy


@pytest.mark.parametrize(
    ("name", "says"),
    [("of_trl", "(completions: list[str], **kwargs: Any)"), ("of_trl", "as TRL's do"), ("of_verl", "as verl's")],
)
def test_a_verifier_of_another_library_is_known_by_its_parameters_before_it_is_called(
    name: str, says: str, tmp_path: Path
) -> None:
    with pytest.raises(
        TaskError, match=r"once a rollout, with \(completion, answer\) or \(completion, row\)"
    ) as refusal:
        task_of(tmp_path, verifier=of_users(name)).judge.open()
    assert says in str(refusal.value)


def test_a_decimal_is_refused_with_the_call_that_makes_it_a_reward() -> None:
    with pytest.raises(NoReward) as refusal:
        as_reward(Decimal("0.5"))
    assert "float()" in refusal.value.remedy


def test_a_list_of_rewards_is_told_from_other_values_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(NoReward) as refusal:
        rated(tmp_path, "4", verifier=of_users("of_trl_with_prompts"))
    assert "no list of them as in TRL" in refusal.value.remedy


def test_names_of_parts_that_never_end_are_told_before_they_are_metrics(tmp_path: Path) -> None:
    loaded = task_of(tmp_path, verifier=of_users("many"))
    rate = loaded.judge.open()
    cases = [loaded.case(0, Completion((str(number),), 1, "stop")) for number in range(65)]
    for case in cases[:64]:
        rate(*case)
    with pytest.raises(NoReward, match="has named more than 64 parts"):
        rate(*cases[64])
    assert rate(*cases[0]).reward == 1.0


def test_a_completion_with_too_many_parts_costs_its_own_verdict_alone(tmp_path: Path) -> None:
    loaded = task_of(tmp_path, verifier=of_users("a_part_each"))
    rate = loaded.judge.open()
    with pytest.raises(NoReward, match="has named more than 64 parts"):
        rate(*loaded.case(0, Completion((" ".join(map(str, range(70))),), 1, "stop")))
    assert rate(*loaded.case(0, Completion(("format right",), 1, "stop"))).parts == {"format": 1.0, "right": 1.0}


@pytest.mark.parametrize("name", ["", "a\ud800", "a\nb", "a\x1b[2J", "n" * 201])
def test_a_part_s_name_is_short_printable_text(name: str, tmp_path: Path) -> None:
    with pytest.raises(NoReward, match="returned a mapping with the key") as refusal:
        rated(tmp_path, name, verifier=of_users("named"))
    assert refusal.value.remedy.endswith("a printable text of at most 200 characters")
    assert rated(tmp_path, "Länge in %", verifier=of_users("named")).parts == {"Länge in %": 1.0}


@pytest.mark.parametrize(
    ("name", "says", "right"),
    [("true", True, True), ("false", False, False), ("numpy", "np", True), ("one", 1, True), ("zero", 0, False)],
)
def test_correct_is_a_bool_or_one_or_zero(name: str, says: object, right: bool, tmp_path: Path) -> None:
    assert rated(tmp_path, json.dumps(says), verifier=of_users("says_correct")).correct is right


@pytest.mark.parametrize("says", [0.5, -1, 2])
def test_another_number_as_correct_is_no_verdict(says: float, tmp_path: Path) -> None:
    with pytest.raises(NoReward, match=f"returned {says} as 'correct'") as refusal:
        rated(tmp_path, json.dumps(says), verifier=of_users("says_correct"))
    assert "True or False" in refusal.value.remedy


def test_a_verifier_that_takes_an_answer_is_not_called_without_one(tmp_path: Path) -> None:
    loaded = task_of(tmp_path, verifier=of_users("answered"))
    text, row = loaded.case(0, Completion(("4",), 1, "stop"))
    with pytest.raises(NoReward, match="it takes an answer, and there is none") as refusal:
        loaded.judge.open()(text, {**row, "answer": None})
    assert "`row`" in refusal.value.remedy
