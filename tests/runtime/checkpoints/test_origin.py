"""C3: by what a resume tells that data and models are those of its checkpoint, and how it names what differs."""

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import save_file

from runtime.checkpoints.origin import changed_files, differences, origin_of
from runtime.models.directory import identity_of_directory
from runtime.settings import load_settings
from runtime.tasks.data import load_task


def jsonl(folder: Path, lines: list[tuple[str, str]], *overrides: str, name: str = "data.jsonl") -> dict[str, Any]:
    path = folder / name
    path.write_text("".join(json.dumps({"prompt": p, "answer": a}) + "\n" for p, a in lines), encoding="utf-8")
    task = f"data.task={{name: jsonl, path: {path}}}"
    settings = load_settings(None, [task, "data.held_out_fraction=0", "data.validation_size=0", *overrides])
    return origin_of(settings, load_task(settings.data, "training"), "run").data


LINES = [("one", "1"), ("two", "2"), ("three", "3")]


def test_a_file_of_the_same_length_with_another_prompt_answer_or_order_is_other_data(tmp_path: Path) -> None:
    before = jsonl(tmp_path, LINES)
    for changed in ([*LINES[:2], ("four", "3")], [*LINES[:2], ("three", "4")], LINES[::-1]):
        assert [text.split(" was ")[0] for text in differences(before, jsonl(tmp_path, changed))] == [
            "the hash of the prompts"
        ]
    assert list(differences(before, jsonl(tmp_path, LINES[:2]))) == ["the number of lines was 3, is 2"]


def test_a_file_that_was_moved_and_blank_lines_are_the_same_data(tmp_path: Path) -> None:
    before = jsonl(tmp_path, LINES)
    assert list(differences(before, jsonl(tmp_path, LINES, name="moved.jsonl"))) == []
    settings_that_are_free = ("optimizer.lr=1e-5", "grpo.max_num_steps=9", "data.max_turns=3", "generation.top_p=0.9")
    assert list(differences(before, jsonl(tmp_path, LINES, *settings_that_are_free))) == []


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("data.seed=1", "data.seed"),
        ("data.shuffle=true", "data.shuffle"),
        ("data.held_out_fraction=0.01", "data.held_out_fraction"),
        ("data.prompt_template='Q: {prompt}'", "data.prompt_template"),
        ("data.task.verifier=runtime.tasks.verifiers:last_number", "data.task.verifier"),
        ("data.task.correct_at=0.5", "data.task.correct_at"),
    ],
)
def test_every_key_that_decides_what_is_trained_on_is_compared_by_name(tmp_path: Path, override: str, key: str) -> None:
    [difference] = differences(jsonl(tmp_path, LINES), jsonl(tmp_path, LINES, override))
    assert difference.startswith(f"{key} was ")


ASKS = {"prompt": "hi", "answer": "1", "level": 1}
CALL = {"role": "assistant", "content": "I add", "tool_calls": [{"function": {"name": "add", "arguments": {"a": 1}}}]}


def rows(folder: Path, row: dict[str, Any], *overrides: str) -> dict[str, Any]:
    path = folder / "rows.jsonl"
    path.write_text(json.dumps(row) + "\n", encoding="utf-8")
    settings = load_settings(None, [f"data.task={{name: jsonl, path: {path}}}", "data.validation_size=0", *overrides])
    return origin_of(settings, load_task(settings.data, "training"), "run").data


def messages(*said: dict[str, Any], **row: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "hi"}, *said], "answer": "1", **row}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (messages(), messages(tools=[{"name": "add"}])),
        (messages(tools=[{"name": "add"}]), messages(tools=[{"name": "subtract"}])),
        (messages(), ASKS),
        (
            messages(CALL, {"role": "tool", "content": "2"}),
            messages({**CALL, "tool_calls": []}, {"role": "tool", "content": "2"}),
        ),
    ],
)
def test_messages_and_tools_that_read_the_same_are_other_data(
    before: dict[str, Any], after: dict[str, Any], tmp_path: Path
) -> None:
    saved, here = rows(tmp_path, before), rows(tmp_path, after)
    assert saved["the hash of the prompts"] == here["the hash of the prompts"]
    [difference] = differences(saved, here)
    assert difference.startswith("the hash of the messages, tools and columns was ")
    del saved["the hash of the messages, tools and columns"]  # as an older checkpoint
    assert list(differences(saved, here)) == []


def test_other_columns_are_data_where_a_verifier_may_read_them(tmp_path: Path) -> None:
    own = "data.task.verifier=my_verifiers:graded"
    harder = {**ASKS, "level": 2}
    [difference] = differences(rows(tmp_path, ASKS, own), rows(tmp_path, harder, own))
    assert difference.startswith("the hash of the messages, tools and columns was ")
    assert list(differences(rows(tmp_path, ASKS), rows(tmp_path, harder))) == []


