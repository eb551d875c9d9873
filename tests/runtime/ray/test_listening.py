"""A private cluster listens on the loopback alone, whatever the run uses."""

import importlib.util
import socket
from pathlib import Path

from runtime.control.messages import Message, StepDone
from runtime.launch.processes import descendants
from tests.runtime.ray.helpers import ON_POLICY, run, settings_of
from tests.runtime.ray.listening import Listening, listening


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening_socket:
        port: int = listening_socket.getsockname()[1]
        return port


def test_during_a_run_every_process_listens_on_the_loopback_alone(model: Path, tmp_path: Path) -> None:
    """With two trainer ranks over gloo, a broadcast of weights, and metrics served where the extra is installed."""
    found: set[Listening] = set()

    def look(message: Message) -> None:
        if isinstance(message, StepDone):
            found.update(listening(process.pid for process in descendants()))

    port = free_port() if importlib.util.find_spec("prometheus_client") else None
    given = {
        **ON_POLICY,
        "cluster.num_trainer_ranks": "2",
        "weight_sync.name": "collective",
        "logger.prometheus_port": "null" if port is None else str(port),
    }
    outcome = run(settings_of(given, steps=3), model, tmp_path, look)
    assert outcome.status == "completed", outcome.error
    assert [each for each in found if not each.on_the_loopback] == []
    assert len({each.process.split(" ")[0] for each in found if each.process}) >= 2, "Ray's own processes and workers"
    assert port is None or port in {each.port for each in found}
