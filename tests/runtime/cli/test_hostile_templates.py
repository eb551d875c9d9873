"""A chat template that hangs, takes gigabytes or raises: `try`, `eval` and the start of `train` name row and line."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from runtime.cli.app import app
from runtime.launch.model import prepare, prepare_model
from runtime.launch.preflight import Prepared
from runtime.settings import load_settings
from tests.users.hostile_templates import ALWAYS, TEMPLATES

DOES = {
    "loops": "own.jinja:3: did not end within data.chat_template_timeout_s = 0.5 s",
    "allocates": "own.jinja:3: took more than 1024 MiB of memory",
    "raises": "own.jinja:3: TemplateError: not this one",
    "halves": "own.jinja: gave a text with '\\ud800', half of a pair",
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_model(load_settings(None, ["warmup.steps=0"]), tmp_path_factory.mktemp("made") / "model")


def overrides(folder: Path, template: str) -> list[str]:
    lines = [json.dumps({"prompt": prompt, "answer": "a"}) for prompt in ("ab", "ba", "bad", "aa")]
    (folder / "rows.jsonl").write_text("\n".join(lines), encoding="utf-8")
    (folder / "own.jinja").write_text(template, encoding="utf-8")
    return [
        f"data.task={{name: jsonl, path: {folder / 'rows.jsonl'}}}",
        f"data.chat_template={folder / 'own.jinja'}",
        "data.chat=true",
        "data.chat_template_timeout_s=0.5",
        "data.validation_size=0",
        "grpo.num_prompts_per_step=2",
    ]


def shows(output: str, *parts: str) -> bool:
    """Whether an output has these one after the other, however its lines are broken."""
    together = re.sub(r"\s", "", output)
    places = [together.find(re.sub(r"\s", "", part)) for part in parts]
    return -1 not in places and places == sorted(places)


@pytest.mark.parametrize("does", DOES)
def test_try_refuses_the_row_by_its_number_and_the_template_by_its_line(tmp_path: Path, does: str) -> None:
    settings = [word for override in overrides(tmp_path, TEMPLATES[does]) for word in ("--set", override)]
    result = CliRunner().invoke(app, ["try", *settings])
    assert result.exit_code == 2, result.output
    assert shows(result.stderr, "rows.jsonl:3: the chat template does not render", DOES[does])


@pytest.mark.parametrize("does", DOES)
def test_the_start_of_train_is_refused_so_too(tmp_path: Path, does: str) -> None:
    settings = load_settings(None, overrides(tmp_path, TEMPLATES[does]))
    (prepared,) = [each for each in prepare(settings, tmp_path / "model") if isinstance(each, Prepared)]
    [refusal] = prepared.found.refusals
    assert shows(refusal, "rows.jsonl:3: the chat template does not render", DOES[does])
    assert prepared.directory is None


def test_a_template_that_stops_every_prompt_is_tried_once(tmp_path: Path) -> None:
    settings = load_settings(None, overrides(tmp_path, ALWAYS["loops"]))
    (prepared,) = prepare(settings, tmp_path / "model")
    assert isinstance(prepared, Prepared)
    [refusal] = prepared.found.refusals
    assert "rows.jsonl" not in refusal
    assert "own.jinja:3: did not end within" in refusal


@pytest.mark.parametrize("does", DOES)
def test_eval_refuses_it_before_the_model_is_loaded(model: Path, tmp_path: Path, does: str) -> None:
    config = tmp_path / "sets.yaml"
    config.write_text("data: {validation_size: 4}", encoding="utf-8")
    given = (each.removeprefix("data.").partition("=") for each in overrides(tmp_path, TEMPLATES[does])[:4])
    own = ", ".join(f"{key}: {value}" for key, _, value in given)
    result = CliRunner().invoke(app, ["eval", str(model), str(config), "--set", f"validation.sets.own.data={{{own}}}"])
    assert result.exit_code == 2, result.output
    assert shows(result.stderr, "rows.jsonl:3: the chat template does not render", DOES[does])
    assert "loading the model" not in result.stderr
