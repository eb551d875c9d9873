"""Real runs whose processes are killed or stopped complete by themselves as one run, or are gone with all they started.

`make process-table` does it for every process, signal and phase, and `tests/runtime/cluster` on a cluster that was
joined.
"""

import os
import re
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from runtime.launch.supervision.roles import Role
from runtime.output.restart_file import restart_said
from runtime.trace.reader import open_trace
from runtime.trace.replay import replay
from tests.chaos.live import LiveRun, Phase, left_by, one_of, started, summary_of, trained_prompts, wait_for_phase
from tests.runtime.ends.helpers import LIMIT_S
from tests.runtime.ray.helpers import adds_up

STEPS = 16
SHUTDOWN_S = 20.0
OVERRIDES: dict[str, Any] = {
    "grpo.max_num_steps": STEPS,
    "checkpointing.every_steps": 2,
    "cluster.max_run_restarts": 5,
    "cluster.frozen_timeout_s": 15,
    "data.delay": "{median_s: 0.3, sigma: 0.2, max_s: 1.0}",
    "data.validation_size": 0,
    "trace.flush_interval_s": 0.05,
}


def is_one_run(run: LiveRun, restarts: int) -> dict[str, Any]:
    """It completed, its balance adds up, and no prompt is in two of its steps."""
    said = "\n".join(run.lines)
    summary: dict[str, Any] | None = summary_of(run.output)
    assert summary is not None, said
    assert summary["status"] == "completed", said
    assert len(summary["run_restarts"]) == restarts, said
    assert summary["steps"] == STEPS
    assert [step["step"] for step in summary["closed"]] == list(range(STEPS))
    assert adds_up(summary["balance"])
    assert summary["balance"]["trained"] == 4 * STEPS
    assert max(Counter(prompt for step in trained_prompts(run.output).values() for prompt in step).values()) == 1
    assert replay(Path(summary["trace"])).difference is None
    restart = restart_said(restarts, OVERRIDES["cluster.max_run_restarts"]) if restarts else None
    assert open_trace(Path(summary["trace"])).header["restart"] == restart
    assert "Traceback" not in said
    assert left_by(run) == [], said
    return summary


@pytest.mark.parametrize(
    ("number", "roles"),
    [
        (signal.SIGKILL, (Role.TRAINER, Role.RAYLET)),
        (signal.SIGSTOP, (Role.TRAINER,)),
    ],
    ids=["killed", "stopped"],
)
def test_a_run_whose_processes_die_or_freeze_one_after_the_other_completes_as_one_run(
    number: signal.Signals, roles: tuple[Role, ...], tmp_path: Path
) -> None:
    with started(tmp_path / "run", overrides=OVERRIDES) as run:
        for times, role in enumerate(roles):
            run.wait_for(rf"^step {4 * (times + 1) - 1} ")
            os.kill(one_of(run, role), number)
            run.wait_for(r"the run is restarted", times + 1)
            run.wait_for("^resuming from ", times + 1)
        assert run.process.wait(LIMIT_S) == 0
        summary = is_one_run(run, len(roles))
    for role, why in zip(roles, summary["run_restarts"], strict=True):
        assert "resumes from checkpoint-" in why
        assert role is not Role.RAYLET or re.match(rf"{role} \(process \d+\) died", why)
        if number is signal.SIGSTOP:
            assert f"{role} (process" in why
            assert "has not run for" in why


def test_a_run_whose_driver_is_killed_is_gone_within_seconds_and_resumes(tmp_path: Path) -> None:
    with started(tmp_path / "run", overrides=OVERRIDES) as run:
        wait_for_phase(run, Phase.TRAINING)
        run.wait_for("^step 3 ")
        run.look()
        os.kill(run.process.pid, signal.SIGKILL)
        run.process.wait(LIMIT_S)
        deadline_s = time.monotonic() + SHUTDOWN_S
        while (left := left_by(run)) and time.monotonic() < deadline_s:
            time.sleep(0.1)
        assert left == []
    with started(tmp_path / "run", ["--resume"], overrides=OVERRIDES | {"grpo.max_num_steps": 6}) as run:
        assert run.process.wait(LIMIT_S) == 0, run.lines
        assert any(line.startswith("resuming from ") for line in run.lines)
