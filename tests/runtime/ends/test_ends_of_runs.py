"""W3, C2: how runs end at every phase, and how they go on: the process is gone in time, and nothing trained is lost.

Each is a run of the command line on a Ray of its own, ended from outside by signals, or by its own limits.
"""

import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from runtime.checkpoints.checkpoint import CHECKPOINTS, list_checkpoints, load
from runtime.output.directory import FINAL_MODEL, start_problems
from tests.runtime.ends.helpers import SHUTDOWN_S, SLACK_S, Ended, Run, train


def is_a_model(model: Path) -> None:
    """The directory is a Hugging Face model with its tokenizer and card, which generates."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model, local_files_only=True)
    policy = AutoModelForCausalLM.from_pretrained(model, local_files_only=True)
    assert (model / "README.md").read_text(encoding="utf-8").startswith("---\n")
    tokens = policy.generate(**tokenizer("ab>", return_tensors="pt"), max_new_tokens=4, do_sample=False)
    assert tokens.shape[1] > 3


def is_gone(ended: Ended, code: int, status: str) -> None:
    assert ended.code == code, ended.text
    assert ended.took_s < SHUTDOWN_S + SLACK_S, ended.text
    assert ended.left == [], ended.text
    assert "Traceback" not in ended.text
    assert ended.summary is not None
    assert ended.summary["status"] == status, ended.text


def kept_everything(ended: Ended, output: Path, steps: int) -> None:
    """A whole checkpoint of the last step, and the model; the last lines name both."""
    assert ended.summary is not None
    assert ended.summary["lost"] == []
    assert ended.summary["steps"] == steps
    newest = load(list_checkpoints(output / CHECKPOINTS)[0])
    assert newest.step == steps
    assert ended.summary["checkpoint"] == str(newest.path)
    assert ended.summary["model"] == str(output / FINAL_MODEL)
    assert re.search(rf"^model +{re.escape(str(output / FINAL_MODEL))}$", ended.text, re.MULTILINE)
    is_a_model(output / FINAL_MODEL)


def steps_of(ended: Ended) -> int:
    assert ended.summary is not None
    steps: int = ended.summary["steps"]
    assert [step["step"] for step in ended.summary["closed"]] == list(range(steps))
    return steps


LONG_VALIDATION: dict[str, object] = {"validation__rollouts_per_prompt": 256, "generation__max_new_tokens": 64}
SLOW_VERDICTS = {"data__delay": "{median_s: 3.0, sigma: 0.0, max_s: 5.0}"}


def in_first_validation(run: Run) -> None:
    run.wait_for("measuring accuracy")
    run.interrupt()


def in_generation(run: Run) -> None:
    run.wait_for("held-out accuracy")
    time.sleep(0.5)
    run.interrupt()


def in_training(run: Run) -> None:
    run.wait_for("^step ")
    run.actor("ray::TrainerRank.accumulate")
    run.interrupt()


def in_the_optimizer_step(run: Run) -> None:
    run.wait_for("^step ")
    run.actor("ray::TrainerRank.finish_step")
    run.process.send_signal(signal.SIGTERM)


def in_a_sync(run: Run) -> None:
    run.wait_for("^step ")
    run.actor("ray::GenerationWorker.load_weights")
    run.process.send_signal(signal.SIGHUP)


def in_a_checkpoint(run: Run) -> None:
    run.wait_for("^step ")
    run.actor("ray::TrainerRank.write_checkpoint")
    run.interrupt()


WALK: list[tuple[str, Callable[[Run], None], dict[str, object]]] = [
    ("first validation", in_first_validation, LONG_VALIDATION),
    ("generation", in_generation, SLOW_VERDICTS),
    ("training", in_training, {}),
    ("optimizer step", in_the_optimizer_step, {}),
    ("weight sync", in_a_sync, {}),
    ("checkpoint", in_a_checkpoint, {"checkpointing__every_steps": 1}),
]


def test_a_run_that_is_interrupted_in_every_phase_goes_on_each_time_and_completes(tmp_path: Path) -> None:
    output = tmp_path / "run"
    steps = 0
    resume: list[str] = []
    for phase, interrupt, overrides in WALK:
        ended = train(output, interrupt, *resume, grpo__max_num_steps=2000, **overrides)
        is_gone(ended, 130, "interrupted")
        if resume:
            assert re.search(rf"resuming from .*, after {steps} steps?", ended.text), (phase, ended.text)
        assert steps_of(ended) >= steps
        steps = steps_of(ended)
        kept_everything(ended, output, steps)
        resume = ["--resume"]
    assert steps > 3

    def in_final_validation(run: Run) -> None:
        run.wait_for("measuring accuracy", times=2)
        run.interrupt()

    ended = train(output, in_final_validation, "--resume", grpo__max_num_steps=steps + 2, **LONG_VALIDATION)
    is_gone(ended, 130, "interrupted")
    kept_everything(ended, output, steps + 2)
    ended = train(output, lambda run: None, "--resume", grpo__max_num_steps=steps + 4)
    is_gone_after_its_end(ended, 0, "completed")
    kept_everything(ended, output, steps + 4)
    assert ended.summary is not None
    assert ended.summary["balance"]["trained"] == 4 * (steps + 4)


def is_gone_after_its_end(ended: Ended, code: int, status: str) -> None:
    """Nothing was done to it, so how long it took says nothing."""
    assert ended.code == code, ended.text
    assert ended.left == []
    assert ended.summary is not None
    assert ended.summary["status"] == status


@pytest.mark.parametrize("line", ["checking the data", "starting Ray", "counting the prompts", "loading the model"])
def test_a_run_that_is_interrupted_while_it_starts_leaves_nothing_to_resume_and_starts_anew(
    line: str, tmp_path: Path
) -> None:
    output = tmp_path / "run"

    def at_the_line(run: Run) -> None:
        run.wait_for(line)
        run.interrupt()

    ended = train(output, at_the_line, grpo__max_num_steps=1)
    is_gone(ended, 130, "interrupted")
    assert "nothing was trained" in ended.text
    assert not output.exists() or list(start_problems(output)) == []
    ended = train(output, lambda run: None, "--resume", grpo__max_num_steps=1)
    assert ended.code == 2
    assert "nothing to resume" in ended.text


def worker_deaf_in_generation(run: Run) -> None:
    run.wait_for("^step ")
    run.stop_actor("ray::GenerationWorker")
    time.sleep(0.5)
    run.interrupt()


def worker_deaf_in_first_validation(run: Run) -> None:
    run.wait_for("loading the model")
    run.stop_actor("ray::GenerationWorker.evaluate")
    run.interrupt()


def reward_worker_deaf(run: Run) -> None:
    run.wait_for("^step ")
    run.stop_actor("ray::RewardWorker")
    time.sleep(0.5)
    run.interrupt()


@pytest.mark.parametrize("deafen", [worker_deaf_in_first_validation, worker_deaf_in_generation, reward_worker_deaf])
def test_one_interrupt_ends_a_run_whose_worker_does_not_answer_with_all_that_was_trained(
    deafen: Callable[[Run], None], tmp_path: Path
) -> None:
    output = tmp_path / "run"
    ended = train(output, deafen, grpo__max_num_steps=2000, validation__rollouts_per_prompt=16)
    is_gone(ended, 130, "interrupted")
    kept_everything(ended, output, steps_of(ended))


def test_one_interrupt_ends_a_run_whose_trainer_does_not_answer_and_it_says_what_is_lost(tmp_path: Path) -> None:
    output = tmp_path / "run"

    def trainer_deaf(run: Run) -> None:
        run.wait_for("^step 2 ")
        run.stop_actor("ray::TrainerRank")
        time.sleep(0.5)
        run.interrupt()

    ended = train(output, trainer_deaf, grpo__max_num_steps=2000, checkpointing__every_steps=2)
    is_gone(ended, 130, "interrupted")
    assert ended.summary is not None
    assert ended.summary["model"] is None
    assert any("nothing was written" in lost or "under way" in lost for lost in ended.summary["lost"])
    assert ended.summary["checkpoint"] is not None


def test_one_interrupt_ends_a_run_whose_controller_does_not_answer(tmp_path: Path) -> None:
    output = tmp_path / "run"

    def controller_deaf(run: Run) -> None:
        run.wait_for("^step 2 ")
        run.stop_actor("ray::Controller")
        run.interrupt()

    ended = train(output, controller_deaf, grpo__max_num_steps=2000)
    is_gone(ended, 130, "interrupted")
    assert "the controller did not say how the run ended within 15 s" in ended.text
    assert steps_of(ended) >= 3


def test_a_run_whose_controller_does_not_answer_is_told_and_the_watchdog_ends_it(tmp_path: Path) -> None:
    def controller_deaf(run: Run) -> None:
        run.wait_for("^step 2 ")
        run.stop_actor("ray::Controller")
        run.wait_for("nothing was heard of the run for .* its process is frozen")
        run.wait_for("run failed")

    watchdog = "{stall_timeout_s: 30, stall_action: abort}"
    unlimited = {"async_rl__rollout_failure__rollout_timeout_s": "null", "async_rl__stall_watchdog": watchdog}
    ended = train(tmp_path / "run", controller_deaf, grpo__max_num_steps=20_000, **unlimited)
    is_gone(ended, 1, "failed")
    assert re.search(r"run failed: no progress for \d+ s, stall_timeout_s is over: the controller", ended.text)
    assert steps_of(ended) >= 3


@pytest.mark.parametrize("process", ["raylet", "gcs_server"])
def test_one_interrupt_ends_a_run_whose_ray_does_not_answer(process: str, tmp_path: Path) -> None:
    output = tmp_path / "run"

    def ray_deaf(run: Run) -> None:
        run.wait_for("^step 2 ")
        run.stop_actor(f"/{process}")
        run.interrupt()

    ended = train(output, ray_deaf, grpo__max_num_steps=2000)
    is_gone(ended, 130, "interrupted")
    assert steps_of(ended) >= 3


@pytest.mark.parametrize(
    ("before", "phase", "steps"),
    [("loading the model", "the first validation", 0), ("held-out accuracy", "the final validation", 3)],
)
def test_the_watchdog_ends_a_validation_that_hangs_and_what_was_trained_is_kept(
    before: str, phase: str, steps: int, tmp_path: Path
) -> None:
    def deafen(run: Run) -> None:
        run.wait_for(before)
        run.stop_actor("ray::GenerationWorker.evaluate")
        run.wait_for("run stopped")

    ended = train(
        tmp_path / "run",
        deafen,
        grpo__max_num_steps=3,
        async_rl__stall_watchdog="{stall_timeout_s: 25, stall_action: abort}",
        async_rl__rollout_failure__rollout_timeout_s="null",
        **LONG_VALIDATION,
    )
    is_gone(ended, 1, "stopped")
    assert re.search(rf"run stopped: no progress for \d+ s, .*{phase} is under way", ended.text)
    kept_everything(ended, tmp_path / "run", steps)


def test_a_run_whose_data_is_used_up_completes_with_its_last_weights(tmp_path: Path) -> None:
    ended = train(tmp_path / "run", data__num_prompts=10, grpo__max_num_steps="null")
    is_gone_after_its_end(ended, 0, "completed")
    kept_everything(ended, tmp_path / "run", 2)


def test_a_run_that_a_budget_stops_tells_the_budget_first_and_keeps_its_last_weights(tmp_path: Path) -> None:
    """Every prompt of four letters has a token more than the limit, and no failure of data is allowed for."""
    ended = train(
        tmp_path / "run",
        grpo__max_num_steps=2000,
        generation__max_prompt_tokens=4,
        data__validation_size=0,
        async_rl__rollout_failure__max_skipped_prompts=3,
        async_rl__rollout_failure__min_step_batch_fraction=0.25,
    )
    is_gone_after_its_end(ended, 1, "stopped")
    assert ended.summary is not None
    assert "max_skipped_prompts" in ended.summary["error"]
    assert re.search("^run stopped: .*max_skipped_prompts", ended.text, re.MULTILINE)
    steps = steps_of(ended)
    kept_everything(ended, tmp_path / "run", steps)
    ended = train(
        tmp_path / "run",
        lambda run: None,
        "--resume",
        grpo__max_num_steps=steps + 2,
        generation__max_prompt_tokens=16,
        data__validation_size=0,
        async_rl__rollout_failure__max_skipped_prompts=3,
        async_rl__rollout_failure__min_step_batch_fraction=0.25,
    )
    is_gone_after_its_end(ended, 0, "completed")
    assert re.search(rf"resuming from .*, after {steps} steps?", ended.text)
    assert steps_of(ended) == steps + 2


def test_without_restarts_a_run_whose_trainer_is_killed_fails_in_one_line_and_names_its_checkpoint(
    tmp_path: Path,
) -> None:
    output = tmp_path / "run"

    def kill(run: Run) -> None:
        run.wait_for("^step 4 ")
        os.kill(run.actor("ray::TrainerRank"), signal.SIGKILL)

    ended = train(output, kill, grpo__max_num_steps=2000, checkpointing__every_steps=2, cluster__max_run_restarts=0)
    is_gone(ended, 1, "failed")
    assert ended.summary is not None
    assert re.search("^run failed: actor .*-trainer-0 died: ", ended.text, re.MULTILINE)
    assert ended.summary["model"] is None
    assert Path(ended.summary["checkpoint"]).is_dir()
    assert not (output / "traceback.txt").exists()


def test_without_restarts_a_run_whose_controller_is_killed_fails_with_what_is_known(tmp_path: Path) -> None:
    output = tmp_path / "run"

    def kill(run: Run) -> None:
        run.wait_for("^step 4 ")
        os.kill(run.actor("ray::Controller"), signal.SIGKILL)

    ended = train(output, kill, grpo__max_num_steps=2000, checkpointing__every_steps=2, cluster__max_run_restarts=0)
    is_gone(ended, 1, "failed")
    assert steps_of(ended) >= 5
    assert load(list_checkpoints(output / CHECKPOINTS)[0]).step >= 2
