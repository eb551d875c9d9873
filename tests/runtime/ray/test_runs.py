"""Whole runs on Ray with a tiny model: they end by themselves, and what they say of themselves is true."""

from pathlib import Path

import pytest

from fsm.core import AppliedEvent
from fsm.effects import TrainChunk
from fsm.events import GroupFailed, GroupFinished
from runtime.control.messages import Message, Notice, StepDone
from runtime.explain.explanation import explain
from runtime.explain.finding import RunVerdict
from runtime.explain.live import Standing
from runtime.naming import missing_resources
from runtime.trace.notes import Note, RunEnded, WorkerDied, WorkerStarted
from runtime.trace.reader import open_trace
from runtime.trace.records import NoteRecord, TransitionRecord
from runtime.trace.replay import replay
from specs.checker.closing import outlook
from tests.runtime.ray.helpers import ON_POLICY, adds_up, kill_actor, metrics_of, run, settings_of

N = 4


def events_of(trace: Path) -> list[AppliedEvent]:
    return [record.transition for record in open_trace(trace).records() if isinstance(record, TransitionRecord)]


def notes_of(trace: Path) -> list[Note]:
    return [record.note for record in open_trace(trace).records() if isinstance(record, NoteRecord)]


def trained_and_flat(trace: Path) -> tuple[set[int], set[int]]:
    """Prompts that were handed to the trainer, and those that finished with equal rewards."""
    trained: set[int] = set()
    flat: set[int] = set()
    for event, _, effects in events_of(trace):
        if isinstance(event, GroupFinished) and event.zero_variance:
            flat.add(event.attempt.prompt)
        for effect in effects:
            if isinstance(effect, TrainChunk):
                trained |= {group.prompt for group in effect.groups}
    return trained, flat


@pytest.mark.parametrize("sampler", ["in_order", "ready_first", "windowed"])
def test_a_run_with_dynamic_sampling_ends_by_itself_and_adds_up(sampler: str, model: Path, tmp_path: Path) -> None:
    outcome = run(settings_of({"async_rl.sampler.name": sampler}, prompts=8 * N), model, tmp_path)
    assert outcome.status == "completed", outcome.error
    assert adds_up(outcome.balance)
    assert outcome.balance["trained"] == sum(step["selected"] for step in outcome.closed)
    records = metrics_of(tmp_path)
    assert [record["selected"] for record in records] == [step["selected"] for step in outcome.closed]
    assert [record["step"] for record in records] == list(range(len(outcome.closed)))
    assert outcome.trace is not None
    trained, flat = trained_and_flat(outcome.trace)
    assert trained
    assert not trained & flat
    assert len(flat) == outcome.balance["filtered"]
    assert replay(outcome.trace).difference is None


def test_steps_whose_rollouts_were_all_cut_off_are_told_and_counted(model: Path, tmp_path: Path) -> None:
    cut_off = {"generation.max_new_tokens": "1", "loss_fn.overlong_filtering": "true"}
    notices: list[str] = []

    def note(message: Message) -> None:
        if isinstance(message, Notice):
            notices.append(message.text)

    outcome = run(settings_of({**ON_POLICY, **cut_off}, steps=3), model, tmp_path, note)
    assert outcome.status == "completed", outcome.error
    empty = [record for record in metrics_of(tmp_path) if record["trained_tokens"] == 0]
    assert empty
    assert all(record["masked_rollouts"] == 8 * N and record["grad_norm"] == 0 for record in empty)
    assert outcome.steps_without_tokens == len(empty)
    (told,) = [notice for notice in notices if "trained on no token" in notice]
    assert f"step {empty[0]['step']} trained on no token" in told
    assert "all its 32 rollouts were cut off" in told


