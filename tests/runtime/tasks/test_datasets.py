"""The task `dataset`: parquet, Arrow, CSV, JSON and saved datasets made by the packages that users make them with."""

import gzip
import json
import socket
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from runtime.checkpoints.origin import origin_of
from runtime.settings import load_settings
from runtime.tasks.base import Chat, JudgedTask, TaskError
from runtime.tasks.config import DataConfig
from runtime.tasks.data import load_task
from runtime.tasks.files import say_split
from runtime.tasks.rows import hub
from runtime.tasks.rows.source import find_source
from runtime.tasks.split import Split, is_held_out
from tests.runtime.bookkeeping import said

datasets = pytest.importorskip("datasets")
ROWS = [{"prompt": f"{number} + 1 =", "answer": str(number + 1), "level": number % 3} for number in range(40)]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("hf"))


def load(
    path: Path | str | list[str], side: Split = "training", data: dict[str, Any] | None = None, **task: Any
) -> JudgedTask:
    paths = path if isinstance(path, list) else str(path)
    block = {"task": {"name": "dataset", "path": paths, **task}, "validation_size": 0, **(data or {})}
    loaded = load_task(DataConfig.model_validate(block), side)
    assert isinstance(loaded, JudgedTask)
    return loaded


def prompts(task: JudgedTask) -> list[str]:
    return [task.prompt(index) for index in range(task.num_prompts)]


def written(folder: Path, name: str) -> Path:
    """ROWS in the format that the name says."""
    made = datasets.Dataset.from_list(ROWS)
    path = folder / name
    if name == "saved":
        made.save_to_disk(path)
    elif name.endswith(".parquet"):
        made.to_parquet(path)
    elif name.endswith(".csv"):
        made.to_csv(path)
    elif name.endswith(".json"):
        path.write_text(json.dumps(ROWS))
    elif name.endswith(".arrow"):
        made.save_to_disk(folder / "aside")
        next((folder / "aside").glob("*.arrow")).rename(path)
    else:
        text = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
        path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    return path


FORMATS = ["rows.parquet", "rows.arrow", "rows.csv", "rows.json", "rows.jsonl", "rows.jsonl.gz", "saved"]


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_has_the_same_prompts_split_and_rows(tmp_path: Path, name: str) -> None:
    path = written(tmp_path, name)
    data = {"validation_size": 100, "held_out_fraction": 0.3}
    training, held_out = load(path, data=data), load(path, "validation", data)
    expected = [str(row["prompt"]) for row in ROWS if not is_held_out(str(row["prompt"]), 0.3)]
    assert prompts(training) == expected
    assert sorted(prompts(training) + prompts(held_out)) == sorted(str(row["prompt"]) for row in ROWS)
    assert training.reference(0) == str(int(expected[0].split()[0]) + 1)
    text, row = training.case(3, said("five"))
    assert (text, row["prompt"], row["answer"]) == ("five", expected[3], training.reference(3))
    assert str(row["level"]) in "012"
    assert Path(name).name in training.where(0)


def test_a_glob_a_list_and_a_folder_have_the_rows_of_their_files_in_order(tmp_path: Path) -> None:
    for part in range(3):
        datasets.Dataset.from_list(ROWS[part * 10 : part * 10 + 10]).to_parquet(tmp_path / f"train-{part}.parquet")
    datasets.Dataset.from_list(ROWS[30:]).to_parquet(tmp_path / "test-0.parquet")
    first_thirty = [row["prompt"] for row in ROWS[:30]]
    assert prompts(load(tmp_path)) == first_thirty
    assert prompts(load(tmp_path / "train-*.parquet")) == first_thirty
    assert prompts(load([str(tmp_path / "train-1.parquet"), str(tmp_path / "train-0.parquet")]))[:1] == ["10 + 1 ="]
    assert prompts(load(tmp_path, split="test")) == [row["prompt"] for row in ROWS[30:]]
    held_out = load(tmp_path, "validation", {"validation_size": 4}, validation_split="test")
    assert prompts(held_out) == [row["prompt"] for row in ROWS[30:34]]
    with pytest.raises(TaskError, match=r"no file's name has the split 'dev'; there are test-0.parquet, train-0"):
        load(tmp_path, split="dev")


