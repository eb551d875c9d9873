"""The figures of evaluation sets as a table, a column each."""

from collections.abc import Callable, Mapping
from functools import partial

from rich.table import Table
from rich.text import Text

from runtime.evaluation.figures import Figures
from runtime.evaluation.statistics import Estimate

COLUMN = 30
"""The width of a set's column; figures and intervals of usual size fit."""


def figures_table(sets: Mapping[str, Figures], weights: Mapping[str, Mapping[str, float]]) -> Table:
    """One row a figure. Cells that do not apply to a set are empty. `weights`: by set, of the parts of its reward."""
    table = Table(show_edge=False)
    table.add_column("")
    for name in sets:
        table.add_column(Text(name), justify="right", no_wrap=True)
    orders = sorted({k for figures in sets.values() for k in figures.pass_at_k if k > 1})
    parts = list(dict.fromkeys(name for figures in sets.values() for name in figures.parts))

    def row(label: str, cell: Callable[[Figures], str]) -> None:
        table.add_row(Text(label), *(Text(cell(figures)) for figures in sets.values()))

    row("prompts", lambda figures: f"{figures.prompts:,}")
    row("rollouts", lambda figures: f"{figures.rollouts:,}")
    row("accuracy", lambda figures: _interval(figures.accuracy))
    for k in orders:
        row(f"pass@{k}", partial(_pass_at, k))
    row("reward, mean", lambda figures: _interval(figures.reward))
    for name in parts:
        counts = dict.fromkeys(f"{of_set[name]:.4g}" for of_set in weights.values() if name in of_set)
        row(f"  {name} × {' or '.join(counts)}" if counts else f"  {name}", partial(_part, name))
    row("tokens, mean", lambda figures: _interval(figures.tokens, 1))
    row("  p50", lambda figures: _interval(figures.tokens_p50, 0))
    row("  max", lambda figures: f"{figures.tokens_max:,}")
    row("  mean if correct", lambda figures: _mean(figures.tokens_if_correct))
    row("  mean if wrong", lambda figures: _mean(figures.tokens_if_wrong))
    row("truncated", lambda figures: _interval(figures.truncated))
    row("without verdict", lambda figures: _interval(figures.without_verdict) if figures.failures else "none")
    return table


def _pass_at(k: int, figures: Figures) -> str:
    return _interval(figures.pass_at_k.get(k))


def _part(name: str, figures: Figures) -> str:
    return _interval(figures.parts.get(name))


def _interval(estimate: Estimate | None, digits: int = 3) -> str:
    if estimate is None:
        return ""
    if estimate.low == -float("inf"):
        return f"{estimate.value:.{digits}f}"
    return f"{estimate.value:.{digits}f} [{estimate.low:.{digits}f}, {estimate.high:.{digits}f}]"


def _mean(tokens: float | None) -> str:
    return "–" if tokens is None else f"{tokens:.1f}"
