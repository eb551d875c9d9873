"""JSON lines with a verifier, and reasoning-gym's tasks: what counts, and what a mistake in them is told like."""

import asyncio
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from runtime.actors.reward_worker import RewardWorker
from runtime.checkpoints.origin import identity_of, origin_of
from runtime.evaluation.config import TRAINING
from runtime.settings import Settings, load_settings
from runtime.tasks.base import Chat, JudgedTask, Scored, TaskError, Verdict, VerdictFault
from runtime.tasks.config import DataConfig
from runtime.tasks.data import load_task
from runtime.tasks.files import say_split
from runtime.tasks.split import Split
from runtime.tasks.verifiers import exact, last_number
from tests.runtime.bookkeeping import said


def write(path: Path, lines: list[Any]) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def sums(path: Path, count: int = 40) -> Path:
    return write(path, [{"prompt": f"{number} + 1 =", "answer": str(number + 1)} for number in range(count)])


def load(path: Path, split: Split = "training", data: dict[str, Any] | None = None, **task: Any) -> JudgedTask:
    config = DataConfig.model_validate({"task": {"name": "jsonl", "path": path, **task}, **(data or {})})
    return load_task(config, split)


def gym(split: Split = "training", data: dict[str, Any] | None = None, **task: Any) -> JudgedTask:
    config = {"num_prompts": 100, "validation_size": 20, **(data or {})}
    return load_task(DataConfig.model_validate({"task": {"name": "reasoning_gym", **task}, **config}), split)


def task_config(dataset: str) -> DataConfig:
    task = {"name": "reasoning_gym", "dataset": dataset}
    return DataConfig.model_validate({"task": task, "num_prompts": 100, "validation_size": 20})


def verdict(task: JudgedTask, index: int, text: str) -> Verdict:
    """As a process of verdicts makes it."""
    return task.judge.open()(*task.case(index, said(text)))


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
    assert verdict(training, 0, f" {answer}\n").correct
    assert verdict(training, 0, "no idea").reward == 0.0


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
        ({"prompt": "a"}, r"bad.jsonl:2: 'answer' is missing; the row has \['prompt'\]; name the right column"),
        ({"prompt": "a", "answer": None}, r"bad.jsonl:2: 'answer' is null; give it a text"),
        ({"prompt": 3, "answer": "b"}, r"bad.jsonl:2: 'prompt' is 3; give it as a text, or as a list of chat messages"),
        ({"prompt": "", "answer": "b"}, r"bad.jsonl:2: 'prompt' is empty"),
    ],
)
def test_a_wrong_line_is_told_with_file_line_and_remedy(tmp_path: Path, line: Any, message: str) -> None:
    path = write(tmp_path / "bad.jsonl", [{"prompt": "a", "answer": "b"}, line])
    with pytest.raises(TaskError, match=message):
        load(path)


def test_several_wrong_lines_are_told_at_once_and_a_bad_byte_with_its_own_line(tmp_path: Path) -> None:
    good = json.dumps({"prompt": "a", "answer": "b"})
    with pytest.raises(TaskError, match=r"bad.jsonl:2: is not JSON .*a line \(also wrong: line 4, 5, 6, 7\)$"):
        load(write(tmp_path / "bad.jsonl", [good, "{", good, "[1]", *["{"] * 4]))
    (tmp_path / "byte.jsonl").write_bytes(b"\n".join([good.encode()] * 41 + [b'{"prompt": "\xff"}', good.encode()]))
    with pytest.raises(TaskError, match=r"byte.jsonl:42: cannot be read as UTF-8 text"):
        load(tmp_path / "byte.jsonl")


def test_a_file_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    text = "\ufeff" + json.dumps({"prompt": "a", "answer": "b"}) + "\n"
    (tmp_path / "marked.jsonl").write_text(text, encoding="utf-8")
    task = load(tmp_path / "marked.jsonl", data={"validation_size": 0})
    assert (task.prompt(0), task.reference(0)) == ("a", "b")


