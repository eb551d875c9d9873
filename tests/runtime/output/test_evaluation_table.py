"""The table of an evaluation's figures."""

from io import StringIO

from rich.console import Console

from runtime.evaluation.figures import figures_of
from runtime.groups import Evaluation, HeldOutPrompt, HeldOutRollout
from runtime.output.evaluation_table import figures_table
from runtime.tasks.base import Verdict


def test_the_parts_of_a_reward_are_shown_with_the_weights_of_each_set() -> None:
    rated = HeldOutRollout(Verdict(0.9, True, {"exact": 1.0, "short": -0.5, "odd": 1.0}), 4, True, ("yes",))
    figures = figures_of(Evaluation((HeldOutPrompt(0, (rated,)),), 1, 1))
    weights = {"one": {"exact": 1.0, "short": 0.2}, "two": {"exact": 1.0, "short": 0.1}}
    written = StringIO()
    console = Console(file=written, width=100)
    console.print(figures_table({"one": figures, "two": figures}, weights))
    rows = [line.partition("│")[0].strip() for line in written.getvalue().splitlines()]
    assert {"exact × 1", "short × 0.2 or 0.1", "odd"} <= set(rows)
