"""`evenstep samples`: chosen as asked for, hostile text shown as text, and a file that a crash or a resume left."""

import json
import unicodedata
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from runtime.cli.app import app
from runtime.report.samples import samples_beside
from runtime.samples.printed import worth
from runtime.tasks.judges import LARGEST
from tests.runtime.report.helpers import HOSTILE
from tests.runtime.samples.helpers import line_of, write


def samples(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["samples", *map(str, arguments)])


def shown(*arguments: object) -> list[tuple[int, str]]:
    """Step and last words of the samples that are printed, in order."""
    result = samples(*arguments, "--json")
    assert result.exit_code == 0, result.output
    lines = [json.loads(line) for line in result.output.splitlines()]
    return [(line["step"], line["turns"][-1]["text"]) for line in lines]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Two items over four steps; item 1 changes most."""
    write(
        tmp_path / "run",
        line_of(0, 0, "a", reward=0.0),
        line_of(0, 1, "never", reward=-1.0),
        line_of(1, 0, "b", reward=0.5),
        line_of(1, 2, "cut", reward=0.25, finish_reason="length", fate="filtered"),
        line_of(2, 1, "always", reward=1.0, correct=True),
        line_of(3, 0, "B", reward=0.5, parts={"exact": 1.0, "short": -0.5}),
    )
    return tmp_path / "run"


def test_samples_are_chosen_as_asked_for(run: Path) -> None:
    assert shown(run, "-n", 2) == [(2, "always"), (3, "B")]
    assert shown(run, "--step", 1) == [(1, "b"), (1, "cut")]
    assert shown(run, "--pick", "best", "-n", 2) == [(2, "always"), (3, "B")]
    assert shown(run, "--pick", "worst", "-n", 1) == [(0, "never")]
    assert shown(run, "--pick", "worst", "-n", 1, "--step", 1) == [(1, "cut")]
    assert shown(run, "--fate", "filtered") == shown(run, "--truncated") == [(1, "cut")]
    assert shown(run, "--find", "ALW") == [(2, "always")]
    assert shown(run, "--find", "question 2") == [(1, "cut")]
    assert shown(run, "--pick", "changed", "-n", 1) == [(0, "never"), (2, "always")]
    assert shown(run, "--pick", "changed") == [(0, "never"), (2, "always"), (0, "a"), (3, "B")]


def test_one_prompt_is_followed_through_time_under_all_its_numbers(run: Path) -> None:
    assert shown(run, "--prompt", 10) == shown(run, "--prompt", 0) == [(0, "a"), (1, "b"), (3, "B")]


def test_a_random_choice_is_the_same_for_a_seed(run: Path) -> None:
    drawn = {seed: tuple(shown(run, "--pick", "random", "-n", 3, "--seed", seed)) for seed in range(8)}
    assert len(set(drawn.values())) > 1
    assert drawn[3] == tuple(shown(run, "--pick", "random", "-n", 3, "--seed", 3))
    assert all(len(three) == 3 for three in drawn.values())


def test_a_sample_is_printed_with_its_figures_and_words(run: Path) -> None:
    output = samples(run, "-n", 1).output
    assert output.splitlines()[0] == (
        "step 3 · prompt 30 (sums.jsonl:1) · trained · reward 0.5 (exact 1, short -0.5), wrong · advantage -0.25 · "
        "4 tokens · weights 3 to 3"
    )
    assert "     prompt │ question 0\n     policy │ B\n" in output
    assert "cut off" in samples(run, "--truncated").output


def test_the_weight_of_a_part_is_beside_it(tmp_path: Path) -> None:
    parts, weights = {"exact": 1.0, "exact/format": 0.0, "short": -2.0}, {"exact": 1.0, "short": 0.1}
    path = write(tmp_path / "run", line_of(0, reward=0.8, parts=parts, weights=weights))
    assert "reward 0.8 (exact 1 × 1, exact/format 0, short -2 × 0.1), wrong" in samples(path).output
    assert ["short", "-2.0 × 0.1"] in samples_beside(path)["rows"][0]["parts"]


def test_hostile_text_is_shown_as_text(tmp_path: Path) -> None:
    bad = HOSTILE + "[red]no markup[/red] :smile:\r\x07" + "\ud800" + "x" * 50_000
    line = line_of(0, text=bad, prompt_text=bad, where=bad, parts={bad[:200]: 1.0}, fate="trained")
    path = write(tmp_path / "run", line)
    result = samples(path)
    assert result.exit_code == 0, result.output
    assert "[red]no markup[/red] :smile:\\r\\x07\\ud800xxx" in result.output
    assert "characters left out" in result.output
    assert all(character.isprintable() or character == "\n" for character in result.output)
    assert not any(unicodedata.category(character) == "Cf" for character in result.output)
    assert json.loads(samples(path, "--json").output)["turns"][0]["text"] == bad
    assert samples(path, "--json").output.isascii()


def test_steps_that_a_resumed_run_took_again_are_marked_and_not_among_the_best(tmp_path: Path) -> None:
    first = [line_of(step, step, f"first {step}", reward=float(step)) for step in range(4)]
    again = [line_of(step, step, f"again {step}", reward=0.1, incarnation=1) for step in (2, 3)]
    write(tmp_path / "run", *first, {"kind": "resumed", "step": 2, "incarnation": 1}, *again)
    assert shown(tmp_path / "run", "--step", 2) == [(2, "first 2"), (2, "again 2")]
    assert shown(tmp_path / "run", "--pick", "best", "-n", 1) == [(1, "first 1")]
    output = samples(tmp_path / "run", "--step", 2).output
    assert output.count("a resumed run took this step again") == 1
    assert output.index("took this step again") < output.index("first 2")


def test_rewards_as_large_as_a_run_takes_are_shown(tmp_path: Path) -> None:
    run = write(tmp_path / "run", line_of(0, reward=-LARGEST, advantage=-2 * LARGEST, parts={"length": LARGEST}))
    result = CliRunner().invoke(app, ["samples", str(run)])
    assert result.exit_code == 0
    assert "step 0" in result.output
    assert "1e+15" in result.output
    assert "lines of" not in result.output


def test_torn_and_foreign_lines_are_skipped_and_counted(tmp_path: Path) -> None:
    path = write(tmp_path / "run", line_of(0), line_of(1))
    whole = path.read_text()
    wrong = [
        *("[]", "null", '{"kind": "sample", "step": "no"}', "[" * 100_000),
        *(json.dumps(line_of(5) | {key: True}) for key in ("step", "prompt", "reward", "advantage")),
        *(json.dumps(line_of(5) | {key: value})
          for key in ("step", "reward", "parts", "weights", "turns", "where", "correct")
          for value in (None, [1], {"a": "b"}, float("nan"), 10**400)),
    ]  # fmt: skip
    path.write_text("\n".join(wrong) + "\n" + whole + whole[:40])
    result = CliRunner().invoke(app, ["samples", str(path)])
    assert result.exit_code == 0
    assert "step 1" in result.output
    assert "step 5" not in result.output
    assert f"{len(wrong) + 1} lines of" in result.output
    page = samples_beside(path)["rows"]
    assert [row["step"] for row in page] == [0, 1]


def test_what_cannot_be_answered_says_what_there_is(run: Path, tmp_path: Path) -> None:
    result = samples(tmp_path)
    assert result.exit_code == 1
    assert "samples.per_step is 0" in result.output
    assert samples(tmp_path / "nowhere").exit_code == 1
    result = samples(run, "--step", 9)
    assert result.exit_code == 2
    assert "6 samples, the last of step 3" in result.output
    assert samples(run, "--prompt", 77).exit_code == 2
    result = samples(run, "--fate", "eaten")
    assert result.exit_code == 2
    assert "allowed are trained, filtered" in result.output
    write(tmp_path / "empty")
    assert "has no sample yet" in samples(tmp_path / "empty").output


def test_a_negative_zero_is_shown_as_zero() -> None:
    assert worth(-0.0, {"short": -0.0}, {"short": 0.1}, correct=False) == "reward 0 (short 0 × 0.1), wrong"
