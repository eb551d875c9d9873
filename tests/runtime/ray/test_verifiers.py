"""Runs whose verifier misbehaves: each fault costs its own group, or its own rollout of a validation."""

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from fsm.events import FailureKind, GroupFailed
from runtime.cli.app import app
from runtime.control.messages import Message, Notice
from runtime.launch.ray_session import ray_session
from runtime.trace.reader import open_trace
from runtime.trace.records import TransitionRecord
from tests.runtime.ray.helpers import adds_up, kill_actor, run, settings_of
from tests.started import started

USERS = Path(__file__).parents[2] / "users"


@pytest.fixture(scope="module", autouse=True)
def session() -> Iterator[None]:
    """As for other files, where Ray's processes find the verifiers of this one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(USERS), *sys.path]))
        with ray_session(settings_of({}, steps=1)):
            yield


def events_of(trace: Path) -> list[Any]:
    return [record.transition[0] for record in open_trace(trace).records() if isinstance(record, TransitionRecord)]


def lines(path: Path, count: int, answer: str | None = None) -> Path:
    chance = random.Random(count)
    texts = ["".join(chance.choices("abcd", k=chance.randint(2, 4))) for _ in range(count)]
    path.write_text("".join(json.dumps({"prompt": f"{t:>4}>", "answer": answer or t[::-1]}) + "\n" for t in texts))
    return path


def overrides(path: Path, verifier: str, **task: Any) -> dict[str, str]:
    config = {"name": "jsonl", "path": str(path), "verifier": f"wild_verifiers:{verifier}", **task}
    return {
        "data.task": yaml.safe_dump(config, default_flow_style=True).strip(),
        "data.num_prompts": "null",
        "grpo.max_num_epochs": "4",
        "async_rl.rollout_failure.max_data_attempts_per_prompt": "1",
        "async_rl.rollout_failure.max_skipped_prompts": "10000",
        "async_rl.rollout_failure.max_consecutive_dropped_prompts": "0",
    }


def left() -> list[str]:
    """Processes of verdicts, anywhere on this machine, of this test's verifiers."""
    return started("runtime.tasks.verdicts.process", str(USERS))


def wait_until_none_is_left() -> None:
    until_s = time.monotonic() + 60
    while left() and time.monotonic() < until_s:
        time.sleep(0.1)
    assert left() == []


def test_a_verifier_that_misbehaves_in_every_way_costs_the_groups_that_it_fails(model: Path, tmp_path: Path) -> None:
    path = lines(tmp_path / "data.jsonl", 200)
    held_out = lines(tmp_path / "held_out.jsonl", 60)
    settings = settings_of(
        {
            **overrides(path, "places", validation_path=str(held_out), verdict_timeout_s=5.0),
            "data.validation_size": "60",
            "validation.rollouts_per_prompt": "4",
            "grpo.use_dynamic_sampling": "false",
            "async_rl.rollout_failure.on_dropped_prompt": "shrink",
            "async_rl.rollout_failure.min_step_batch_fraction": "0.1",
            "grpo.num_prompts_per_step": "10",
            "cluster.reward_threads": "16",
        },
        steps=5,
    )
    told: list[Message] = []
    outcome = run(settings, model, tmp_path / "run", told.append)
    assert outcome.status == "completed", outcome.error
    assert len(outcome.closed) == 5
    assert adds_up(outcome.balance)
    assert outcome.worker_restarts == 0
    assert outcome.trace is not None
    failures = [event for event in events_of(outcome.trace) if isinstance(event, GroupFailed)]
    assert failures
    assert {failure.kind for failure in failures} == {FailureKind.DATA}
    assert all(f"{path}:" in failure.error for failure in failures)
    assert all("verifier 'wild_verifiers:places' " in failure.error for failure in failures)
    notices = [message.text for message in told if isinstance(message, Notice)]
    assert any(
        "held-out rollouts have no verdict after 0 steps, and count as wrong; one of them: " in n for n in notices
    )
    assert sum("prints: 'xxx" in notice for notice in notices) <= 1
    wait_until_none_is_left()


