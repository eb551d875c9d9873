"""What docs/environments.md shows runs as it stands."""

import asyncio
import re
import sys
from pathlib import Path

import pytest

from runtime.launch.run import check_run
from runtime.settings import load_settings
from runtime.tasks.base import Completion
from runtime.tasks.config import CustomTaskConfig
from runtime.tasks.data import load_task
from runtime.tasks.environments.pool import EnvironmentPool
from runtime.tasks.environments.task import environment_code

DOCUMENT = (Path(__file__).parents[2] / "docs/environments.md").read_text(encoding="utf-8")
SHOWN = re.findall(r"<!-- file: (\S+?)(?:, extra: (\w+))? -->\n```\w+\n(.*?)```", DOCUMENT, flags=re.DOTALL)
CONFIGURATIONS = [(name, extra) for name, extra, _ in SHOWN if name.endswith(".yaml")]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the user runs `evenstep`, with the files of the document."""
    for name, _, text in SHOWN:
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("guess", "my_sums"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def test_the_environment_of_the_document_plays_as_its_demonstration(folder: Path) -> None:
    settings = load_settings(folder / "guess.yaml")
    task = settings.data.task
    assert isinstance(task, CustomTaskConfig)
    shown = load_task(settings.data, "training").demonstration(0)
    assert shown is not None

    async def play() -> None:
        pool = EnvironmentPool(environment_code(task, settings.data), 1, task.timeout_s, max_prompt_tokens=48)
        try:
            episode = await pool.open("training", 0)
            assert episode.prompt == shown[0]
            assert await episode.respond(shown[1]) == shown[2]
            assert await episode.respond(shown[3]) is None
            verdict = await episode.verdict(Completion((shown[1], shown[3]), tokens=4, finish_reason="stop"))
            assert (verdict.reward, verdict.correct, verdict.parts) == (0.8, True, {"right": 1.0})
            assert str((await pool.open("validation", 0)).prompt).startswith("v")
        finally:
            await pool.close()

    asyncio.run(play())


@pytest.mark.parametrize(("name", "extra"), CONFIGURATIONS)
def test_a_configuration_of_the_document_passes_the_checks_of_a_run(folder: Path, name: str, extra: str) -> None:
    if extra:
        shown = extra.replace("_", "-")
        pytest.importorskip(extra, reason=f"pip install -c constraints.txt -e '.[{shown}]' installs it")
    settings = load_settings(folder / name)
    training, held_out = check_run(settings, folder / "run", resume=False)
    assert training >= settings.grpo.num_prompts_per_step
    assert held_out["validation"] >= 4