def test_files_that_are_named_one_by_one_are_all_taken(tmp_path: Path) -> None:
    names = ["gsm_train.jsonl", "math.jsonl", "test.jsonl"]
    for part, name in enumerate(names):
        datasets.Dataset.from_list(ROWS[part * 10 : part * 10 + 10]).to_json(tmp_path / name)
    train, math, test = (str(tmp_path / name) for name in names)
    assert prompts(load([train, math])) == [row["prompt"] for row in ROWS[:20]]
    with pytest.raises(
        TaskError, match=r"math.jsonl: no file's name has the split 'test'.*name the files of the split"
    ):
        load([math, test], split="test")
    config = DataConfig.model_validate({"task": {"name": "dataset", "path": str(tmp_path)}, "validation_size": 0})
    assert say_split(config.task, config).startswith(  # type: ignore[arg-type]
        f"training on 10 of the 10 lines of {tmp_path} without 2 files of other splits, such as {math}"
    )


def test_a_saved_dataset_with_splits_is_read_by_split(tmp_path: Path) -> None:
    made = datasets.DatasetDict(first=datasets.Dataset.from_list(ROWS[:5]), second=datasets.Dataset.from_list(ROWS[5:]))
    made.save_to_disk(tmp_path / "saved")
    assert load(tmp_path / "saved", split="second").num_prompts == 35
    with pytest.raises(TaskError, match=r"saved: has more than one split; name one of first, second"):
        load(tmp_path / "saved")


def test_cells_of_csv_stay_as_they_are_written(tmp_path: Path) -> None:
    (tmp_path / "codes.csv").write_text('prompt,answer\n"a, b",007\nc,\n')
    task = load(tmp_path / "codes.csv")
    assert [(task.prompt(index), task.reference(index)) for index in (0, 1)] == [("a, b", "007"), ("c", "")]


def test_messages_are_chats_without_the_nulls_that_arrow_adds(tmp_path: Path) -> None:
    call = {
        "type": "function",
        "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "number"}}}},
    }
    other = {
        "type": "function",
        "function": {"name": "now", "parameters": {"type": "object", "properties": {"zone": {"type": "string"}}}},
    }
    user = {"role": "user", "content": "2 + 2?"}
    rows = [
        {"messages": [user], "answer": 4, "tools": [call]},
        {
            "messages": [{"role": "system", "content": "Be brief."}, {**user, "name": "Ada"}],
            "answer": 4,
            "tools": [other],
        },
    ]
    datasets.Dataset.from_list(rows).to_parquet(tmp_path / "chats.parquet")
    task = load(tmp_path / "chats.parquet")
    assert task.opening(0) == Chat((user,), (call,))
    assert task.opening(1) == Chat(tuple(rows[1]["messages"]), (other,))  # type: ignore[arg-type]
    assert task.prompt(0) == "2 + 2?"
    assert task.prompt(1) == "system: Be brief.\n\nuser: 2 + 2?"
    assert task.reference(0) == "4"
    assert task.case(0, said("4"))[1]["prompt"] == [user]


@pytest.mark.parametrize("name", ["mixed.jsonl", "mixed.json", "mixed.parquet"])
def test_rows_with_a_prompt_mix_with_rows_with_messages_in_any_format(tmp_path: Path, name: str) -> None:
    rows: list[dict[str, Any]] = [
        {"prompt": "a", "answer": "1"},
        {"messages": [{"role": "user", "content": "b"}], "answer": "2"},
    ]
    if name.endswith(".jsonl"):
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif name.endswith(".json"):
        (tmp_path / name).write_text(json.dumps(rows))
    else:
        datasets.Dataset.from_list([{"prompt": None, "messages": None, **row} for row in rows]).to_parquet(
            tmp_path / name
        )
    task = load(tmp_path / name)
    assert [task.opening(index) for index in (0, 1)] == ["a", Chat(({"role": "user", "content": "b"},), ())]


