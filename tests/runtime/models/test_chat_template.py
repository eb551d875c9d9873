"""Prompts as chat messages: templates and their variables, and what a template that does not fit is told like."""

import re
import tracemalloc
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from runtime.checkpoints.origin import origin_of
from runtime.launch.preflight import template_problems
from runtime.models.text import NotRendered, TextCodec, make_codec
from runtime.models.tiny import character_tokenizer
from runtime.settings import load_settings
from runtime.tasks.base import Chat, DataFailure, TaskError
from runtime.tasks.config import DataConfig
from runtime.tasks.data import load_task

TEMPLATE = (
    "{% if tools %}[{{ tools | length }} tools]{% endif %}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% if enable_thinking is false %}no thoughts{% endif %}{% endif %}"
)
HELLO = Chat(({"role": "user", "content": "hello"},))


def codec(folder: Path, template: str = TEMPLATE, **data: Any) -> TextCodec:
    (folder / "own.jinja").write_text(template, encoding="utf-8")
    block = {"chat": True, "chat_template": str(folder / "own.jinja"), **data}
    return make_codec(character_tokenizer(), DataConfig.model_validate(block))


def test_a_template_of_one_s_own_renders_texts_messages_and_tools_with_its_variables(tmp_path: Path) -> None:
    own = codec(tmp_path)
    assert own.prompt_text("hello") == own.prompt_text(HELLO) == "<user>hello<assistant>"
    assert own.prompt_text(Chat(HELLO.messages, ({"type": "function"},))).startswith("[1 tools]<user>")
    quick = codec(tmp_path, chat_template_kwargs={"enable_thinking": False}, system_prompt="be brief")
    assert quick.prompt_text("hello") == "<system>be brief<user>hello<assistant>no thoughts"
    own_system = Chat(({"role": "system", "content": "sing"}, *HELLO.messages))
    assert quick.prompt_text(own_system) == "<system>sing<user>hello<assistant>no thoughts"
    assert quick.count_tokens([quick.prompt_text("hello"), "abc"]) == [len(quick.encode_prompt("hello")), 3]


def test_a_template_that_is_no_jinja_or_not_there_is_told_by_file_and_line(tmp_path: Path) -> None:
    refusal = codec(tmp_path, "\n{% for m in messages %}").template_refusal()
    assert refusal is not None
    assert re.search(r"own.jinja:2: is not Jinja: .*endfor", refusal)
    with pytest.raises(TaskError, match=r"data.chat_template .*gone.jinja: cannot be read: .*correct the path"):
        codec(tmp_path, chat_template=str(tmp_path / "gone.jinja"))


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("\n{{ messages | shorten }}", "own.jinja:2: unknown filter 'shorten'"),
        ("{{ 1 is shorter }}", "own.jinja:1: unknown test 'shorter'"),
        ("{% for m in messages %}", "own.jinja:1: is not Jinja: Unexpected end of template."),
    ],
)
def test_a_template_that_cannot_be_compiled_is_refused_before_anything_starts(
    tmp_path: Path, template: str, says: str
) -> None:
    refusal = codec(tmp_path, template).template_refusal()
    assert refusal is not None
    assert says in refusal
    settings = load_settings(None, ["data.chat=true", f"data.chat_template={tmp_path / 'own.jinja'}"])
    [problem] = template_problems(settings)
    assert says in problem
    (tmp_path / "own.jinja").write_text(
        "{% for m in messages %}{% generation %}{{ 'x' * 10 ** 9 }}{% endgeneration %}{% break %}{% endfor %}"
        "{% if 0 %}{{ 1 | shorten }}{% endif %}"
    )
    tracemalloc.start()
    assert not list(template_problems(settings))
    assert tracemalloc.get_traced_memory()[1] < 100_000_000, "constants are not computed here"
    tracemalloc.stop()


def test_a_template_that_never_ends_is_said_to_fail_on_a_trial_message(tmp_path: Path) -> None:
    endless = "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}"
    refusal = codec(tmp_path, endless, chat_template_timeout_s=0.2).template_refusal()
    assert refusal is not None
    assert "does not render evenstep's own trial message: " in refusal
    assert "did not end within data.chat_template_timeout_s" in refusal


def test_messages_that_a_template_refuses_are_a_data_failure_of_their_prompt(tmp_path: Path) -> None:
    strict = codec(tmp_path, "{% if messages[0].role != 'system' %}{{ raise_exception('no system') }}{% endif %}")
    with pytest.raises(DataFailure, match=r"does not render the messages .*'hello'.*TemplateError: no system; correct"):
        strict.prompt_text(HELLO)


@pytest.mark.parametrize(
    ("template", "error"),
    [
        ("{% include 'a' %}", "TypeError"),
        ("{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}", "RecursionError"),
    ],
)
def test_a_template_that_no_chat_survives_is_a_failure_of_the_template(
    tmp_path: Path, template: str, error: str
) -> None:
    own = codec(tmp_path, template)
    with pytest.raises(DataFailure, match=error):
        own.prompt_text(HELLO)
    for render in (own.after_an_answer, lambda: own.encode_turn("more")):
        with pytest.raises(NotRendered, match=rf"own.jinja:1: {error}"):
            render()
    with pytest.raises(DataFailure, match=r"is no valid text"):
        own.count_tokens(["x\udc00y"])


def test_a_template_that_fails_in_any_way_and_a_text_that_is_none_are_data_failures(tmp_path: Path) -> None:
    dividing = codec(tmp_path, "{% for m in messages %}{{ 1 // (m.content | length - 5) }}{% endfor %}")
    with pytest.raises(DataFailure, match=r"does not render the messages .*'hello'.*ZeroDivisionError"):
        dividing.prompt_text(HELLO)
    with pytest.raises(
        DataFailure, match=r"own\.jinja: gave a text with '\\ud800', half of a pair.*correct the messages"
    ):
        codec(tmp_path).encode_prompt("\ud800")


def test_messages_need_a_template() -> None:
    without = make_codec(character_tokenizer(), DataConfig())
    with pytest.raises(
        TaskError, match=r"of the model 'tiny' has no chat template, and a task gives messages; .*Jinja file"
    ):
        without.prompt_text(HELLO)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"chat_template": "a.jinja"}, "chat_template needs chat: true"),
        ({"chat_template_kwargs": {"enable_thinking": False}}, "chat_template_kwargs needs chat: true"),
        ({"chat": True, "chat_template_kwargs": {"tools": []}}, "chat_template_kwargs has tools, which a run sets"),
    ],
)
def test_settings_that_would_have_no_effect_are_refused(data: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DataConfig.model_validate(data)


@pytest.mark.parametrize("name", [*signature(render_jinja_template).parameters, "self"])
def test_a_name_that_the_renderer_takes_itself_is_no_variable(name: str) -> None:
    given = {"chat": True, "chat_template_kwargs": {name: None}}
    if name == "kwargs":  # the others
        DataConfig.model_validate(given)
        return
    with pytest.raises(ValueError, match=f"chat_template_kwargs has {name}, which a run sets itself"):
        DataConfig.model_validate(given)


def test_a_changed_template_is_other_data_to_a_resume(tmp_path: Path) -> None:
    def data(template: str) -> dict[str, Any]:
        (tmp_path / "own.jinja").write_text(template, encoding="utf-8")
        settings = load_settings(None, ["data.chat=true", f"data.chat_template={tmp_path / 'own.jinja'}"])
        return origin_of(settings, load_task(settings.data, "training"), "run").data

    assert data(TEMPLATE) == data(TEMPLATE)
    assert data(TEMPLATE) != data(TEMPLATE + " ")
