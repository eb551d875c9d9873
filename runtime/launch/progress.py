"""What a user sees during a run: one line a step; on a terminal, also where the run stands."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.columns import Columns
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.text import Text

from runtime.control.messages import Listener, Message, Notice, Progress, StepDone, ValidationDone
from runtime.evaluation.config import DEFAULT_SET
from runtime.explain.live import Standing, live_view, number
from runtime.files import Json
from runtime.trace.show import printable_lines
from runtime.wording import counted

PROGRESS_S = 10.0
"""Off a terminal, the time between two lines on how far the start is."""


@contextmanager
def open_progress(console: Console, max_steps: int | None) -> Iterator[Listener]:
    """A listener that prints messages."""
    if not console.is_terminal:
        yield _printing(console, max_steps)
        return
    closed = Text("no step is closed yet", "dim")
    with Live(Text("starting"), console=console, refresh_per_second=4, transient=True) as live:

        def show(message: Message) -> None:
            nonlocal closed
            match message:
                case StepDone(record):
                    closed = Text(step_line(record, max_steps), no_wrap=True, overflow="ellipsis")
                case Progress():
                    live.update(_bar(message))
                case Standing():
                    live.update(Group(closed, live_view(message)))
                case _:
                    _print(live.console, message, max_steps)

        yield show


def _printing(console: Console, max_steps: int | None) -> Listener:
    """Prints a line a message; of Progress one every PROGRESS_S seconds."""
    printed_s = time.monotonic()

    def listen(message: Message) -> None:
        nonlocal printed_s
        if not isinstance(message, Progress):
            _print(console, message, max_steps)
        elif time.monotonic() > printed_s + PROGRESS_S and (message.done < message.total or not message.total):
            printed_s = time.monotonic()
            console.print(Text(f"{message.what}: {_of(message)}"), soft_wrap=True)

    return listen


def _bar(progress: Progress) -> Columns:
    """A bar on one line, which pulses if the end is not known."""
    bar = ProgressBar(progress.total or None, progress.done, width=30, pulse=not progress.total)
    return Columns([Text(progress.what), bar, Text(_of(progress), "dim")])


def _of(progress: Progress) -> str:
    return f"{progress.done:,} of {progress.total:,}" if progress.total else "it has begun"


def step_line(record: Json, max_steps: int | None) -> str:
    """A step in one line."""
    done = "" if max_steps is None else f" ({record['step'] + 1} of {max_steps} done)"
    parts = [
        f"step {record['step']}{done}",
        f"{record['wall_s']:.1f} s",
        f"reward {number(record['unfiltered_reward'])}",
        f"entropy {number(record['entropy'] if record['trained_tokens'] else None)}",
        f"zero variance {number(record['zero_variance_fraction'])}",
        f"selected {record['selected']}",
    ]
    if record["charged"]:
        parts.append(f"charged {record['charged']}")
    if record["trained_tokens"] == 0:
        parts.append("no token trained")
    if record.get("not_finite"):
        parts.append("NOT APPLIED: not finite")
    parts += [
        f"filtered {record['filtered_prompt_groups']}",
        f"staleness {number(record['staleness_mean'])}",
        f"{record['generation_tokens_per_s']:.0f} tokens/s",
        f"trainer idle {record['trainer_idle_share']:.0%}",
    ]
    return "  ".join(parts)


def _print(console: Console, message: Message, max_steps: int | None) -> None:
    match message:
        case StepDone(record):
            console.print(Text(step_line(record, max_steps)), soft_wrap=True)
        case ValidationDone(step, name, accuracy):
            of_set = "" if name == DEFAULT_SET else f" of {name}"
            console.print(
                Text(f"held-out accuracy{of_set} {accuracy:.3f} after {counted(step, 'step')}"), soft_wrap=True
            )
        case Notice(text):
            console.print(Text(printable_lines(text)), soft_wrap=True)
