"""A disk that fills up while a run goes on, and takes writes again later. The kernel refuses them (EFBIG)."""

from pathlib import Path
from typing import Any

import ray

from runtime.checkpoints.checkpoint import list_checkpoints, load
from runtime.control.messages import Message, Notice, StepDone
from runtime.settings import Settings
from runtime.trace.reader import open_trace
from runtime.trace.replay import replay
from tests.runtime.ray.helpers import metrics_of, run, settings_of

FULL_FROM, FULL_TO, STEPS = 12, 40, 160


def limit_files(settings: Settings, actor: str, size: int) -> None:
    """Let an actor's process write no file beyond so many bytes; -1 for any."""

    def limit(_: Any, size: int) -> None:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))

    [name] = [found["name"] for found in ray.util.list_named_actors(True) if found["name"].endswith(f"-{actor}")]
    handle = ray.get_actor(name, namespace=settings.cluster.namespace)
    ray.get(handle.__ray_call__.remote(limit, size))


def test_a_full_disk_costs_the_files_that_it_refuses_and_not_the_run(model: Path, tmp_path: Path) -> None:
    settings = settings_of(
        {"checkpointing.enabled": "true", "checkpointing.every_steps": "5", "data.validation_size": "0"}, steps=STEPS
    )
    told: list[str] = []
    changes = {FULL_FROM: 1, FULL_TO: -1}
    whole: list[int] = []
    """The step of the newest checkpoint when the disk takes writes again."""

    def listen(message: Message) -> None:
        if isinstance(message, Notice):
            told.append(message.text)
        due = min(changes, default=STEPS)
        if isinstance(message, StepDone) and message.record["step"] >= due:
            size = changes.pop(due)
            if due == FULL_TO:
                whole.append(load(list_checkpoints(tmp_path / "checkpoints")[0]).step)
            for actor in ("trainer-0", "controller"):
                limit_files(settings, actor, size)

    outcome = run(settings, model, tmp_path, listen)
    assert outcome.status == "completed", outcome.error
    assert not changes
    refused = [text for text in told if "could not be written" in text]
    [checkpoint] = [text for text in refused if text.startswith(str(tmp_path / "checkpoints"))]
    assert "no checkpoint was added, and checkpoint-" in checkpoint
    assert "stays the newest; the run continues, and tries again between later steps" in checkpoint
    assert any(text.startswith("checkpoints can be written again: checkpoint-") for text in told)
    assert outcome.checkpoints_lost > 0
    assert outcome.lost == ()
    assert len([text for text in refused if text.startswith(str(tmp_path / "trace.jsonl"))]) == 1
    for name in ("metrics.jsonl", "samples.jsonl"):
        assert len([text for text in refused if text.startswith(str(tmp_path / name))]) == 1, name
    assert all("\n" not in text for text in refused)
    assert outcome.checkpoint is not None
    assert outcome.checkpoint == list_checkpoints(tmp_path / "checkpoints")[0]
    assert 0 < whole[0] < FULL_TO < load(outcome.checkpoint).step
    assert [record["step"] for record in metrics_of(tmp_path)] == list(range(STEPS))
    assert outcome.trace is not None
    assert open_trace(outcome.trace).last_head() is not None
    assert replay(outcome.trace).difference is None
