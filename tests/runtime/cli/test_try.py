"""`evenstep try`: what a newcomer sees of prompts and rewards before a run, and what is refused."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from fsm.errors import ConfigError
from runtime.cli.app import app
from runtime.launch.run import check_run
from runtime.settings import load_settings

VERIFIERS = """
def parts(completion, answer):
    return {"right": float(completion == answer), "short": 0.5 * (len(completion) < 3)}

def lenient(completion, answer):
    return 1.0

def fussy(completion, answer):
    if completion == "" and answer == "2":
        raise ValueError("nothing to rate")
    return float(completion == answer)

def raises_for_twos(completion, answer):
    if answer == completion == "2":
        raise ValueError("no twos")
    return float(completion == answer)
"""
ENVIRONMENT = """
from runtime.tasks.base import Verdict
from runtime.tasks.environments.interface import Environment, Episode

class Asking(Episode):
    prompt = "1+1="

    async def respond(self, turn):
        return {answer}

    async def verdict(self, completion):
        return Verdict(0.0, False)

class Asks(Environment):
    num_items = 40

    def __init__(self, split, seed):
        pass

    async def open(self, index):
        return Asking()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "tried_verifiers.py").write_text(VERIFIERS, encoding="utf-8")
    lines = [json.dumps({"prompt": f"{number}+0=", "answer": str(number)}) for number in range(40)]
    (tmp_path / "sums.jsonl").write_text("\n".join(lines), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def task_of(verifier: str, path: str = "sums.jsonl") -> str:
    return f"data.task={{name: jsonl, path: {path}, verifier: '{verifier}'}}"


def tried(*overrides: str, prompts: int = 2) -> Result:
    settings = [word for override in overrides for word in ("--set", override)]
    return CliRunner().invoke(app, ["try", "--prompts", str(prompts), *settings])


def test_prompts_are_shown_as_the_model_gets_them_with_the_reward_of_each_part(folder: Path) -> None:
    result = tried(task_of("tried_verifiers:parts"), "data.prompt_template='Q: {prompt}?'")
    assert result.exit_code == 0, result.output
    assert "training on" in result.stderr
    shown = result.stdout.splitlines()
    (first,) = [place for place, line in enumerate(shown) if line.startswith("sums.jsonl:1 ·")]
    assert shown[first + 1 : first + 4] == [
        "     prompt │ Q: 0+0=?",
        "if it says its answer: reward 1.5 (right 1, short 0.5), right",
        "     policy │ 0",
    ]
    assert "if it says nothing: reward 0.5 (right 0, short 0.5), wrong" in shown
    assert "if it says the prompt: reward 0 (right 0, short 0), wrong" in shown
    assert any(line.startswith("if it says the answer of sums.jsonl:") for line in shown)
    assert shown[-1] == "2 of 2 answers of the data are rated right"


def test_parts_are_shown_with_their_weights(folder: Path) -> None:
    rewards = "[{target: 'tried_verifiers:parts', name: both}, {target: 'tried_verifiers:lenient', weight: -0.25}]"
    result = tried(f"data.task={{name: jsonl, path: sums.jsonl, rewards: {rewards}}}", prompts=1)
    assert result.exit_code == 0, result.output
    shown = "if it says its answer: reward 1.25 (both 1.5 × 1, both/right 1, both/short 0.5, lenient 1 × -0.25), right"
    assert shown in result.stdout


def test_a_verifier_that_is_content_with_anything_is_pointed_out(folder: Path) -> None:
    result = tried(task_of("tried_verifiers:lenient"), prompts=1)
    assert result.exit_code == 0, result.output
    assert "sums.jsonl:1: nothing is rated right, which it hardly is" in result.stdout
    assert "sums.jsonl:1: all of these have the same reward" in result.stdout


def test_an_answer_that_is_rated_wrong_is_pointed_out(folder: Path) -> None:
    result = tried(task_of("tried_verifiers:parts"), "data.task.correct_at=2", prompts=1)
    assert "0 of 1 answer of the data is rated right" in result.stdout
    assert "data.task.columns.answer" in result.stdout


def test_a_verifier_that_fails_on_a_later_row_has_no_verdict_there_and_exit_code_1(folder: Path) -> None:
    result = tried(task_of("tried_verifiers:fussy"), "data.validation_size=0", prompts=4)
    assert result.exit_code == 1, result.output
    (line,) = [line for line in result.stdout.splitlines() if "no verdict" in line]
    assert line.startswith("if it says nothing: no verdict: sums.jsonl:3: verifier 'tried_verifiers:fussy' raised")
    assert "nothing to rate" in line


@pytest.mark.parametrize(
    "wrong",
    [
        task_of("tried_verifiers:none"),
        task_of("tried_verifiers:parts", "nowhere.jsonl"),
        "data.task={name: custom, target: 'tried_verifiers:Missing'}",
    ],
)
def test_what_train_would_refuse_is_refused_in_its_words(folder: Path, wrong: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_run(load_settings(None, [wrong]), folder / "run", resume=False)
    result = tried(wrong)
    assert result.exit_code == 2
    assert result.stderr.endswith(f"evenstep try: {refused.value}\n")
    assert result.stdout == ""


def test_a_prompt_that_is_too_long_is_refused_before_anything_is_shown(folder: Path) -> None:
    result = tried(task_of("tried_verifiers:parts"), "generation.max_prompt_tokens=4")
    assert result.exit_code == 2
    assert "longer than generation.max_prompt_tokens" in result.stderr


def test_an_environment_is_played_with_its_demonstration_and_in_silence() -> None:
    result = CliRunner().invoke(app, ["try", "examples/calculator.yaml", "--prompts", "2"])
    assert result.exit_code == 0, result.output
    assert "if it says the demonstration: reward 1 (called 1), right" in result.stdout
    assert "of the environment " in result.stdout
    assert "of the data" not in result.stdout
    assert "environment │ =140556>" in result.stdout
    assert "if it says nothing: reward 0 (called 0), wrong" in result.stdout


def test_ray_is_not_started_nor_imported() -> None:
    code = "import sys; from runtime.cli.app import app; app(standalone_mode=False); sys.exit('ray' in sys.modules)"
    command = [sys.executable, "-c", code, "try", "--prompts", "1"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stderr
    assert "1 of 1 answer" in result.stdout


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("[{'role': 'user', 'content': 'go on'}]", "has no chat template, and a task gives messages"),
        (r"'\udc80'", "is no valid text"),
    ],
)
def test_an_environment_whose_answer_training_could_not_render_has_no_verdict(
    folder: Path, answer: str, why: str
) -> None:
    (folder / "tried_environment.py").write_text(ENVIRONMENT.format(answer=answer), encoding="utf-8")
    task = "data.task={name: custom, target: 'tried_environment:Asks'}"
    result = tried(task, "data.max_turns=3", prompts=1)
    assert result.exit_code == 1, result.output
    (line,) = [line for line in result.stdout.splitlines() if "no verdict" in line]
    assert why in line


@pytest.mark.parametrize("chat", ["data.chat=true", "data.chat_template=t.jinja"])
def test_a_model_that_is_not_there_is_said_to_be_missing(folder: Path, chat: str) -> None:
    (folder / "t.jinja").write_text("{{ messages[0].content }}", encoding="utf-8")
    result = tried(task_of("tried_verifiers:parts"), "policy.model_name=nothere", "data.chat=true", chat)
    assert result.exit_code == 2
    assert "policy.model_name: nothere is not a directory, and models are not downloaded" in result.stderr
    assert "no chat template" not in result.stderr


def test_answers_without_a_verdict_are_not_counted_as_wrong(folder: Path) -> None:
    result = tried(task_of("tried_verifiers:raises_for_twos"), "data.validation_size=0", prompts=4)
    assert result.exit_code == 1, result.output
    assert "\n3 of 4 answers of the data are rated right\n1 answer of the data has no verdict; the first reason: " in (
        result.stdout
    )
    assert "is rated wrong" not in result.stdout


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is installed here")
def test_an_engine_that_is_not_installed_is_pointed_out(folder: Path) -> None:
    result = tried(task_of("tried_verifiers:parts"), "generation.engine.name=vllm", prompts=1)
    assert result.exit_code == 0, result.output
    assert "evenstep train will not start here: generation.engine.name is vllm, and vLLM is not" in result.stderr