def test_a_verifier_that_hangs_in_the_first_validation_costs_the_accuracy_of_that(model: Path, tmp_path: Path) -> None:
    path = lines(tmp_path / "data.jsonl", 64)
    held_out = lines(tmp_path / "held_out.jsonl", 16, "hang")
    settings = settings_of(
        {
            **overrides(path, "hangs_where_told", validation_path=str(held_out), verdict_timeout_s=4.0),
            "data.validation_size": "16",
        },
        steps=2,
    )
    told: list[Message] = []
    killed: list[str] = []

    def kill_the_reward_worker_once(message: Message) -> None:
        told.append(message)
        if isinstance(message, Notice) and message.text.startswith("measuring accuracy") and not killed:
            worker = kill_actor(settings, "reward-0", for_good=False)
            assert worker is not None
            killed.append(worker)

    outcome = run(settings, model, tmp_path / "run", kill_the_reward_worker_once)
    assert killed
    assert outcome.status == "completed", outcome.error
    assert len(outcome.closed) == 2
    assert (outcome.accuracy_before, outcome.accuracy_after) == (0.0, 0.0)
    notices = [message.text for message in told if isinstance(message, Notice)]
    hung = [notice for notice in notices if "16 of 16 held-out rollouts have no verdict after 0 steps" in notice]
    assert len(hung) == 1
    assert f"{held_out}:" in hung[0]
    assert "gave no verdict within data.task.verdict_timeout_s = 4 s" in hung[0]
    assert "wild_verifiers.py:" in hung[0]
    wait_until_none_is_left()


def test_threads_that_never_end_keep_no_run_from_ending_and_prints_are_said_once(tmp_path: Path) -> None:
    given = {
        **overrides(lines(tmp_path / "data.jsonl", 64), "leaves_a_thread"),
        "data.validation_size": "4",
        "grpo.max_num_steps": "2",
        "grpo.num_prompts_per_step": "2",
        "grpo.num_generations_per_prompt": "4",
        "warmup.steps": "5",
    }
    train = "from runtime.cli.entry import main; main()"
    changes = [part for key, value in given.items() for part in ("--set", f"{key}={value}")]
    done = subprocess.run(
        [sys.executable, "-c", train, "train", "--output", str(tmp_path / "run"), *changes],
        cwd=USERS,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "10000"},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (done.stdout + done.stderr).count("verifier 'wild_verifiers:leaves_a_thread' prints: ") == 1
    wait_until_none_is_left()


TOLD = {
    "sleeps": "gave no verdict within data.task.verdict_timeout_s = 3 s (",
    "exits": "called os._exit (",
    "raises": "raised ZeroDivisionError: division by zero (",
    "allocates": "Unable to allocate 10.0 GiB",
    "nan": "returned nan",
}
"""By fault of `wild_verifiers.FAULTS`, what is told of it. One that only prints has a verdict."""


def with_faults(path: Path, good: int, letters: int) -> Path:
    """Lines of which every fault has one, first, with a prompt of so many letters."""
    lines(path, good)
    bad = [{"prompt": f"{fault[0] * letters}>", "answer": "", "fault": fault} for fault in ("prints", *TOLD)]
    path.write_text("".join(json.dumps(line) + "\n" for line in bad) + path.read_text())
    return path


def test_every_fault_costs_its_verdict_in_training_and_in_validation_and_explain_names_it(
    model: Path, tmp_path: Path
) -> None:
    path, held_out = with_faults(tmp_path / "data.jsonl", 26, 3), with_faults(tmp_path / "held_out.jsonl", 10, 4)
    settings = settings_of(
        {
            **overrides(path, "faulty", validation_path=str(held_out), verdict_timeout_s=3.0),
            "data.validation_size": "16",
            "grpo.max_num_epochs": "1",
            "grpo.use_dynamic_sampling": "false",
            "async_rl.rollout_failure.on_dropped_prompt": "shrink",
            "async_rl.rollout_failure.min_step_batch_fraction": "0.25",
            "cluster.reward_memory_mib": "1024",
        },
        steps=100,
    )
    told: list[Message] = []
    outcome = run(settings, model, tmp_path / "run", told.append)
    assert outcome.status == "completed", outcome.error
    assert outcome.worker_restarts == 0
    assert adds_up(outcome.balance)
    assert outcome.trace is not None
    failures = [event.error for event in events_of(outcome.trace) if isinstance(event, GroupFailed)]
    for fault, (at, says) in zip(TOLD, enumerate(TOLD.values(), 2), strict=True):
        assert any(f"{path}:{at}: " in why and says in why for why in failures), fault
    assert len(failures) == len(TOLD)
    assert sum(isinstance(each, Notice) and "prints: 'xxx" in each.text for each in told) == 1
    explained = CliRunner().invoke(app, ["explain", str(outcome.trace), "--json"])
    found = json.loads(explained.output)["failures"]
    for fault, says in TOLD.items():
        [kind] = [kind for kind in found if says in kind["newest"]]
        assert (kind["attempts"], kind["validations"] >= 1) == (1, True), fault
    shown = CliRunner().invoke(app, ["explain", str(outcome.trace)]).output
    assert "without a verdict" in shown
    wait_until_none_is_left()
