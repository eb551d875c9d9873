"""Every scenario file, and a counterexample of the checker, with the pumps between the world and the core."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from runtime.cli.app import app as cli
from runtime.simulation.__main__ import app as simulation
from runtime.simulation.scripted import scenario_problems
from specs.evidence.mutants.mutant import Mutant, edited, in_place
from specs.scenarios.file import load_scenario

SCENARIOS = Path(__file__).parents[2] / "scenarios"
IN_ONE_GO = "a_long_tick_fails_an_attempt_once.yaml"
"""Its time passes in one go; on a loop, the deadline of the attempt that follows is over within it too."""
RUN = [
    path
    for path in sorted(SCENARIOS.rglob("*.yaml"))
    if load_scenario(path).config_error is None and path.name != IN_ONE_GO
]


@pytest.mark.parametrize("path", RUN, ids=[str(path.relative_to(SCENARIOS)) for path in RUN])
def test_a_scenario_holds_with_pumps_around_the_core(path: Path) -> None:
    assert scenario_problems(path) == []


def test_a_counterexample_of_the_checker_happens_with_pumps_around_the_core(tmp_path: Path) -> None:
    """A sampler that hangs: the checker finds the order of answers, and the pumps follow it to the same dead end."""
    saved = tmp_path / "hang.yaml"
    checked = CliRunner().invoke(
        cli, ["check", "--sampler", "examples.shortsighted:Shortsighted", "--save", str(saved)]
    )
    assert checked.exit_code == 2, checked.output
    assert load_scenario(saved).expect is not None
    told = CliRunner().invoke(simulation, ["--scenario", str(saved)])
    assert told.exit_code == 0, told.output
    saved.write_text(saved.read_text(encoding="utf-8").replace("deadlocked", "completed"), encoding="utf-8")
    told = CliRunner().invoke(simulation, ["--scenario", str(saved)])
    assert told.exit_code == 1
    assert "deadlocked, expected completed" in told.output


def test_a_scenario_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text("moves: {}", encoding="utf-8")
    for path in (tmp_path / "other.yaml", tmp_path / "missing.yaml"):
        told = CliRunner().invoke(simulation, ["--scenario", str(path)])
        assert told.exit_code == 2
        assert path.name in told.output


def test_a_pump_that_drops_what_a_scenario_tells_is_found() -> None:
    edits = edited(
        {
            "runtime.control.pumps.generation:GenerationPump._take": {
                "self._fail(worker, GroupFailed(answer.attempt, answer.kind, answer.error))": "pass"
            }
        }
    )
    path = SCENARIOS / "failures/late_answers_change_nothing.yaml"
    with in_place(Mutant("a failed attempt is not told to the core", "", "", edits=edits)):
        [problem] = scenario_problems(path)
    assert "GroupFailed" in problem
    assert "was due, and the pumps apply []" in problem
