"""L7: a prompt of large data that was not counted before the run, and does not fit, fails when its rollout starts."""

import asyncio
import json
from pathlib import Path
from typing import cast

from fsm.events import Attempt, FailureKind
from runtime.actors.policy_host import PolicyHost
from runtime.generation.engine import Engine
from runtime.models.text import make_codec
from runtime.models.tiny import character_tokenizer
from runtime.settings import load_settings
from runtime.transport.answers import Order


def refused(path: Path, line: str, *overrides: str) -> str:
    path.write_text('{"prompt": "a", "answer": ""}\n' + line + "\n", encoding="utf-8")
    task = json.dumps({"name": "jsonl", "path": str(path)})
    settings = load_settings(None, [f"data.task={task}", "data.validation_size=0", *overrides])
    codec = make_codec(character_tokenizer(), settings.data)
    host = PolicyHost(settings, cast(Engine, object()), codec, 0)  # nothing is sampled
    orders = [Order(Attempt(1, dispatch=1), start_weight=-1)]
    started, [failure] = host.start(orders, asyncio.run(host.encode(orders)))
    assert started == []
    assert failure.kind is FailureKind.DATA
    return failure.error


def test_a_too_long_one_is_a_data_failure_that_names_its_row_and_the_setting(tmp_path: Path) -> None:
    error = refused(
        tmp_path / "a.jsonl", json.dumps({"prompt": "x" * 40, "answer": ""}), "generation.max_prompt_tokens=30"
    )
    assert error.startswith(f"prompt 1, {tmp_path / 'a.jsonl'}:2: ")
    assert "40 tokens and generation.max_prompt_tokens is 30" in error


def test_one_that_the_chat_template_refuses_is_a_data_failure_too(tmp_path: Path) -> None:
    template = tmp_path / "users.jinja"
    template.write_text("{% if messages[0].role != 'user' %}{{ raise_exception('users only') }}{% endif %}hi")
    line = json.dumps({"messages": [{"role": "critic", "content": "hm"}], "answer": ""})
    error = refused(tmp_path / "a.jsonl", line, "data.chat=true", f"data.chat_template={template}")
    assert error.startswith(f"prompt 1, {tmp_path / 'a.jsonl'}:2: the chat template does not render")
    assert "users only" in error


def test_one_of_which_the_chat_template_leaves_nothing_is_a_data_failure_too(tmp_path: Path) -> None:
    template = tmp_path / "users.jinja"
    template.write_text("{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}")
    line = json.dumps({"messages": [{"role": "human", "content": "hm"}], "answer": ""})
    error = refused(tmp_path / "a.jsonl", line, "data.chat=true", f"data.chat_template={template}")
    assert error.startswith(f"prompt 1, {tmp_path / 'a.jsonl'}:2: its prompt has 0 tokens: ")
