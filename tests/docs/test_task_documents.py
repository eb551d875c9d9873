"""What docs/tasks.md shows runs as it stands."""

import json
import re
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fsm.errors import ConfigError
from runtime.cli.app import app
from runtime.launch.run import check_run
from runtime.settings import load_settings
from runtime.tasks.base import Completion, JudgedTask
from runtime.tasks.data import load_task
from tests.runtime.bookkeeping import said

DOCUMENT = (Path(__file__).parents[2] / "docs/tasks.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", DOCUMENT, flags=re.DOTALL))
CONFIGURATIONS = re.findall(r"```yaml\n(.*?)```", DOCUMENT, flags=re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the user runs `evenstep`, with the files of the document."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("my_verifiers", "graded_verifiers"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def test_the_example_passes_the_checks_of_a_run_and_its_verifier_rates(folder: Path) -> None:
    assert set(FILES) == {
        *("capitals.jsonl", "my_verifiers.py", "capitals.yaml"),
        *("graded.jsonl", "graded_verifiers.py", "graded.yaml"),
    }
    settings = load_settings(folder / "capitals.yaml")

    training, held_out = check_run(settings, folder / "run", resume=False)

    assert training >= settings.grpo.num_prompts_per_step
    assert held_out["validation"] >= 1
    assert training + held_out["validation"] == 5
    task = load_task(settings.data, "training")
    answer = task.reference(0)
    assert answer is not None
    assert isinstance(task, JudgedTask)
    rate = task.judge.open()
    says = [rate(*task.case(0, said(text))) for text in (f"It is {answer}.", f"it is {answer.lower()}", "no idea")]
    assert [(verdict.reward, verdict.correct) for verdict in says] == [(1.0, True), (0.5, False), (0.0, False)]


def test_the_look_at_the_first_prompt_prints_what_is_shown(folder: Path) -> None:
    [block] = re.findall(r"<!-- shown -->\n```console\n(.*?)```", DOCUMENT, flags=re.DOTALL)
    command, *shown = block.splitlines()
    result = CliRunner().invoke(app, command.split()[2:])
    assert result.exit_code == 0, result.output
    assert [line.rstrip() for line in (result.stderr + result.stdout).splitlines()] == shown


def test_the_example_of_several_rewards_weighs_the_row_the_coroutine_and_the_penalty(folder: Path) -> None:
    settings = load_settings(folder / "graded.yaml")
    check_run(settings, folder / "run", resume=False)
    task = load_task(settings.data, "training")
    assert isinstance(task, JudgedTask)
    row = json.loads((folder / "graded.jsonl").read_text().splitlines()[int(task.where(0).rpartition(":")[2]) - 1])
    rate = task.judge.open()
    right = rate(*task.case(0, Completion((f"{row['answer']} in {row['continent']}",), 10, "stop")))
    assert right.correct
    assert right.reward == pytest.approx(2.0 * 1.25 - 0.5 * 0.1)
    assert right.parts == {"right": 1.25, "right/capital": 1.0, "right/continent": 0.25, "length": -0.1}
    wrong = rate(*task.case(0, Completion((row["continent"],), 10, "length")))
    assert not wrong.correct
    assert wrong.reward == pytest.approx(2.0 * 0.25 - 0.5)


@pytest.mark.parametrize(
    "wrong", ['{"prompt": "a"}', '{"prompt": "a", "answer": null}', '{"prompt": "", "answer": ""}']
)
def test_a_line_that_is_not_as_the_document_says_is_refused_by_file_and_line(folder: Path, wrong: str) -> None:
    with (folder / "capitals.jsonl").open("a", encoding="utf-8") as file:
        file.write(wrong + "\n")
    with pytest.raises(ConfigError, match=r"capitals\.jsonl:6"):
        check_run(load_settings(folder / "capitals.yaml"), folder / "run", resume=False)


@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_every_configuration_of_the_document_loads(configuration: str, folder: Path) -> None:
    (folder / "shown.yaml").write_text(configuration, encoding="utf-8")
    assert load_task(load_settings(folder / "shown.yaml").data, "training").prompt(0)
