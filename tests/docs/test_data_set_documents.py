"""What docs/data_sets.md shows runs as it stands."""

import re
import runpy
import shutil
from pathlib import Path

import pytest
from transformers import AutoTokenizer
from typer.testing import CliRunner

from runtime.cli.app import app
from runtime.control.messages import Message, Notice
from runtime.launch.model import check_stops
from runtime.launch.preflight import Findings
from runtime.launch.prompt_lengths import count_prompts
from runtime.launch.run import check_run, run_training
from runtime.models.text import make_codec, model_stop_tokens
from runtime.models.tiny import character_tokenizer
from runtime.settings import load_settings
from runtime.tasks.base import JudgedTask
from runtime.tasks.data import load_task
from tests.runtime.bookkeeping import said

datasets = pytest.importorskip("datasets")
ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs/data_sets.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", DOCUMENT, flags=re.DOTALL))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the user runs `evenstep`, with the files of the document, and its data made."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    runpy.run_path("make_sums.py")
    return tmp_path


def test_the_example_passes_the_checks_of_a_run_and_its_prompts_are_rendered_and_rated(folder: Path) -> None:
    settings = load_settings(Path("sums.yaml"))

    training, held_out = check_run(settings, folder / "run", resume=False)

    assert training > 80
    assert held_out == {"validation": 8}
    tokenizer = character_tokenizer()
    counted = {progress.done for progress in count_prompts(settings, tokenizer)}
    assert counted >= {training, 8}
    task = load_task(settings.data, "training")
    assert isinstance(task, JudgedTask)
    shown = make_codec(tokenizer, settings.data).prompt_text(task.opening(0))
    assert shown == f"system: reply with a number\nuser: {task.prompt(0).rpartition('user: ')[2]}\nassistant: brief"
    assert check_stops(settings, tokenizer, model_stop_tokens(tokenizer, None)) == Findings()
    rate = task.judge.open()
    assert rate(*task.case(0, said(str(task.reference(0))))).correct
    assert task.case(0, said("1"))[1]["solution"]["source"] == "made up"


def test_the_example_trains_as_printed(folder: Path) -> None:
    settings = load_settings(Path("sums.yaml"), ["logger.plot=false", "trace.enabled=false"])
    told: list[Message] = []
    result = run_training(settings, folder / "run", resume=None, listener=told.append)
    assert result.outcome.status == "completed", result.outcome.error
    assert len(result.outcome.closed) == settings.grpo.max_num_steps
    assert result.outcome.model is not None
    kept = AutoTokenizer.from_pretrained(result.outcome.model)
    task = load_task(settings.data, "training")
    trained = make_codec(character_tokenizer(), settings.data)
    alone = make_codec(kept, settings.data.model_copy(update={"chat_template": None}))
    assert alone.prompt_text(task.opening(0)) == trained.prompt_text(task.opening(0))
    exported = CliRunner().invoke(app, ["export", "model", str(folder / "run"), "-o", str(folder / "exported")])
    assert exported.exit_code == 0, exported.output
    assert AutoTokenizer.from_pretrained(folder / "exported").chat_template == kept.chat_template
    assert any(isinstance(message, Notice) and "rows of sums.parquet" in message.text for message in told)


def test_the_example_with_smollm2_makes_data_that_passes_the_checks_of_a_run(folder: Path) -> None:
    (folder / "examples").mkdir()
    for name in ("chat_sums.py", "chat_sums.yaml"):
        shutil.copy(ROOT / "examples" / name, folder / "examples" / name)
    runpy.run_path("examples/chat_sums.py", run_name="__main__")
    training, held_out = check_run(load_settings(Path("examples/chat_sums.yaml")), folder / "run", resume=False)
    assert training > 60
    assert held_out == {"validation": 16}
