"""L7: a prompt of large data that was not counted before the run, and does not fit, fails when its rollout starts."""

import asyncio
import json
from pathlib import Path
from typing import cast

import numpy as np

from fsm.events import Attempt, FailureKind
from runtime.actors.policy_host import PolicyHost
from runtime.generation.engine import Engine
from runtime.models.text import make_codec
from runtime.models.tiny import character_tokenizer
from runtime.settings import load_settings
from runtime.transport.answers import Order
from tests.users.hostile_templates import TEMPLATES


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


def test_one_at_which_the_template_hangs_is_a_data_failure_and_those_after_it_are_retried(tmp_path: Path) -> None:
    lines = [json.dumps({"prompt": prompt, "answer": ""}) for prompt in ("ab", "bad", "aa")]
    (tmp_path / "a.jsonl").write_text("\n".join(lines), encoding="utf-8")
    (tmp_path / "own.jinja").write_text(TEMPLATES["loops"], encoding="utf-8")
    task = json.dumps({"name": "jsonl", "path": str(tmp_path / "a.jsonl")})
    given = [f"data.task={task}", f"data.chat_template={tmp_path / 'own.jinja'}", "data.chat_template_timeout_s=0.5"]
    settings = load_settings(None, [*given, "data.chat=true", "data.validation_size=0"])
    host = PolicyHost(settings, cast(Engine, object()), make_codec(character_tokenizer(), settings.data), 0)
    orders = [Order(Attempt(prompt, dispatch=prompt), start_weight=-1) for prompt in range(3)]
    encoded = asyncio.run(host.encode(orders))
    assert isinstance(encoded[0], np.ndarray)
    _, failed = host.start(orders[1:], encoded[1:])
    assert [(failure.attempt.prompt, failure.kind) for failure in failed] == [
        (1, FailureKind.DATA),
        (2, FailureKind.INFRA),
    ]
    assert failed[0].error.startswith(f"prompt 1, {tmp_path / 'a.jsonl'}:2: the chat template does not render")
    assert "own.jinja:3: did not end within data.chat_template_timeout_s = 0.5 s" in failed[0].error
