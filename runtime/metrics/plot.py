"""plot.png of a run: reward, held-out accuracy and zero-variance fraction, over steps and over time."""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from runtime.files import FileNotWritten, writing

INK, QUIET = "#24292f", "#6e7781"
REWARD, ACCURACY, ZERO_VARIANCE = "#0072b2", "#d55e00", "#7f7f7f"  # Okabe and Ito, for colour-blind readers too
SMOOTHED_OVER = 25
"""The bold line is a running mean over 1/25 of the run."""
CLOCKS_APART_S = 0.5
"""Without `incarnation`, a record that is earlier than the last one by more than this is of a resumed run."""


class Curve(NamedTuple):
    """A quantity over steps and time."""

    steps: list[float]
    seconds: list[float]
    values: list[float]


class RunCurves(NamedTuple):
    """The curves of the plot."""

    reward: Curve
    """Before dynamic sampling if known, since trained groups are selected for variance."""
    accuracy: Curve
    """Of the first set, if there are several."""
    zero_variance: Curve


def plot_run(metrics: Path, picture: Path, *, title: str = "") -> Path:
    """Draw metrics.jsonl to a PNG and return its path.

    Raises FileNotWritten if the file has no step, or the disk refuses the picture.
    """
    kept = "only the picture is missing"
    with writing(picture, kept):
        curves = read_curves(metrics)
        if not curves.reward.steps:
            raise FileNotWritten(picture, f"{metrics} has no step to draw", kept)
        _draw_run(curves, picture, title)
    return picture


def _draw_run(curves: RunCurves, picture: Path, title: str) -> None:
    figure = Figure(figsize=(10.5, 4.2), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    minutes = max(curves.reward.seconds) >= 600
    by_step, by_time = figure.subplots(1, 2, sharey=True)
    shares = _draw(by_step, curves, lambda curve: curve.steps)
    _draw(by_time, curves, lambda curve: [second / 60 for second in curve.seconds] if minutes else curve.seconds)
    by_step.set_xlabel("optimizer step")
    by_step.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    by_time.set_xlabel("minutes since the start of RL" if minutes else "seconds since the start of RL")
    named = [line for axes in {by_step: None, shares: None} for line in axes.get_legend_handles_labels()[0]]
    figure.legend(handles=named, loc="outside lower center", ncols=len(named), frameon=False, labelcolor=INK)
    if title:
        figure.suptitle(title, x=0.01, ha="left", fontsize=11, color=INK)
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, format="png", metadata={"Software": "evenstep"})


def read_curves(metrics: Path) -> RunCurves:
    """The curves of a metrics.jsonl, whose last line may be torn."""
    reward, accuracy, zero_variance = (Curve([], [], []) for _ in range(3))
    records = _one_run(_read_lines(metrics))
    first_set = next((record.get("set") for record in records if record["kind"] == "validation"), None)
    for record in records:
        if record["kind"] == "validation":
            if record.get("set") == first_set:
                _append(accuracy, record, record["accuracy"])
        else:
            unfiltered = record["unfiltered_reward"]
            _append(reward, record, record["reward"] if unfiltered is None else unfiltered)
            _append(zero_variance, record, record["zero_variance_fraction"])
    return RunCurves(reward, accuracy, zero_variance)


def _read_lines(metrics: Path) -> Iterator[dict[str, Any]]:
    for line in metrics.read_text(encoding="utf-8").splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            return


def _one_run(records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The records that count, on one clock: a resumed run starts at time 0, at the step of its checkpoint."""
    run: list[dict[str, Any]] = []
    earlier_s = now_s = 0.0
    process = None
    for record in records:
        before, process = process, record.get("incarnation")
        same = before == process if run else True
        if not same or (process is None and record["time_s"] < now_s - CLOCKS_APART_S):
            run = [kept for kept in run if kept["step"] < record["step"]]
            earlier_s += now_s
        now_s = record["time_s"]
        run.append({**record, "time_s": earlier_s + now_s})
    return run


def _append(curve: Curve, record: dict[str, Any], value: float | None) -> None:
    if value is not None:
        curve.steps.append(record["step"])
        curve.seconds.append(record["time_s"])
        curve.values.append(value)


def running_mean(values: Sequence[float], window: int) -> list[float]:
    """Each value's mean with its neighbours, `window` in all, fewer at the ends."""
    half = window // 2
    return [fmean(values[max(0, place - half) : place + half + 1]) for place in range(len(values))]


def _draw(axes: Axes, curves: RunCurves, x_of: Any) -> Axes:
    """Draw the curves, and return the axes of those that are shares. Rewards beyond 0 to 1 have another axis."""
    shares = axes if all(0 <= reward <= 1 for reward in curves.reward.values) else axes.twinx()
    window = len(curves.reward.values) // SMOOTHED_OVER
    for of_curve, curve, colour, label in (
        (axes, curves.reward, REWARD, "reward, before dynamic sampling"),
        (shares, curves.zero_variance, ZERO_VARIANCE, "zero-variance fraction"),
    ):
        x = x_of(curve)
        of_curve.plot(x, curve.values, color=colour, linewidth=0.8, alpha=0.3 if window > 1 else 1.0)
        of_curve.plot(x, running_mean(curve.values, window), color=colour, linewidth=1.8, label=label)
    if curves.accuracy.values:
        (line,) = shares.plot(x_of(curves.accuracy), curves.accuracy.values, color=ACCURACY, linewidth=1.4)
        line.set(marker="o", markersize=5, markeredgecolor="white", label="held-out accuracy")
    shares.set_ylim(-0.02, 1.02)
    shares.set_yticks([0, 0.2, 0.4, 0.6, 0.8, 1])
    axes.grid(axis="y", color="#d0d7de", linewidth=0.6)
    for drawn in {axes, shares}:
        drawn.set_axisbelow(True)
        drawn.spines[["top", "right", "left"]].set_visible(False)
        drawn.spines["bottom"].set_color(QUIET)
        drawn.tick_params(colors=QUIET, length=3, labelcolor=INK)
        drawn.margins(x=0.01)
    axes.xaxis.label.set_color(INK)
    if shares is not axes:
        axes.set_ylabel("reward", color=REWARD)
        shares.set_ylabel("accuracy and zero-variance fraction", color=INK)
    return shares