def test_a_null_above_a_nested_column_and_an_answer_that_is_no_text_are_told(tmp_path: Path) -> None:
    rows = write(tmp_path / "null.jsonl", [{"prompt": "a", "rm": None}])
    with pytest.raises(TaskError, match=r"null.jsonl:1: 'rm.gt' is missing, since 'rm' or what it is in is null"):
        load(rows, columns={"answer": "rm.gt"})
    with pytest.raises(TaskError, match=r"half.jsonl:1: the answer is no valid text .*; correct it"):
        load(write(tmp_path / "half.jsonl", ['{"prompt": "a", "answer": "x\\udc00y"}']))


@pytest.mark.parametrize(
    ("path", "problem"),
    [("a\0b", "is no path"), ("a" * 5000, "File name too long"), ("gone.jsonl", f"does not exist in {Path.cwd()}")],
)
@pytest.mark.parametrize("name", ["jsonl", "dataset"])
def test_a_path_that_means_nothing_is_told(path: str, problem: str, name: str) -> None:
    with pytest.raises(TaskError, match=rf"{problem}.*; correct data.task.path"):
        load_task(DataConfig.model_validate({"task": {"name": name, "path": path}}), "training")


def test_a_file_that_no_task_of_lines_reads_names_the_task_that_does(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1\0")
    with pytest.raises(TaskError, match=r"a.parquet: the task jsonl reads JSON lines only; set .* to dataset"):
        load(tmp_path / "a.parquet")


def test_a_validation_file_with_all_prompts_of_training_is_named(tmp_path: Path) -> None:
    path = sums(tmp_path / "sums.jsonl")
    with pytest.raises(TaskError, match=r"40 lines none is left .*held out in .*sums.jsonl; name other .*dation_path"):
        load(path, validation_path=path)


def test_tools_of_a_text_reach_the_chat_template_if_their_column_is_named(tmp_path: Path) -> None:
    tool = {"type": "function", "function": {"name": "add"}}
    path = write(
        tmp_path / "a.jsonl", [{"prompt": "a", "answer": "b", "t": [tool]}, {"prompt": "c", "answer": "d", "t": []}]
    )
    data = {"validation_size": 0, "chat": True, "prompt_template": "Q: {prompt}"}
    task = load(path, data=data, columns={"tools": "t"})
    assert task.opening(0) == Chat(({"role": "user", "content": "Q: a"},), (tool,))
    assert (task.prompt(0), task.case(0, said("b"))[1]["prompt"], task.opening(1)) == ("a", "a", "c")
    wrong = write(tmp_path / "b.jsonl", [{"prompt": "a", "answer": "b", "t": "["}])
    with pytest.raises(TaskError, match=r"b.jsonl:1: 't' is not JSON"):
        load(wrong, data=data, columns={"tools": "t"})


def test_a_file_that_is_missing_or_empty_is_told_by_name(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"nowhere.jsonl: does not exist; correct data.task.path"):
        load(tmp_path / "nowhere.jsonl")
    with pytest.raises(TaskError, match=r"empty.jsonl: has no lines"):
        load(write(tmp_path / "empty.jsonl", ["", " "]))
    one = write(tmp_path / "one.jsonl", [{"prompt": "a", "answer": "b"}])
    with pytest.raises(TaskError, match=r"of 1 line none is left for validation"):
        load(one, "validation", {"held_out_fraction": 0.0})


@pytest.mark.parametrize(
    ("verifier", "message"),
    [
        ("exact", r"'exact': write it as module:function"),
        ("no_such_module:exact", r"importing no_such_module failed"),
        ("runtime.tasks.verifiers:exakt", r"has no function 'exakt'; it has exact, last_number, math$"),
    ],
)
def test_a_verifier_that_is_not_there_is_told_with_what_is(tmp_path: Path, verifier: str, message: str) -> None:
    task = load(sums(tmp_path / "sums.jsonl"), verifier=verifier)
    with pytest.raises(TaskError, match=message):
        task.judge.open()


def test_reading_the_prompts_does_not_import_the_verifier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "unread_verifiers.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert load(sums(tmp_path / "sums.jsonl"), verifier="unread_verifiers:f").prompt(0)
    assert "unread_verifiers" not in sys.modules


def test_a_fault_is_blamed_on_verifier_file_line_prompt_and_completion(tmp_path: Path) -> None:
    path = write(tmp_path / "d.jsonl", ["", {"prompt": "2 =", "answer": "2"}])
    task = load(path, data={"held_out_fraction": 0.0}, verifier="my_verifiers:strict")
    blamed = task.blame(
        0, said("two"), VerdictFault("raised ValueError: two (my_verifiers.py:2 in strict)", "make it return 0.0")
    )
    assert blamed == (
        f"{path}:2: verifier 'my_verifiers:strict' raised ValueError: two (my_verifiers.py:2 in strict) for the "
        "completion 'two' of the prompt '2 =' with the answer '2'; make it return 0.0"
    )
    absent = (
        "verifier 'my_verifiers:strict' raised ModuleNotFoundError: No module named 'x' (my_verifiers.py:2); install it"
    )
    assert task.blame(0, said("two"), VerdictFault(absent, "", of_code=True)) == absent, "it is about no completion"


def test_a_number_of_prompts_takes_the_first_lines_of_a_file(tmp_path: Path) -> None:
    path = sums(tmp_path / "sums.jsonl")
    task = load(path, data={"num_prompts": 10, "validation_size": 0})
    assert [task.prompt(index) for index in range(task.num_prompts)] == [f"{number} + 1 =" for number in range(10)]
    split = {"num_prompts": 30, "held_out_fraction": 0.3}
    sides = [load(path, side, split) for side in ("training", "validation")]  # type: ignore[arg-type]
    assert sum(side.num_prompts for side in sides) == 30
    with pytest.raises(TaskError, match=r"has 40 lines, and data.num_prompts asks for the first 41; set it to 40 or"):
        load(path, data={"num_prompts": 41})


def test_what_is_held_out_of_a_file_is_said(tmp_path: Path) -> None:
    path, some = sums(tmp_path / "sums.jsonl"), sums(tmp_path / "some.jsonl", 4)

    def said(data: dict[str, Any], **task: Any) -> str:
        config = DataConfig.model_validate({"task": {"name": "jsonl", "path": path, **task}, **data})
        return say_split(config.task, config)  # type: ignore[arg-type]

    held_out = 40 - load(path, data={"held_out_fraction": 0.3}).num_prompts
    assert 2 < held_out < 40
    assert said({"held_out_fraction": 0.3, "validation_size": 2}) == (
        f"training on {40 - held_out} of the 40 lines of {path}; {held_out} held out for validation "
        "(data.held_out_fraction 0.3), 2 of them measured (data.validation_size)"
    )
    assert said({"validation_size": 0}) == (
        f"training on 40 of the 40 lines of {path}; none held out, since data.validation_size is 0"
    )
    assert said({"num_prompts": 10, "validation_size": 0}).startswith(
        f"training on 10 of the 40 lines of {path} (data.num_prompts takes the first 10)"
    )
    assert said({}, validation_path=some).endswith(f"; 4 left out, whose prompts are held out in {some}")


@pytest.mark.parametrize("key", ["path", "validation_path"])
def test_what_is_no_plain_file_is_refused_at_once(tmp_path: Path, key: str) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    (tmp_path / "folder").mkdir()
    good = sums(tmp_path / "sums.jsonl")
    for path, kind in ((fifo, "FIFO"), (tmp_path / "folder", "directory"), (Path("/dev/zero"), "device")):
        with pytest.raises(TaskError, match=rf"a file is expected, but it is a {kind}; correct data.task.{key}"):
            load(**{"path": good, key: path})


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
    assert verdict(training, 0, answer).correct
    assert not verdict(training, 0, "x").correct


def test_an_answer_pattern_rates_its_last_match_and_no_match_is_wrong() -> None:
    task = gym(answer_pattern=r"(-?\d+)", **SUMS)
    answer = task.reference(0)
    assert verdict(task, 0, f"first 77, then {answer} it is").correct
    assert verdict(task, 0, "no number").reward == 0.0


def test_crumbs_for_junk_are_no_reward() -> None:
    task = gym(dataset="power_function", reward="score")
    raw = task._dataset.score_answer(answer="junk", entry=task._items[0].entry)  # type: ignore[attr-defined]
    assert 0 < raw < 0.05
    assert verdict(task, 0, "junk") == Verdict(0.0, False)


def test_a_scorer_that_raises_is_a_data_failure_that_names_the_entry() -> None:
    task = gym(dataset="prime_factorization")

    async def scenario() -> Scored:
        worker = RewardWorker(task_config("prime_factorization"), 1, 1)
        try:
            return await worker.score([(3, [said("junk")])])
        finally:
            await worker.close()

    [[why]] = asyncio.run(scenario()).groups
    assert re.search(r"'prime_factorization', entry 3 \(.*scorer raised ValueError.*'junk'", str(why))
    assert task.prompt(3)[:50] in str(why)


def test_a_reward_worker_rates_both_splits_with_a_dataset_s_own_scorer() -> None:
    async def scenario() -> None:
        config = task_config("chain_sum")
        worker = RewardWorker(config, 2, 2, sets=Settings(data=config).sets)
        for split in ("training", "validation"):
            task = load_task(config, split)  # type: ignore[arg-type]
            answer = str(task.reference(1))
            scored = await worker.score([(1, [said(answer), said("junk")])], split)
            assert scored.groups == [(Verdict(1.0, True), Verdict(0.0, False))]
        await worker.close()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dataset": "chain_sums"}, r"'chain_sums' is none of reasoning-gym's \d+ datasets: .*chain_sum"),
        ({"dataset": "chain_sum", "options": {"terms": 2}}, r"do not suit .*'terms'.*fields of ChainSumConfig"),
        ({"dataset": "chain_sum", "options": {"min_terms": 5, "max_terms": 2}}, r"do not suit reasoning-gym's"),
        ({"dataset": "chain_sum", "answer_pattern": "("}, r"is not a regular expression: .*; correct it"),
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
        assert verdict(task, index, answer).correct


def test_a_reward_worker_that_is_made_anew_refuses_a_file_that_was_changed_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    lines = [{"prompt": f"{number}+1=", "answer": str(number + 1)} for number in range(4)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    task = {"name": "jsonl", "path": str(path)}
    settings = load_settings(None, [f"data.task={json.dumps(task)}", "data.validation_size=0"])
    began_with = origin_of(settings, load_task(settings.data, "training"), "run").prompts
    RewardWorker(settings.data, 1, 1, {TRAINING: began_with})
    lines[2]["answer"] = "5"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    with pytest.raises(TaskError, match=r"the data has changed since the run began.*--new-data"):
        RewardWorker(settings.data, 1, 1, {TRAINING: began_with})


def test_a_reward_worker_that_is_made_anew_refuses_a_set_whose_file_was_replaced_meanwhile(tmp_path: Path) -> None:
    path = sums(tmp_path / "set.jsonl")
    settings = load_settings(None, [f"validation.sets.own.data.task={{name: jsonl, path: {path}}}"])
    began_with = {"own": identity_of(load_task(settings.sets[0].data, "validation"))}
    RewardWorker(settings.data, 1, 1, began_with, settings.sets)
    path.write_text("".join(path.read_text(encoding="utf-8").splitlines(keepends=True)[1:]), encoding="utf-8")
    with pytest.raises(TaskError, match=r"the data of the evaluation set own has changed since the run began"):
        RewardWorker(settings.data, 1, 1, began_with, settings.sets)


def test_the_hash_of_a_file_s_prompts_is_what_older_checkpoints_have(tmp_path: Path) -> None:
    task = json.dumps({"name": "jsonl", "path": str(sums(tmp_path / "sums.jsonl"))})
    settings = load_settings(None, [f"data.task={task}"])
    assert origin_of(settings, load_task(settings.data, "training"), "run").prompts == "35ef855b2b469433"


def test_verifiers_get_the_row_with_the_names_of_its_own_columns(tmp_path: Path) -> None:
    lines = [{"question": "2 + 2", "solution": {"value": 4}, "level": 3}] * 2
    path = write(tmp_path / "named.jsonl", lines)
    columns = {"prompt": "question", "answer": "solution.value"}
    task = load(path, data={"validation_size": 0}, columns=columns)
    text, row = task.case(1, said("four"))
    assert text == "four"
    expected = {**lines[0], "prompt": "2 + 2", "answer": "4", "turns": ["four"], "finish_reason": "stop"}
    assert {key: row[key] for key in expected} == expected
