"""`python -m runtime.simulation`."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from runtime.simulation.__main__ import app
from specs.evidence.mutants.mutant import Mutant, edited, in_place

runner = CliRunner()


def test_it_tells_how_many_runs_were_right_and_writes_their_table(tmp_path: Path) -> None:
    page = tmp_path / "simulation.md"
    told = runner.invoke(app, ["--runs", "12", "--jobs", "1", "--write", str(page)])
    assert told.exit_code == 0, told.output
    assert "12 runs in" in told.output
    text = page.read_text(encoding="utf-8")
    assert "12 runs, of the seeds 0 to 11" in text
    assert "Something was wrong in 0 of them" in text
    assert all(f"| {sampler} |" in text for sampler in ("in_order", "ready_first", "windowed", "weight_fifo"))


def test_a_run_that_is_wrong_is_told_with_the_command_that_replays_it() -> None:
    edits = edited(
        {
            "runtime.control.pumps.generation:GenerationPump._exchange": {
                "for attempt in death.lost:": "for attempt in ():"
            }
        }
    )
    with in_place(Mutant("a worker's death is not told to the core", "", "", edits=edits)):
        told = runner.invoke(app, ["--runs", "40", "--jobs", "1"])
        assert told.exit_code == 1
        [replay] = [line for line in told.output.splitlines() if "replay it with" in line]
        arguments = replay.partition("runtime.simulation ")[2].split()
        again = runner.invoke(app, arguments)
    assert "wrong: " in told.output
    assert "worker dies" in told.output
    assert again.exit_code == 1
    assert runner.invoke(app, arguments).exit_code == 0, "the control code is as it was"


def test_a_seed_is_replayed_with_its_whole_trace() -> None:
    told = runner.invoke(app, ["--only", "1", "--sampler", "windowed"])
    assert told.exit_code == 0
    assert '"e":["B"]' in told.output
    assert "seed 1: completed" in told.output or "seed 1: stopped" in told.output


@pytest.mark.parametrize("arguments", [["--sampler", "newest"], ["--runs", "0"], ["--no-such-option"]])
def test_wrong_arguments_are_refused(arguments: list[str]) -> None:
    assert runner.invoke(app, arguments).exit_code == 2
