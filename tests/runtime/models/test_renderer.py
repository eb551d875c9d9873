"""Hostile chat templates: each is stopped, its fault is told by file and line, and the next prompt is rendered."""

import asyncio
import os
import re
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError
from pathlib import Path

import pytest

from runtime.models.renderer import Renderer
from runtime.models.text import NotRendered, TextCodec
from runtime.models.tiny import character_tokenizer
from runtime.tasks.base import Chat
from tests.users.hostile_templates import ALWAYS, TEMPLATES

GOOD, BAD = Chat(({"role": "user", "content": "good"},)), Chat(({"role": "user", "content": "bad"},))


@pytest.fixture(scope="module")
def renderer() -> Iterator[Renderer]:
    made = Renderer(memory_mib=256)
    yield made
    made.close()


def codec(renderer: Renderer, template: str, timeout_s: float = 0.5) -> TextCodec:
    return TextCodec(
        character_tokenizer(),
        chat_template=template,
        chat_template_file=Path("own.jinja"),
        chat_template_timeout_s=timeout_s,
        renderer=renderer,
    )


@pytest.mark.parametrize(
    ("does", "told", "refused"),
    [
        ("loops", r"own\.jinja:3: did not end within data\.chat_template_timeout_s = 0\.5 s of processor", False),
        ("computes", r"own\.jinja:3: did not end within data\.chat_template_timeout_s = 0\.5 s of processor", False),
        ("compares", r"own\.jinja: did not end within data\.chat_template_timeout_s = 0\.5 s of processor", False),
        ("allocates", r"own\.jinja:3: took more than 256 MiB of memory; correct the template", False),
        ("grows", r"own\.jinja(:3)?: took more than 256 MiB of memory; correct the template", False),
        ("long", r"own\.jinja: gave a text of 17000004 characters; at most 16777216 are taken", False),
        ("raises", r"own\.jinja:3: TemplateError: not this one; correct the messages", True),
        ("divides", r"own\.jinja:3: ZeroDivisionError: .*; correct the messages", True),
        ("recurses", r"own\.jinja:3: RecursionError", True),
        ("escapes", r"own\.jinja:3: SecurityError: access to attribute '__class__'", True),
        (
            "halves",
            r"own\.jinja: gave a text with '\\ud800', half of a pair, at character \d: no valid text; corr",
            True,
        ),
        ("changes", r"own\.jinja:3: SecurityError: access to attribute 'append' of 'list'", True),
    ],
)
def test_a_template_costs_the_prompt_that_it_fails_on_and_no_other(
    renderer: Renderer, does: str, told: str, refused: bool
) -> None:
    hostile = codec(renderer, TEMPLATES[does], timeout_s=60 if does == "grows" else 0.5)
    with pytest.raises(NotRendered, match=r"does not render the messages .*'bad'") as failure:
        hostile.begin_texts([GOOD, "plain", BAD, GOOD])()
    assert failure.value.at == 2
    assert failure.value.refused is refused
    assert re.search(told, str(failure.value)), failure.value
    assert hostile.begin_texts([GOOD, "plain", GOOD])() == ["\ngood", "plain", "\ngood"]


def test_a_turn_that_ends_in_half_of_a_pair_is_the_template_s_fault_too(renderer: Renderer) -> None:
    with pytest.raises(NotRendered, match=r"own\.jinja: gave a text with '\\ud800', half of a pair"):
        codec(renderer, ALWAYS["halves"]).after_an_answer()


def test_a_long_tag_that_jinja_does_not_know_is_shortened(renderer: Renderer) -> None:
    with pytest.raises(NotRendered, match=r"own\.jinja:1: is not Jinja: .*xxx") as failure:
        codec(renderer, f"{{% {'x' * 300_000} %}}").prompt_text(GOOD)
    assert len(str(failure.value)) < 1000


def test_texts_that_get_long_together_are_rendered_in_several_requests(renderer: Renderer) -> None:
    wordy = codec(renderer, "{{ 'x' * 9000000 }}")
    assert [len(text) for text in wordy.begin_texts([GOOD] * 5)()] == [9_000_000] * 2


def test_a_process_that_others_kill_is_replaced_and_nothing_is_lost(renderer: Renderer) -> None:
    plain = codec(renderer, TEMPLATES["loops"], timeout_s=600)
    assert plain.prompt_text(GOOD) == "\ngood"
    assert renderer._process is not None
    pid = renderer._process._handle.process.pid
    asked = [GOOD] * 5000
    texts = plain.begin_texts(asked)
    os.kill(pid, signal.SIGKILL)
    assert texts() == ["\ngood"] * len(asked)
    os.kill(renderer._process._handle.process.pid, signal.SIGKILL)
    assert plain.prompt_text(GOOD) == "\ngood"


def test_a_caller_that_waits_is_released_when_the_process_is_given_up_and_a_later_one_gets_another() -> None:
    own = Renderer()
    looping = codec(own, ALWAYS["loops"], timeout_s=600)
    texts = looping.begin_texts([GOOD])
    threading.Timer(0.5, own.close).start()
    with pytest.raises(CancelledError):
        texts()
    assert codec(own, TEMPLATES["loops"]).prompt_text(GOOD) == "\ngood"
    own.close()


def test_calls_in_threads_leave_the_event_loop_to_others(renderer: Renderer) -> None:
    looping = codec(renderer, ALWAYS["loops"], timeout_s=1.0)

    async def turns() -> int:
        rendering = asyncio.create_task(asyncio.to_thread(looping.prompt_text, GOOD))
        turned = 0
        while not rendering.done():
            await asyncio.sleep(0.01)
            turned += 1
        with pytest.raises(NotRendered):
            rendering.result()
        return turned

    assert asyncio.run(turns()) > 10