def test_as_many_steps_without_tokens_as_are_allowed_stop_the_run_with_its_weights_saved(
    model: Path, tmp_path: Path
) -> None:
    cut_off = {"generation.max_new_tokens": "1", "loss_fn.overlong_filtering": "true"}
    stopping = {"loss_fn.stop_after_steps_without_tokens": "1", "generation.temperature": "0.2"}
    outcome = run(settings_of({**ON_POLICY, **cut_off, **stopping}, steps=20), model, tmp_path)
    assert outcome.status == "stopped"
    assert outcome.error is not None
    assert "trained on no token, and loss_fn.stop_after_steps_without_tokens is 1" in outcome.error
    assert len(outcome.closed) < 20
    assert outcome.model is not None
    assert outcome.model.is_dir()


def test_steps_that_cannot_be_applied_stop_the_run_and_their_weights_are_not_saved(model: Path, tmp_path: Path) -> None:
    notices: list[str] = []

    def note(message: Message) -> None:
        if isinstance(message, Notice):
            notices.append(message.text)

    overflowing = {**ON_POLICY, "optimizer.lr": "1.0e+38", "checkpointing.every_steps": "1"}
    outcome = run(settings_of(overflowing, steps=20), model, tmp_path, note)
    assert outcome.status == "stopped"
    assert outcome.error is not None
    assert outcome.error.startswith("steps 0 to 2 had numbers that are not finite and were not applied")
    assert (outcome.steps_not_applied, len(outcome.closed)) == (3, 3)
    assert [record["not_finite"] for record in metrics_of(tmp_path)] == ["the weights after the step"] * 3
    [told] = [notice for notice in notices if "is not applied" in notice]
    assert told.startswith("step 0 is not applied, and weights, moments and schedule stay unchanged")
    assert (outcome.checkpoint, outcome.model) == (None, None)
    assert not list(tmp_path.rglob("*.safetensors"))


def test_logits_that_are_not_finite_fail_their_attempts_and_name_the_worker(model: Path, tmp_path: Path) -> None:
    """The first step is finite, and blows the weights up: no rollout can be sampled from them."""
    exploding = {**ON_POLICY, "optimizer.lr": "1.0e+30", "async_rl.rollout_failure.max_infra_attempts_per_prompt": "2"}
    outcome = run(settings_of(exploding, steps=20), model, tmp_path)
    assert outcome.status == "stopped", outcome.error
    assert len(outcome.closed) == 1
    assert "on generation-" in outcome.failed_attempts
    assert "weight version 1 gave logits that are not finite" in outcome.failed_attempts
    assert (outcome.checkpoint, outcome.model) == (None, None)


def test_a_validation_under_weights_without_finite_logits_ends_the_run_and_they_are_not_saved(
    model: Path, tmp_path: Path
) -> None:
    validated = {"data.validation_size": "8", "validation.every_steps": "1"}
    outcome = run(settings_of({**ON_POLICY, **validated, "optimizer.lr": "1.0e+30"}, steps=20), model, tmp_path)
    assert outcome.status == "failed"
    assert outcome.error is not None
    assert "weight version 1 gave logits that are not finite" in outcome.error
    assert (outcome.checkpoint, outcome.model, outcome.traceback) == (None, None, None)


def test_a_run_goes_on_when_a_generation_worker_is_killed(model: Path, tmp_path: Path) -> None:
    # A worker may have nothing to lose between two steps, hardly so three times.
    settings = settings_of({"cluster.num_generation_workers": "1"}, steps=200)
    killed: list[int] = []

    def kill(message: Message) -> None:
        if not isinstance(message, StepDone) or len(killed) == 3:
            return
        step = message.record["step"]
        if step >= (killed or [-15])[-1] + 15 and kill_actor(settings, f"-generation-0.{len(killed)}") is not None:
            killed.append(step)

    outcome = run(settings, model, tmp_path, kill)
    assert killed
    assert outcome.status == "completed", outcome.error
    assert len(outcome.closed) == 200
    assert [step["selected"] for step in outcome.closed] == [N] * 200
    assert outcome.worker_restarts == len(killed)
    assert adds_up(outcome.balance)
    assert outcome.trace is not None
    assert any(isinstance(event, GroupFailed) for event, _, _ in events_of(outcome.trace))
    died = [note for note in notes_of(outcome.trace) if isinstance(note, WorkerDied)]
    started = [note for note in notes_of(outcome.trace) if isinstance(note, WorkerStarted)]
    assert [note.worker for note in died] == ["generation-0"] * len(killed)
    assert "generation-0" in [note.worker for note in started]
    assert replay(outcome.trace).difference is None


