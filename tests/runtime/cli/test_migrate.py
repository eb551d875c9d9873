"""`evenstep migrate`: where it writes, what it shows, and its exit codes."""

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from runtime.cli.app import app
from runtime.settings import load_settings

SUMS = Path(__file__).parents[1] / "migrate/data/trl/sums.yaml"


def run(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["migrate", *(str(each) for each in arguments)])
    return result.exit_code, result.stdout, " ".join(result.stderr.replace("│", " ").split())


def test_without_a_file_the_yaml_goes_to_stdout_and_the_table_beside_it(tmp_path: Path) -> None:
    code, written, shown = run(SUMS)
    assert code == 0
    path = tmp_path / "run.yaml"
    path.write_text(written, encoding="utf-8")
    assert load_settings(path).grpo.num_generations_per_prompt == 8
    assert written.startswith("# From a configuration of TRL, by: evenstep migrate ")
    assert "# - grpo.num_prompts_per_step: a training process has 64 rollouts a step" in written
    for kind in ("carried over", "renamed", "has a default here", "needs a decision"):
        assert kind in shown
    assert "epsilon_high: 0.28 loss_fn.ratio_clip_max: 0.28" in shown


def test_a_file_that_exists_stays_unless_it_is_forced(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("mine", encoding="utf-8")
    code, _, said = run(SUMS, "-o", path)
    assert (code, path.read_text(encoding="utf-8")) == (2, "mine")
    assert "exists: name another file, or add --force" in said
    code, shown, _ = run(SUMS, "max_steps=30", "-o", path, "--force")
    assert code == 0
    assert load_settings(path).grpo.max_num_steps == 30
    assert f"next: evenstep check {path}" in shown
    code, _, said = run(path, "-o", path, "--force")
    assert code == 2
    assert "is the file that is read" in said


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        ("grpo: {num_prompts_per_step: 4}\n", 2, "is a configuration of evenstep already"),
        ("some: {thing: 1}\n", 2, "say whose it is: --from nemo-rl, trl, verl"),
        ("- 1\n", 1, "holds a list; allowed: a mapping of keys"),
    ],
)
def test_what_is_no_file_of_theirs_is_said(text: str, code: int, says: str, tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(text, encoding="utf-8")
    found, _, said = run(path)
    assert found == code
    assert says in said


@pytest.mark.parametrize(
    ("framework", "text", "key"),
    [
        ("nemo-rl", "grpo: 5\npolicy: 7\n", "grpo"),
        ("nemo-rl", "policy: {optimizer: [1], scheduler: {name: x}, max_total_sequence_length: [2]}\n", "policy"),
        (
            "nemo-rl",
            "grpo: {num_prompts_per_step: 4, 5: 6, true: 8, a.b: 1}\npolicy: {model_name: 2026-01-01T00:00:00Z}\n",
            "5",
        ),
        ("verl", "actor_rollout_ref: {model: {path: 5}}\n", "path"),
        ("trl", "max_completion_length: null\nnum_generations: 8\n", "max_completion_length"),
        ("trl", "per_device_train_batch_size: {a: 1}\n", "per_device_train_batch_size"),
        ("trl", "num_train_epochs: soon\nlr_scheduler_kwargs: 4\n", "num_train_epochs"),
        ("verl", "actor_rollout_ref: []\nalgorithm: 3\ntrainer: {total_epochs: {}}\n", "actor_rollout_ref"),
    ],
)
def test_a_value_of_another_type_than_theirs_needs_a_decision(
    framework: str, text: str, key: str, tmp_path: Path
) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(text, encoding="utf-8")
    code, _, shown = run(path, "--from", framework)
    assert code in (0, 3)
    assert key in shown


def test_a_file_is_read_as_whose_one_says_it_is(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("grpo: {val_period: 7}\n", encoding="utf-8")
    code, written, _ = run(path, "--from", "nemo-rl")
    assert code == 3, "it names no data"
    assert "every_steps: 7" in written


def test_what_check_would_refuse_has_its_own_exit_code(tmp_path: Path) -> None:
    code, _, said = run(SUMS, "num_generations=1", "-o", tmp_path / "run.yaml")
    assert code == 3
    code, written, said = run(SUMS, "num_generations=1")
    assert "`evenstep check` refuses it: grpo.num_generations_per_prompt is 1" in said
    assert "# - grpo.num_generations_per_prompt is 1" in written


def test_no_value_reaches_the_terminal_or_the_file_as_a_control_code(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text('grpo: {"k\\e[2J": 1}\npolicy: {model_name: "m\\e[31m\\u202e"}\n', encoding="utf-8")
    code, written, shown = run(path, "--from", "nemo-rl")
    assert code == 3
    assert not {"\x1b", "\u202e"} & {*written, *shown}
    assert r"m\x1b[31m\u202e" in shown
    assert yaml.safe_load(written)["policy"]["model_name"] == "m\x1b[31m\u202e"
