"""The end of a run for the user: the JSON of `--summary`, and the lines or table that are printed."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fsm.core import Core
from runtime.evaluation.config import DEFAULT_SET
from runtime.wording import counted


class Summary(TypedDict):
    """The JSON of `--summary`. Keys may be added, and none removed."""

    accuracy_before: float | None
    """Held-out accuracy before the first step; None if nothing was held out."""
    accuracy_after: float | None
    """Both are of the first of `validation.sets`, if there are any."""
    accuracy_by_set: dict[str, dict[str, float]]
    """By name of the set: before the run, and after one that completed."""
    steps: int
    closed: list[dict[str, int]]
    """Per closed step its number, selected, charged and short."""
    balance: dict[str, int]
    """The keys of the scenario format (X4)."""
    steps_without_tokens: int
    """Steps, since the run began or resumed, in which overlong filtering left no token to train on."""
    steps_not_applied: int
    """Steps, since then, whose loss or gradient was not finite."""
    wall_s: float
    """From the start of the command to its end. Of this command alone after a resume, like the next two."""
    rl_s: float
    """From the first rollout to the end of the last step."""
    peak_memory_bytes: int
    """Of all processes of the run (`runtime.launch.machine`)."""
    resumed_at: int | None
    """Steps closed before this command, which resumed the run; None if it began it."""
    trace: str | None
    seed: int
    config: dict[str, Any]
    """Resolved."""


BALANCE_LINES: tuple[tuple[str, str], ...] = (
    ("pulled", "prompts taken from the data"),
    ("trained", "trained in a closed step"),
    ("filtered", "filtered: all rewards equal"),
    ("dropped", "dropped after their retry budget"),
    ("evicted", "evicted: ready, but too stale"),
    ("aborted", "aborted: in flight, but too stale"),
    ("spare", "left in the spare pool"),
    ("queued", "left in the queue"),
    ("in_flight", "left in flight"),
    ("ready", "left ready"),
    ("selected", "left selected into an unfinished step"),
)
"""The lines of the balance sheet: the prompts pulled, and the ten places where they are now (X4)."""


def closed_steps(core: Core) -> list[dict[str, int]]:
    """Number, selected, charged and short of every closed step, also of those before a resume."""
    return [closed._asdict() for closed in core.book.closed]


def print_summary(
    summary: Summary, console: Console, *, outcome: str, notes: Sequence[str] = (), places: Mapping[str, Path]
) -> None:
    """Accuracy, steps, the balance sheet and the run's files: a table on a terminal, plain lines elsewhere.

    `outcome` is "completed", or "stopped: " and the reason; `notes` say what could not be saved, and why, and how the
    run is continued; `places` are paths by name, such as {"metrics": …, "checkpoint": …}.
    """
    for line in headline(summary, outcome):
        console.print(Text(line), soft_wrap=True)
    if not summary["balance"]:
        console.print(Text("the balance sheet is not known: the controller did not report it"), soft_wrap=True)
    elif console.is_terminal:
        console.print(_balance_table(summary["balance"]))
    else:
        for line in balance_lines(summary["balance"]):
            console.print(Text(line), soft_wrap=True)
    for line in notes:
        console.print(Text(line, "bold"), soft_wrap=True)
    width = max((len(name) for name in places), default=0)
    for name, place in places.items():
        console.print(Text(f"{name:<{width}}  {place}"), soft_wrap=True)


def headline(summary: Summary, outcome: str) -> list[str]:
    """The outcome, accuracy, steps, time and memory."""
    closed = summary["closed"]
    selected, charged, short = (sum(step[key] for step in closed) for key in ("selected", "charged", "short"))
    lines = [f"run {outcome}"]
    for name, measured in summary["accuracy_by_set"].items():
        of_set = "" if name == DEFAULT_SET else f" of {name}"
        said = ", ".join(f"{accuracy:.3f} {when}" for when, accuracy in measured.items())
        gained = f" ({measured['after'] - measured['before']:+.3f})" if len(measured) == 2 else ""
        lines.append(f"held-out accuracy{of_set} {said}{gained}")
    lines.append(
        f"{counted(summary['steps'], 'step')}: {counted(selected, 'group')} selected, {charged} charged, {short} short"
    )
    resumed_at = summary["resumed_at"]
    since = "" if resumed_at is None else " since the resume"
    if summary["steps_without_tokens"]:
        lines.append(
            f"{counted(summary['steps_without_tokens'], 'step')} trained on no token{since}: overlong filtering left "
            "out all rollouts, and the weights stayed unchanged"
        )
    if summary["steps_not_applied"]:
        lines.append(
            f"{counted(summary['steps_not_applied'], 'step')} not applied{since}: their loss or gradient was not "
            "finite (not_finite in metrics.jsonl says which numbers, of which prompts), and the weights stayed "
            "unchanged"
        )
    trained = "" if resumed_at is None else f"since the resume: {counted(summary['steps'] - resumed_at, 'step')}, "
    lines.append(
        f"{trained}{summary['rl_s']:.1f} s of RL, {summary['wall_s']:.1f} s in all, "
        f"peak memory {summary['peak_memory_bytes'] / 2**30:.2f} GiB, seed {summary['seed']}"
    )
    return lines


def balance_lines(balance: Mapping[str, int]) -> list[str]:
    """The balance sheet: one line for each place that is not empty, and whether it adds up."""
    places = [(name, says) for name, says in BALANCE_LINES if name == "pulled" or balance[name]]
    width = len(str(balance["pulled"]))
    lines = [f"{balance[name]:>{width}}  {says}" for name, says in places]
    return [*lines, _closing_line(balance)]


def _closing_line(balance: Mapping[str, int]) -> str:
    summed = sum(balance[name] for name, _ in BALANCE_LINES if name != "pulled")
    adds_up = "adds up" if summed == balance["pulled"] else f"DOES NOT ADD UP: the places sum to {summed}"
    return f"the balance sheet {adds_up}; {balance['leftover']} left over, {balance['replaced']} replaced by spares"


def _balance_table(balance: Mapping[str, int]) -> Table:
    table = Table("prompt groups", "", title="balance sheet", title_justify="left", show_edge=False)
    table.columns[0].justify = "right"
    for name, says in BALANCE_LINES:
        style = "bold" if name in ("pulled", "trained") else "" if balance[name] else "dim"
        table.add_row(f"{balance[name]:,}", says, style=style, end_section=name == "pulled")
    table.caption = _closing_line(balance)
    table.caption_justify = "left"
    return table
