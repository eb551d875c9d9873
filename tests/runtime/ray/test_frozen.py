"""Real runs in which a process is stopped for ever: it is found, replaced, and the run completes."""

import os
import signal
from pathlib import Path

from runtime.control.messages import Message, Notice, Outcome, StepDone
from runtime.launch.processes import process_tree
from runtime.trace.notes import ActorRestarted, WorkerDied, WorkerQuarantined
from runtime.trace.reader import open_trace
from runtime.trace.records import NoteRecord
from runtime.trace.replay import replay
from tests.runtime.ends.helpers import title_of
from tests.runtime.ray.helpers import ON_POLICY, adds_up, metrics_of, run, settings_of

PROBES = {"cluster.probe_interval_s": "1", "cluster.probe_timeout_s": "10"}


def stop_for_ever(title: str) -> bool:
    """Whether a process of this session has a title that begins so, and is stopped now."""
    for pid in process_tree(os.getpid()):
        if title_of(pid).startswith(title):
            os.kill(pid, signal.SIGSTOP)
            return True
    return False


class Freezer:
    """Stops a process once the first step is done."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.frozen = False
        self.notices: list[str] = []

    def __call__(self, message: Message) -> None:
        if isinstance(message, Notice):
            self.notices.append(message.text)
        if isinstance(message, StepDone) and not self.frozen:
            self.frozen = stop_for_ever(self.title)


def frozen_run(title: str, overrides: dict[str, str], steps: int, model: Path, output: Path) -> tuple[Outcome, Freezer]:
    freezer = Freezer(title)
    outcome = run(settings_of({**ON_POLICY, **PROBES, **overrides}, steps=steps), model, output, freezer)
    assert freezer.frozen, "nothing was stopped"
    assert outcome.status == "completed", outcome.error
    assert len(outcome.closed) == steps
    assert adds_up(outcome.balance)
    assert outcome.trace is not None
    assert replay(outcome.trace).difference is None
    return outcome, freezer


def notes_of(outcome: Outcome) -> list[object]:
    assert outcome.trace is not None
    return [record.note for record in open_trace(outcome.trace).records() if isinstance(record, NoteRecord)]


def test_a_generation_worker_that_is_stopped_for_ever_is_replaced(model: Path, tmp_path: Path) -> None:
    overrides = {"cluster.num_generation_workers": "2"}
    outcome, freezer = frozen_run("ray::GenerationWorker", overrides, 10, model, tmp_path)
    notes = notes_of(outcome)
    quarantined = [note for note in notes if isinstance(note, WorkerQuarantined)]
    assert quarantined
    assert "has not answered for 10 s (cluster.probe_timeout_s)" in quarantined[0].reason
    place = notes.index(quarantined[0])
    assert isinstance(notes[place + 1], WorkerDied)
    assert sum(record["restarts"]["quarantined"] for record in metrics_of(tmp_path)) == len(quarantined)
    assert any("is quarantined, and restarted" in notice for notice in freezer.notices)
    assert outcome.balance["trained"] == 10 * 4, "its groups were generated again"


def test_a_reward_worker_that_is_stopped_for_ever_is_restarted(model: Path, tmp_path: Path) -> None:
    outcome, _ = frozen_run("ray::RewardWorker", {}, 10, model, tmp_path)
    restarted = [note for note in notes_of(outcome) if isinstance(note, ActorRestarted)]
    assert [note.actor for note in restarted][:1] == ["reward worker 0"]
    assert outcome.balance["trained"] == 10 * 4


def test_a_group_store_that_is_stopped_for_ever_is_restarted_and_loses_only_what_it_held(
    model: Path, tmp_path: Path
) -> None:
    overrides = {
        "grpo.num_prompts_per_step": "16",
        "grpo.num_generations_per_prompt": "2",
        "async_rl.min_groups_for_streaming_train": "1",
        "async_rl.rollout_failure.min_step_batch_fraction": "0.01",
    }
    outcome, freezer = frozen_run("ray::GroupStore", overrides, 6, model, tmp_path)
    assert any(isinstance(note, ActorRestarted) and note.actor == "the group store" for note in notes_of(outcome))
    assert any("the groups that it held are lost" in notice for notice in freezer.notices)
    assert [step["selected"] + step["charged"] for step in outcome.closed] == [16] * 6
    assert outcome.closed[-1]["selected"] == 16, "later groups go to the new store"