USER = '[{"role": "user", "content": "a"}]'
DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (f'{{"prompt": "a", "answer": {"1" * 5000}}}', r"a.jsonl:2: is not JSON .*limit"),
        (f'{{"prompt": "a", "answer": {DEEP}}}', r"a.jsonl:2: is not JSON .*recursion"),
        (f'{{"messages": {USER}, "answer": "", "tools": [{{"name": "\\ud800"}}]}}', r"a.jsonl:2: tool 0 has a text"),
        ('{"messages": [{"role": "user", "content": "a", "name": "\\ud800"}], "answer": ""}', r"a.jsonl:2: message 0"),
    ],
    ids=["digits", "nesting", "tool", "name"],
)
def test_a_line_that_no_parser_or_tokenizer_reads_is_told_with_its_number(
    tmp_path: Path, line: str, message: str
) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps(ROWS[0]) + "\n" + line + "\n")
    with pytest.raises(TaskError, match=message):
        load(tmp_path / "a.jsonl")


def test_columns_are_named_even_inside_objects(tmp_path: Path) -> None:
    rows = [{"question": "2 + 2?", "reward_model": {"ground_truth": "4", "style": "rule"}}] * 2
    datasets.Dataset.from_list(rows).to_parquet(tmp_path / "verl.parquet")
    task = load(tmp_path / "verl.parquet", columns={"prompt": "question", "answer": "reward_model.ground_truth"})
    assert (task.prompt(0), task.reference(0)) == ("2 + 2?", "4")
    assert task.case(0, said("4"))[1]["reward_model"]["style"] == "rule"
    without = load(tmp_path / "verl.parquet", columns={"prompt": "question", "answer": None})
    assert without.reference(0) is None


ASSISTANT = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]


@pytest.mark.parametrize(
    ("rows", "task", "message"),
    [
        ([{"question": "a", "answer": "b"}], {}, r"rows.parquet, row 0: 'prompt' is missing; .* \['answer', 'q"),
        ([{"prompt": "a"}], {}, r"row 0: 'answer' is missing; the row has \['prompt'\].*data.task.columns.answer"),
        ([{"prompt": "a", "answer": text} for text in ("b", None)], {}, r"row 1: 'answer' is null.*answer to null"),
        ([{"prompt": "", "answer": "b"}], {}, r"row 0: 'prompt' is empty"),
        ([{"prompt": "a", "answer": text} for text in (b"b", b"\xff")], {}, r"row 1: 'answer' has bytes .* UTF-8 text"),
        ([{"prompt": 3, "answer": "b"}], {}, r"row 0: 'prompt' is 3; give it as a text, or as a list"),
        ([{"prompt": [{"content": "a"}], "answer": "b"}], {}, r"row 0: message 0 of 'prompt' is .*role and content"),
        ([{"messages": ASSISTANT, "answer": "b"}], {}, r"row 0: the last of 'messages' is the assist.*cut_answers"),
        ([{"messages": ASSISTANT[1:], "answer": "b"}], {"cut_answers": True}, r"row 0: 'messages' has only the"),
        ([{"prompt": ASSISTANT[:1], "answer": "b", "tools": "[{"}], {}, r"row 0: 'tools' is not JSON"),
        ([{"prompt": ASSISTANT[:1], "answer": "b", "tools": ["add"]}], {}, r"row 0: 'tools' is \['add'\]; give a list"),
    ],
)  # fmt: skip
def test_a_wrong_row_is_told_with_file_row_column_and_remedy(
    tmp_path: Path, rows: list[Any], task: dict[str, Any], message: str
) -> None:
    datasets.Dataset.from_list(rows).to_parquet(tmp_path / "rows.parquet")
    with pytest.raises(TaskError, match=message):
        load(tmp_path / "rows.parquet", **task)


CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 2}}}


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ({"role": "user", "contents": "2 + 2?"}, "it has no content"),
        ({"role": "user", "content": None, "name": "Ada"}, "it has no content"),
        ({"role": "user", "content": ""}, "its content is empty"),
        ({"role": "user", "content": []}, "its content is empty"),
        ({"role": "user", "content": 4}, "its content is neither a text nor a list"),
        ({"role": "user", "content": ["2 + 2?"]}, "a part of its content is no object with a type"),
        ({"role": "assistant", "content": None, "tool_calls": []}, "it has no content"),
        ({"from": "human", "value": "2 + 2?"}, "it has no role"),
        ({"role": 3, "content": "2 + 2?"}, "its role is no text"),
        ("2 + 2?", "it is no object"),
    ],
)  # fmt: skip
def test_a_message_of_no_known_shape_is_refused_with_its_line_and_number(
    tmp_path: Path, message: Any, problem: str
) -> None:
    good = {"role": "user", "content": "hi"}
    rows = [{"messages": [good], "answer": "a"}, {"messages": [message], "answer": "b"}]
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(TaskError, match=rf"chats.jsonl:2: message 0 of 'messages' is .*: {problem}; write an object"):
        load(tmp_path / "chats.jsonl")


def test_parts_of_a_content_and_calls_of_tools_without_one_are_taken_as_they_are(tmp_path: Path) -> None:
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "2 + 2?"}]},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "tool", "content": "4"},
    ]
    (tmp_path / "chats.jsonl").write_text(json.dumps({"messages": messages, "answer": "4"}) + "\n")
    assert load(tmp_path / "chats.jsonl").opening(0) == Chat(tuple(messages))


def test_an_assistant_s_last_message_is_cut_on_request_and_may_be_the_answer(tmp_path: Path) -> None:
    datasets.Dataset.from_list([{"messages": ASSISTANT}]).to_parquet(tmp_path / "sft.parquet")
    task = load(tmp_path / "sft.parquet", cut_answers=True, columns={"answer": None})
    assert task.opening(0) == Chat((ASSISTANT[0],))
    assert task.reference(0) == "4"


PARTS = [{"type": "text", "text": "Pa"}, {"type": "text", "text": "ris"}]
IMAGE = [*PARTS, {"type": "image"}]


