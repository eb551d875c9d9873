"""Which errors are infrastructure's, and how Ray's long texts are told in a line."""

import traceback
from pathlib import Path

import pytest
from ray.core.generated.common_pb2 import ActorDiedErrorContext
from ray.exceptions import (
    ActorDiedError,
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayError,
    RayTaskError,
    RuntimeEnvSetupError,
    TaskUnschedulableError,
    WorkerCrashedError,
)

from fsm.errors import InvariantBroken, SamplerError, Stalled
from runtime.control.failures import failure_of
from runtime.files import FileNotWritten

KILLED = (
    "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker "
    "unexpectedly exits with a connection error code 2. End of file. Some common causes include: (1) the process was "
    "killed by the OOM killer due to high memory usage, (2) ray stop --force was called"
)


def died(name: str = "run-1-trainer-0") -> ActorDiedError:
    context = ActorDiedErrorContext(
        error_message=KILLED,
        actor_id=b"\1" * 16,
        class_name="TrainerRank",
        pid=7,
        name=name,
        node_ip_address="127.0.0.1",
    )
    return ActorDiedError(context)


def test_a_dead_actor_is_told_in_a_line_without_a_traceback() -> None:
    failure = failure_of(died())
    assert failure.infra
    assert failure.traceback is None
    assert failure.says == (
        "actor run-1-trainer-0 died: Worker unexpectedly exits with a connection error code 2. End of file."
    )


LOW = (
    "Task was killed due to the node running low on memory.\nMemory on the node (IP: 127.0.0.1, ID: e5d9) where the "
    "task (task ID: 1, name=prepare, pid=7, memory used=0.13GB) was running was 27.23GB / 28.00GB (0.972603), which "
    "exceeds the memory usage threshold of 0.95.\n" + "PID\tMEM(GB)\tCOMMAND\n" * 60
)
NEW_LOW = (
    "1 worker(s) were killed due to the node running low on memory.\n"
    "Memory on the node (IP: 127.0.0.1, ID: e5d9) was 27.23GB used / 28.00GB limit (0.97)\n" + "hint\n" * 60
)


@pytest.mark.parametrize(
    "error",
    [OutOfMemoryError(LOW), OutOfMemoryError(NEW_LOW), RayTaskError("run", LOW, OutOfMemoryError(LOW)), RayError(LOW)],
)
def test_a_process_that_ray_killed_for_memory_is_told_in_a_line_with_the_figures(error: Exception) -> None:
    failure = failure_of(error)
    assert failure.infra
    assert failure.traceback is None
    assert failure.says.startswith("the machine ran out of memory (27.23 of 28.00 GB used), and Ray killed a process")
    assert "--resume" in failure.says
    assert len(failure.says) < 400
    assert "\n" not in failure.says


def test_a_death_that_passed_through_other_actors_is_still_one() -> None:
    """Ray cannot send its own error any further, and sends its text instead."""
    told = "".join(traceback.format_exception(died()))
    wrapped = RayTaskError("run", told, died()).as_instanceof_cause()
    failure = failure_of(wrapped)
    assert failure.infra
    assert failure.says.startswith("actor run-1-trainer-0 died")


@pytest.mark.parametrize(
    "error", [NodeDiedError("node 1 is gone"), WorkerCrashedError(), ObjectLostError("0" * 56, "127.0.0.1:1", "put")]
)
def test_lost_nodes_workers_and_objects_are_infrastructure(error: Exception) -> None:
    assert failure_of(error).infra


@pytest.mark.parametrize(
    "error",
    [
        ValueError("a defect"),
        InvariantBroken("selected + charged"),
        SamplerError("it raised"),
        Stalled("no progress"),
        FileNotWritten(Path("x"), "No space left", "nothing is kept"),
        ActorDiedError(RayTaskError("__init__", "traceback", ValueError("in a constructor"))),
        RuntimeEnvSetupError("pip"),
        TaskUnschedulableError("no such node"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_would_come_again_is_not(error: Exception) -> None:
    assert not failure_of(error).infra
