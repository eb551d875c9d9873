"""`evenstep status` and `explain --run` ask a run that is there, from another process."""

import json
import subprocess
import sys
import threading
from pathlib import Path

import ray

from runtime.control.messages import Message
from runtime.explain.live import Standing
from runtime.output.cluster_file import LivePlace, noted_in
from runtime.output.directory import alone_in
from tests.runtime.ray.helpers import run, settings_of


def asked(*arguments: str) -> subprocess.CompletedProcess[str]:
    return told(*arguments, "--address", ray.get_runtime_context().gcs_address)


def told(*arguments: str) -> subprocess.CompletedProcess[str]:
    code = "from runtime.cli.entry import main; main()"
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_live_run_says_where_it_stands_and_what_it_waits_for(model: Path, tmp_path: Path) -> None:
    stands = threading.Event()

    def listener(message: Message) -> None:
        if isinstance(message, Standing):
            stands.set()

    settings = settings_of({}, steps=10_000)
    over: list[object] = []
    thread = threading.Thread(target=lambda: over.append(run(settings, model, tmp_path / "run", listener)))
    thread.start()
    try:
        assert stands.wait(90)
        name = next(a["name"] for a in ray.util.list_named_actors(all_namespaces=True) if "controller" in a["name"])
        name = name.removesuffix("-controller")
        status = asked("status", "--run", name, "--json")
        place = LivePlace(name, ray.get_runtime_context().gcs_address, settings.cluster.namespace)
        with alone_in(tmp_path / "run"), noted_in(tmp_path / "run", place, print):
            by_directory = told("status", str(tmp_path / "run"), "--json")
        explained = asked("explain", "--run", name, "--json")
        unknown = asked("status", "--run", "yesterday")
        ray.get(ray.get_actor(f"{name}-controller", namespace=settings.cluster.namespace).interrupt.remote())
    finally:
        thread.join(60)
    assert not thread.is_alive()
    assert status.returncode == 0, status.stderr
    assert json.loads(status.stdout)["size"] == 4
    assert by_directory.returncode == 0, by_directory.stderr
    assert json.loads(by_directory.stdout)["size"] == 4
    assert explained.returncode == 0, explained.stderr
    assert json.loads(explained.stdout)["verdict"] in ("healthy", "slow", "completed")
    assert unknown.returncode == 1
    assert "Ray has no run yesterday" in unknown.stderr
