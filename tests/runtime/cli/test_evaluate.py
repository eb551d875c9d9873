"""`evenstep eval` without a run: any model, any sets, hostile verifiers, and what it says to wrong use."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from runtime.cli.app import app
from runtime.launch import evaluation
from runtime.launch.model import prepare_model
from runtime.settings import load_settings

USERS = Path(__file__).parents[2] / "users"
DATA = """
data: {task: {name: reverse, min_length: 2, max_length: 4, letters: 4}, validation_size: 20}
generation: {max_new_tokens: 8}
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_model(load_settings(None, ["warmup.steps=5"]), tmp_path_factory.mktemp("made") / "model")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "sets.yaml"
    path.write_text(DATA, encoding="utf-8")
    return path


def evaluate(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["eval", *map(str, arguments)])


def test_a_model_of_no_run_is_measured_and_everything_is_written(model: Path, config: Path, tmp_path: Path) -> None:
    sampled = "validation.sets.sampled={rollouts_per_prompt: 4, temperature: 0.8, top_p: 0.9}"
    output = tmp_path / "figures.json"
    result = evaluate(model, config, "--set", sampled, "--set", "validation.sets.greedy.temperature=0", "-o", output)
    assert result.exit_code == 0, result.stderr
    for row in ("accuracy", "pass@2", "pass@4", "reward, mean", "tokens, mean", "truncated", "without verdict"):
        assert row in result.stdout
    written = json.loads(output.read_text(encoding="utf-8"))
    greedy, several = written["sets"]["greedy"], written["sets"]["sampled"]
    assert (greedy["rollouts"], several["rollouts"]) == (20, 80)
    assert several["sampling"]["top_p"] == 0.9
    first = several["per_prompt"][0]
    assert len(first["rollouts"]) == 4
    assert {"turns", "reward", "correct", "finish_reason"} <= first["rollouts"][0].keys()
    right = sum(rollout["correct"] for prompt in several["per_prompt"] for rollout in prompt["rollouts"])
    assert several["accuracy"]["value"] == pytest.approx(right / 80)
    assert written["config"]["validation"]["sets"]["greedy"]["temperature"] == 0


def test_a_verifier_that_hangs_costs_its_verdicts_and_the_reason_is_told(
    model: Path, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(USERS)
    lines = tmp_path / "lines.jsonl"
    answers = ["ba", "hang", "ab"]
    lines.write_text("".join(json.dumps({"prompt": f"  {a}>", "answer": a}) + "\n" for a in answers))
    task = {"name": "jsonl", "path": str(lines), "verifier": "wild_verifiers:hangs_where_told", "verdict_timeout_s": 2}
    result = evaluate(model, config, "--set", f"validation.sets.own.data.task={json.dumps(task)}", "--json")
    assert result.exit_code == 0, result.stderr
    own: dict[str, Any] = json.loads(result.stdout)["sets"]["own"]
    assert own["prompts"] == 3
    assert own["without_verdict"]["rollouts"] == 1
    assert f"{lines}:2" in own["without_verdict"]["first_reason"]
    assert "gave no verdict within" in own["without_verdict"]["first_reason"]


def test_a_file_that_is_renamed_while_it_is_measured_costs_no_figure(
    model: Path, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines, output = tmp_path / "lines.jsonl", tmp_path / "figures.json"
    lines.write_text('{"prompt": "  ab>", "answer": "ba"}\n')

    def renamed(*arguments: Any, _measure_set: Any = evaluation._measure_set) -> Any:
        lines.rename(tmp_path / "renamed.jsonl")
        return _measure_set(*arguments)

    monkeypatch.setattr(evaluation, "_measure_set", renamed)
    task = f"validation.sets.own.data.task={{name: jsonl, path: {lines}}}"
    result = evaluate(model, config, "--set", task, "-o", output)
    assert result.exit_code == 0, result.output
    assert "accuracy" in result.stdout
    [prompt] = json.loads(output.read_text(encoding="utf-8"))["sets"]["own"]["per_prompt"]
    assert (prompt["where"], prompt["prompt"]) == (f"{lines}:1", "  ab>")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (["--step", "3"], r"--step 3: .* is a model; give the directory of a run"),
        (["--only", "math"], r"--only math: the configuration has no such set; its sets: validation"),
        (["--set", "data.validation_size=0"], r"no prompts are held out, since data.validation_size is 0"),
        (["--set", "generation.max_prompt_tokens=3"], r"20 of 20 prompts of validation are longer than .* set gen"),
        (["--set", "data.chat=true"], r"has no chat template; use an instruction-tuned model"),
        (["--set", "generation.max_new_tokens=5000"], r"nothing can be measured: .*positions"),
        (
            ["--set", "validation.sets.long.max_new_tokens=5000"],
            r"positions and generation\.max_prompt_tokens \+ validation\.sets\.long\.max_new_tokens is",
        ),
        (
            ["--set", "validation.sets.long={max_new_tokens: 5000, max_prompt_tokens: 20}"],
            r"validation\.sets\.long\.max_prompt_tokens \+ max_new_tokens is 5020",
        ),
        (["--set", "validation.sets.a.data.task={name: jsonl, path: none.jsonl}"], r"validation\.sets\.a: none\.jsonl"),
        (["-o", "/nowhere/figures.json"], r"/nowhere/figures.json cannot be written"),
        (["--set", "validation.sets.a.top_k=1" + 30 * "0"], r"validation\.sets\.a\.top_k.* 2147483647"),
    ],
)
def test_wrong_use_is_told_with_what_to_set(model: Path, config: Path, changes: list[str], says: str) -> None:
    import re

    result = evaluate(model, config, *changes)
    assert result.exit_code == 2, result.output
    assert re.search(says, result.stderr.replace("\n", " ")), result.stderr


def test_no_file_that_is_read_is_written_over(model: Path, config: Path) -> None:
    held = model / "config.json"
    before = held.read_bytes()
    for file in (config, held):
        result = evaluate(model, config, "-o", file)
        assert result.exit_code == 2
        assert f"-o {file} is a file that is read: name another one" in result.stderr
    assert (config.read_text(encoding="utf-8"), held.read_bytes()) == (DATA, before)


def test_logits_that_a_temperature_makes_infinite_are_blamed_on_it(model: Path, config: Path) -> None:
    result = evaluate(model, config, "--set", "validation.temperature=1e-320")
    assert result.exit_code == 1
    assert "divided by a temperature of 1e-320; set validation.temperature to 0 for greedy" in result.stderr
    assert "learning rate" not in result.stderr


def test_a_model_of_no_run_needs_a_configuration_and_a_folder_must_be_a_model_or_a_run(
    model: Path, tmp_path: Path
) -> None:
    assert "name a YAML file after it" in evaluate(model).stderr
    assert "neither a model, which has a config.json, nor a run" in evaluate(tmp_path).stderr
    assert "models are not downloaded" in evaluate("meta-llama/Llama-3.2-1B").stderr


def test_a_run_without_a_final_model_names_its_checkpoints(config: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "checkpoints" / "checkpoint-000001-step-00000005").mkdir(parents=True)
    (run / "config.yaml").write_text(config.read_text(encoding="utf-8"), encoding="utf-8")
    (run / "run.json").write_text("{}", encoding="utf-8")
    assert "give --step with the step of a checkpoint (there: 5)" in evaluate(run).stderr
    assert "--step 7: the run in " in evaluate(run, "--step", "7").stderr
    assert "its steps: 5" in evaluate(run, "--step", "7").stderr
    assert "manifest.json" in evaluate(run, "--step", "5").stderr
