"""The program of a process that renders chat templates. It imports the renderer of transformers, but not torch.

A template is code: the sandbox keeps it from files and the network, and not from looping or taking memory. So it has a
deadline here, on processor time, which a busy machine does not use up; the parent kills a process that misses it.
"""

import re
import signal
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from traceback import walk_tb
from types import FrameType
from typing import Any, NoReturn

from jinja2 import TemplateSyntaxError
from transformers.utils.chat_template_utils import render_jinja_template

from runtime.tasks.verdicts.memory import refuse_more_than
from runtime.tasks.verdicts.process import Sender, prepare_process
from runtime.tasks.verdicts.wire import receive_case

LONGEST_TEXT = 1 << 24
"""Characters of a rendered prompt; four times what a million tokens of English take."""
_TOGETHER = 1 << 24
"""Characters after which the rest of a request is left to another one."""
_AGAIN_S = 0.5
"""After a missed deadline: processor time until the error is raised once more, if a filter dropped it."""
_TEXT_MAX = 500
_HALF = re.compile("[\ud800-\udfff]")
"""Surrogates, which are no characters by themselves."""
SYNTAX, RAISED, STOPPED = "syntax", "raised", "stopped"
"""What is wrong: the template is no Jinja; an expression of it raised; it was stopped, having taken too much."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a chat template is rendered with for one prompt. open_turn: up to the start of the assistant's turn."""

    template: str
    messages: list[dict[str, Any]]
    tools: list[Any]
    open_turn: bool


@dataclass(frozen=True, slots=True)
class Rendering:
    """A request: conversations to render one after the other, until the first that fails."""

    variables: Mapping[str, Any]
    conversations: Sequence[Conversation]
    timeout_s: float
    """For each conversation, in processor time."""


class _Late(BaseException):
    """The deadline is missed. No Exception, since Jinja's optimizer drops those."""


def main(connection_fd: int, clues_fd: int, parent: int, memory_mib: int) -> NoReturn:
    """Render requests until the parent is gone."""
    prepare_process(clues_fd, parent)
    refuse_more_than(memory_mib, 1)
    _RenderServer(socket.socket(fileno=connection_fd), memory_mib).serve()


class _RenderServer(Sender):
    def __init__(self, connection: socket.socket, memory_mib: int) -> None:
        super().__init__(connection)
        self._memory_mib = memory_mib
        self._renders = False
        signal.signal(signal.SIGPROF, self._interrupt)

    def serve(self) -> NoReturn:
        """Run in the main thread, where alone a signal can interrupt a template."""
        receive_case(self._connection)
        self._send({"opened": True})
        while True:
            try:
                _, (asked,) = receive_case(self._connection)
            except (EOFError, OSError):
                raise SystemExit(0) from None
            self._send({"ended": True, **self._fault_of(asked)})

    def _fault_of(self, asked: Rendering) -> dict[str, Any]:
        """Render, sending each text; returns what was wrong with the first that has none."""
        characters = 0
        for each in asked.conversations:
            try:
                text = self._rendered(asked, each)
            except TemplateSyntaxError as error:
                return {"fault": SYNTAX, "happened": f"{error.message:.{_TEXT_MAX}}", "line": error.lineno}
            except _Late as error:
                late = f"did not end within data.chat_template_timeout_s = {asked.timeout_s:g} s of processor time"
                return {"fault": STOPPED, "happened": late, "line": _line_of(error)}
            except MemoryError as error:
                return {"fault": STOPPED, "happened": too_much_memory(self._memory_mib), "line": _line_of(error)}
            except Exception as error:  # a template's expressions raise any, such as ZeroDivisionError
                happened = f"{type(error).__name__}: {error!s:.{_TEXT_MAX}}"
                return {"fault": RAISED, "happened": happened, "line": _line_of(error)}
            if len(text) > LONGEST_TEXT:
                long = f"gave a text of {len(text)} characters; at most {LONGEST_TEXT} are taken"
                return {"fault": STOPPED, "happened": long, "line": None}
            if half := _HALF.search(text):
                torn = f"gave a text with {half[0]!a}, half of a pair, at character {half.start()}: no valid text"
                return {"fault": RAISED, "happened": torn, "line": None}
            self._send({"text": text})
            characters += len(text)
            if characters > _TOGETHER:
                break
        return {}

    def _rendered(self, asked: Rendering, each: Conversation) -> str:
        with self._deadline(asked.timeout_s):
            rendered: Any = render_jinja_template(
                [each.messages],
                tools=each.tools or None,
                chat_template=each.template,
                add_generation_prompt=each.open_turn,
                **asked.variables,
            )
        return str(rendered[0][0])

    @contextmanager
    def _deadline(self, timeout_s: float) -> Iterator[None]:
        self._renders = True
        signal.setitimer(signal.ITIMER_PROF, timeout_s, _AGAIN_S)
        try:
            yield
        finally:
            self._renders = False
            signal.setitimer(signal.ITIMER_PROF, 0)

    def _interrupt(self, _number: int, _frame: FrameType | None) -> None:
        if self._renders:
            raise _Late


def too_much_memory(memory_mib: int) -> str:
    """What happened to a template that took more than its process may use."""
    return f"took more than {memory_mib} MiB of memory"


def _line_of(error: BaseException) -> int | None:
    """The template's line that raised it. Jinja has put lines of the template into the tracebacks of Exceptions."""
    found = None
    for frame, line in walk_tb(error.__traceback__):
        if (compiled := frame.f_globals.get("__jinja_template__")) is not None:
            found = compiled.get_corresponding_lineno(line)
        elif frame.f_code.co_filename == "<template>":
            found = line
    return found