def test_a_chat_template_that_is_added_or_removed_is_other_data(tmp_path: Path) -> None:
    (tmp_path / "own.jinja").write_text("{{ messages }}", encoding="utf-8")
    plain = rows(tmp_path, ASKS, "data.chat=true")
    given = rows(tmp_path, ASKS, "data.chat=true", f"data.chat_template={tmp_path / 'own.jinja'}")
    before_nulls = {key: value for key, value in plain.items() if key != "the hash of the data.chat_template"}
    for saved, here in ((plain, given), (given, plain), (before_nulls, given)):
        [difference] = differences(saved, here)
        assert difference.startswith("the hash of the data.chat_template was ")
    assert list(differences(before_nulls, plain)) == []
    del before_nulls["data.chat_template_kwargs"]  # from before there were templates of one's own
    assert list(differences(before_nulls, given)) == []


def test_a_drawn_task_is_told_by_its_options_and_a_sample_of_its_prompts() -> None:
    def data(*overrides: str) -> dict[str, Any]:
        settings = load_settings(None, [*overrides, "data.num_prompts=100000"])
        return origin_of(settings, load_task(settings.data, "training"), "run").data

    before = data()
    assert before == data()
    assert next(differences(before, data("data.task={name: sort}"))).startswith("data.task.name was 'reverse'")
    assert list(differences(before, data("data.task.letters=9"))) == ["data.task.letters was 26, is 9"]
    assert before["the hash of the prompts"] != data("data.task.letters=9")["the hash of the prompts"]


def model_directory(folder: Path, **config: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2", "n_embd": 64, "dtype": "float32", **config}))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ a }}"}))
    import numpy as np

    save_file({"w": np.zeros((300, 200), np.float32)}, folder / "model.safetensors")
    return folder


def test_a_model_directory_is_told_by_configuration_tokenizer_template_and_weights(tmp_path: Path) -> None:
    before = identity_of_directory(model_directory(tmp_path / "model"))
    moved = model_directory(tmp_path / "moved", dtype="bfloat16", transformers_version="9")
    assert list(differences(before, identity_of_directory(moved))) == []
    wider = identity_of_directory(model_directory(tmp_path / "model", n_embd=32))
    assert list(differences(before, wider)) == ["config.json's n_embd was 64, is 32"]
    changed = {
        "the hash of the tokenizer": ("tokenizer.json", b"[]"),
        "the chat template": ("chat_template.jinja", b"{{ b }}"),
    }
    for key, (name, content) in changed.items():
        directory = model_directory(tmp_path / name)
        (directory / name).write_bytes(content)
        assert [text.split(" was ")[0] for text in differences(before, identity_of_directory(directory))] == [key]
    directory = model_directory(tmp_path / "other weights")
    weights = bytearray((directory / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (directory / "model.safetensors").write_bytes(weights)
    [difference] = differences(before, identity_of_directory(directory))
    assert difference.startswith("the hash of the weights was ")


def test_the_chat_template_counts_only_where_prompts_go_through_it(tmp_path: Path) -> None:
    directory = model_directory(tmp_path / "model")

    def model(*overrides: str) -> dict[str, Any]:
        settings = load_settings(None, [f"policy.model_name={directory}", *overrides])
        return origin_of(settings, load_task(settings.data, "training"), "run").model

    plain, chat = model(), model("data.chat=true")
    (directory / "chat_template.jinja").write_text("{{ b }}")
    assert list(differences(plain, model())) == []
    [difference] = differences(chat, model("data.chat=true"))
    assert difference.startswith("the chat template was ")


def test_what_differs_is_told_by_the_file_that_has_it(tmp_path: Path) -> None:
    own = "data.task.verifier=my_verifiers:graded"
    before, after = rows(tmp_path, ASKS, own), rows(tmp_path, {**ASKS, "level": 2}, own)
    data = load_settings(
        None, ["data.task={name: jsonl, path: asks.jsonl}", "data.chat=true", "data.chat_template=own.jinja"]
    ).data
    [said] = changed_files(before, after, data)
    assert said.startswith("asks.jsonl (data.task.path): the hash of the messages, tools and columns was '")
    assert changed_files(before, {**after, "data.seed": 7}, data) == []
    [said] = changed_files({**before, "the number of lines": 3}, before, data)
    assert said == "asks.jsonl (data.task.path): the number of lines was 3, is 1"
    template = "the hash of the data.chat_template"
    [said] = changed_files({**before, template: "aa"}, {**before, template: "bb"}, data)
    assert said == "own.jinja (data.chat_template): its hash was 'aa', is 'bb'"
