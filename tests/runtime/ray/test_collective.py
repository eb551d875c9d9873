"""A whole run on Ray whose weights are broadcast, and a worker that is killed in the middle of it."""

from pathlib import Path

from runtime.control.messages import Message, StepDone
from runtime.trace.replay import replay
from tests.runtime.ray.helpers import adds_up, kill_actor, run, settings_of

N = 4


def test_a_broadcast_goes_on_with_the_worker_that_takes_a_dead_ones_place(model: Path, tmp_path: Path) -> None:
    settings = settings_of({"weight_sync.name": "collective", "cluster.num_generation_workers": "2"}, steps=150)
    killed: list[int] = []

    def kill(message: Message) -> None:
        if isinstance(message, StepDone) and not killed:
            killed.append(message.record["step"])
            assert kill_actor(settings, "-generation-1.0") is not None

    outcome = run(settings, model, tmp_path, kill)
    assert killed
    assert outcome.status == "completed", outcome.error
    assert [step["selected"] for step in outcome.closed] == [N] * 150
    assert outcome.worker_restarts == 1
    assert adds_up(outcome.balance)
    assert outcome.trace is not None
    assert replay(outcome.trace).difference is None