def test_a_run_goes_on_however_often_its_reward_workers_are_killed(model: Path, tmp_path: Path) -> None:
    """Groups fail one by one, back off and are ordered again, each in an exchange that relieves the one before it."""
    overrides = {
        "grpo.num_prompts_per_step": "8",
        "async_rl.sampler.max_staleness_versions": "2",
        "async_rl.rollout_failure.max_infra_attempts_per_prompt": "100000",
        "async_rl.rollout_failure.backoff_base_s": "0.01",
        "async_rl.rollout_failure.max_backoff_s": "0.05",
        "cluster.num_reward_workers": "2",
        "cluster.reward_threads": "4",
    }
    settings = settings_of(overrides, steps=12)
    killed: list[str] = []

    def kill(message: Message) -> None:
        if len(killed) < 12 and isinstance(message, Standing | StepDone):
            worker = kill_actor(settings, f"-reward-{len(killed) % 2}", for_good=False)
            killed.extend([] if worker is None else [worker])

    outcome = run(settings, model, tmp_path, kill)
    assert killed
    assert outcome.status == "completed", outcome.error
    assert [step["selected"] for step in outcome.closed] == [8] * 12
    assert adds_up(outcome.balance)
    assert outcome.trace is not None
    failed = [event for event, _, _ in events_of(outcome.trace) if isinstance(event, GroupFailed)]
    assert "reward worker died" in failed[0].error
    assert replay(outcome.trace).difference is None


def test_the_same_seed_gives_the_same_losses_bit_for_bit(model: Path, tmp_path: Path) -> None:
    """in_order at lookahead 0, one generation worker, no dynamic sampling, whole batches."""
    overrides = {
        "async_rl.sampler": "{name: in_order, max_lookahead_versions: 0}",
        "grpo.use_dynamic_sampling": "false",
        "generation.engine.batching": "whole",
        "data.validation_size": "0",
    }
    losses = []
    for name in ("one", "two"):
        run(settings_of(overrides, steps=4), model, tmp_path / name)
        losses.append([record["loss"] for record in metrics_of(tmp_path / name)])
    assert len(losses[0]) == 4
    assert losses[0] == losses[1]


def test_gpus_that_are_not_there_are_missed_before_an_actor_waits_for_them(model: Path) -> None:
    assert missing_resources(settings_of({})) == []
    on_gpus = settings_of({"cluster.trainer_device": "cuda", "cluster.num_trainer_ranks": "2"})
    assert "2 GPUs are needed, and Ray has 0" in missing_resources(on_gpus)


def test_an_interrupted_run_leaves_a_checkpoint_and_goes_on_from_it(model: Path, tmp_path: Path) -> None:
    settings = settings_of({"checkpointing.enabled": "true", "data.validation_size": "0"}, steps=200)

    def interrupt(message: Message) -> None:
        if isinstance(message, StepDone) and message.record["step"] == 1:
            raise KeyboardInterrupt  # messages come every half second, so some steps later

    first = run(settings, model, tmp_path, interrupt)
    assert first.status == "interrupted"
    assert first.checkpoint is not None
    assert first.trace is not None
    explanation = explain(open_trace(first.trace), outlook)
    assert explanation.verdict is RunVerdict.INTERRUPTED
    kept = (str(first.checkpoint), str(first.model))
    assert explanation.situation.ended == RunEnded("interrupted", None, len(first.closed), *kept)
    assert f"--resume continues from {first.checkpoint}" in explanation.advice
    assert 2 <= len(first.closed) < 200
    told: list[Message] = []
    second = run(settings, model, tmp_path, told.append, resume=True)
    assert Notice(f"resuming from {first.checkpoint}, after {len(first.closed)} steps") in told
    assert second.status == "completed", second.error
    assert [step["step"] for step in second.closed] == list(range(200))
    assert adds_up(second.balance)
    assert second.trace is not None
    assert replay(second.trace).difference is None