@pytest.mark.parametrize("last", [{"content": None, "tool_calls": [CALL]}, {"tool_calls": [CALL]}, {"content": IMAGE}])
def test_a_last_message_is_the_answer_only_if_it_is_a_text(tmp_path: Path, last: dict[str, Any]) -> None:
    rows = [{"messages": [ASSISTANT[0], {"role": "assistant", **each}]} for each in ({"content": PARTS}, last)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:1]))
    (tmp_path / "b.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert load(tmp_path / "a.jsonl", cut_answers=True, columns={"answer": None}).reference(0) == "Paris"
    with pytest.raises(TaskError, match=r"b.jsonl:2: the last of 'messages', which is to be the answer, has the cont"):
        load(tmp_path / "b.jsonl", cut_answers=True, columns={"answer": None})


def test_messages_are_refused_where_a_prompt_template_surrounds_texts(tmp_path: Path) -> None:
    datasets.Dataset.from_list([{"prompt": ASSISTANT[:1], "answer": "4"}]).to_parquet(tmp_path / "a.parquet")
    refusal = r"'prompt' has chat messages, and data.prompt_template surrounds texts.* to '\{prompt\}'$"
    with pytest.raises(TaskError, match=refusal):
        load(tmp_path / "a.parquet", data={"prompt_template": "Q: {prompt}"})


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("bad.parquet", "nope", r"bad.parquet: datasets cannot read it \(ArrowInvalid: .*or data.task.path"),
        ("notes.txt", "nope", r"notes.txt: its format is not known by its suffix '.txt'; rename it to one of .jsonl"),
        ("header.csv", "prompt,answer\n", r"header.csv: has no rows"),
        ("list.json", "[]", r"list.json: has no rows"),
        ("empty.json", "", r"empty.json: has no rows"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_data_is_told_by_name(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(TaskError, match=message):
        load(tmp_path / name)


def test_paths_that_mean_nothing_are_told(tmp_path: Path) -> None:
    written(tmp_path, "a.parquet")
    written(tmp_path, "b.csv")
    (tmp_path / "none").mkdir()
    with pytest.raises(TaskError, match=r"has files of several formats, such as .*a.parquet.* and .*b.csv"):
        load(tmp_path)
    with pytest.raises(TaskError, match=r"none: has no data file \(.jsonl, .*save_to_disk"):
        load(tmp_path / "none")
    with pytest.raises(TaskError, match=r"\*.parquet: no file matches; correct data.task.path"):
        load(tmp_path / "none" / "*.parquet")
    with pytest.raises(TaskError, match=r"gone.parquet: does not exist; correct data.task.path"):
        load(tmp_path / "gone.parquet")


def test_a_dataset_of_the_hub_that_cannot_be_reached_is_refused_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(TaskError, match=r"HF_HUB_OFFLINE is set, so it was not asked"):
        load("someone/some_set")
    with pytest.raises(
        TaskError, match=r"'someone/some_set' is no file or folder here.*save_to_disk\('DIR'\).*copy DIR"
    ):
        load("someone/some_set")


def test_a_hub_that_is_out_of_reach_or_silent_is_told_without_trying_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub, "ANSWER_S", 0.3)
    offline: list[bool] = []
    load_dataset = datasets.load_dataset

    def loading(*given: Any, **named: Any) -> Any:
        offline.append(constants.HF_HUB_OFFLINE and datasets.config.HF_HUB_OFFLINE)
        return load_dataset(*given, **named)

    monkeypatch.setattr(datasets, "load_dataset", loading)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(TaskError, match=r"no answer within 0.3 s|Timeout") as told:
            load("someone/some_set")
    assert "nor is it in the cache of datasets" in str(told.value)
    assert "save_to_disk('DIR')" in str(told.value)
    with pytest.raises(TaskError, match=r"http://127.0.0.1:\d+: ConnectError"):
        load("someone/some_set")
    assert offline == [True, True], "datasets would try for half a minute"
    assert (constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE) == (False, False)


@pytest.mark.parametrize("missing", ["verl.parqet", "verl.parquet.gzz", "data/verl", "data/vrl.parquet"])
def test_a_misspelt_file_is_refused_at_once_with_the_nearest_name(
    missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    written(tmp_path, "verl.parquet")
    written(tmp_path / "data", "verl.parquet")
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: pytest.fail("the hub was asked"))
    nearest = Path(missing).with_name("verl.parquet")
    with pytest.raises(
        TaskError, match=rf"^{missing}: does not exist in {tmp_path}; did you mean {nearest}\?; correct data.task.path"
    ):
        load(missing)


@pytest.mark.parametrize("name", ["gsm8k", "someone/set-v1.5", "wikipedia/20220301.en"])
def test_a_version_in_a_name_of_the_hub_is_no_file_s_suffix(name: str) -> None:
    assert find_source(name, None, None, "data.task.path").format == "hub"


def test_the_first_rows_are_taken_and_what_is_held_out_is_said(tmp_path: Path) -> None:
    path = written(tmp_path, "rows.parquet")
    assert prompts(load(path, data={"num_prompts": 3})) == [row["prompt"] for row in ROWS[:3]]
    with pytest.raises(TaskError, match=r"rows.parquet: has 40 rows, and data.num_prompts asks for the first 41"):
        load(path, data={"num_prompts": 41})
    config = DataConfig.model_validate(
        {"task": {"name": "dataset", "path": str(path)}, "num_prompts": 30, "validation_size": 2}
    )
    taken = load(path, data={"num_prompts": 30, "validation_size": 2}).num_prompts
    assert say_split(config.task, config) == (  # type: ignore[arg-type]
        f"training on {taken} of the 40 rows of {path} (data.num_prompts takes the first 30); {30 - taken} held out "
        "for validation (data.held_out_fraction 0.1), 2 of them measured (data.validation_size)"
    )


def test_equal_rows_are_the_same_data_in_any_format_and_changed_ones_are_not(tmp_path: Path) -> None:
    def prompts_hash(path: Path) -> str:
        task = json.dumps({"name": "dataset", "path": str(path)})
        settings = load_settings(None, [f"data.task={task}", "data.validation_size=0"])
        return origin_of(settings, load_task(settings.data, "training"), "run").prompts

    parquet = written(tmp_path, "rows.parquet")
    assert prompts_hash(parquet) == prompts_hash(written(tmp_path, "rows.csv"))
    before = prompts_hash(parquet)
    datasets.Dataset.from_list([*ROWS[:-1], {**ROWS[-1], "answer": "0"}]).to_parquet(parquet)
    assert prompts_hash(parquet) != before
