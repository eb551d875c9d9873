"""Where metrics go: JSON lines, Prometheus, TensorBoard and W&B."""

import json
import sys
import types
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from fsm.errors import ConfigError
from runtime.launch.run import check_run
from runtime.metrics.writers import (
    METRICS_FILE,
    MetricsBackendMissing,
    PrometheusWriter,
    close_writers,
    open_writers,
    scalars,
)
from runtime.settings import load_settings


def test_metrics_are_json_lines_that_a_resumed_run_goes_on_with(tmp_path: Path) -> None:
    for step in (0, 1):
        [writer] = open_writers(tmp_path, config={})
        writer.write("step", {"step": step, "reward": None, "gate": "open"})
        writer.write("validation", {"step": step, "accuracy": 0.5})
        writer.close()
    lines = [json.loads(line) for line in (tmp_path / METRICS_FILE).read_text().splitlines()]
    assert [(line["kind"], line["step"]) for line in lines] == [
        ("step", 0),
        ("validation", 0),
        ("step", 1),
        ("validation", 1),
    ]
    assert lines[0]["reward"] is None


def test_numbers_are_flattened_and_text_and_none_left_out() -> None:
    record = {"step": 3, "kl": None, "gate": "open", "worker_idle_share": {"a": 0.25}, "ready": 2}
    assert dict(scalars(record)) == {"step": 3.0, "worker_idle_share/a": 0.25, "ready": 2.0}


def test_prometheus_serves_the_latest_values_on_the_loopback() -> None:
    writer = PrometheusWriter(0)
    try:
        writer.write("step", {"step": 1, "reward": 0.25, "worker_idle_share": {"worker-0": 0.5}})
        writer.write("step", {"step": 2, "reward": 0.75, "worker_idle_share": {"worker-0": 0.25}})
        writer.write("validation", {"step": 2, "accuracy": 0.5, "reward_parts": {"length": -3.5}})
        with urllib.request.urlopen(f"http://127.0.0.1:{writer.port}/metrics", timeout=10) as answer:
            served = answer.read().decode()
        assert writer._server.server_address[0] == "127.0.0.1"
    finally:
        writer.close()
    assert "evenstep_step 2.0" in served
    assert "evenstep_step_reward 0.75" in served
    assert 'evenstep_step_worker_idle_share{name="worker-0"} 0.25' in served
    assert "evenstep_validation_accuracy 0.5" in served
    assert 'evenstep_validation_reward_parts{name="length"} -3.5' in served


def test_prometheus_serves_the_sets_of_a_validation_under_one_name() -> None:
    writer = PrometheusWriter(0)
    try:
        for name, accuracy in (("maths", 0.75), ("code", 0.25)):
            writer.write("validation", {"step": 2, "set": name, "accuracy": accuracy, "pass_at_k": {"8": 0.875}})
        with urllib.request.urlopen(f"http://127.0.0.1:{writer.port}/metrics", timeout=10) as answer:
            served = answer.read().decode()
    finally:
        writer.close()
    assert 'evenstep_validation_accuracy{set="maths"} 0.75' in served
    assert 'evenstep_validation_accuracy{set="code"} 0.25' in served
    assert 'evenstep_validation_pass_at_k{name="8",set="maths"} 0.875' in served


@pytest.mark.parametrize(
    ("module", "asked", "package"),
    [
        ("torch.utils.tensorboard", {"tensorboard": True}, "tensorboard"),
        ("prometheus_client", {"prometheus_port": 0}, "prometheus-client"),
        ("wandb", {"wandb_project": "p"}, "wandb"),
    ],
)
def test_a_backend_that_is_not_installed_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, asked: dict[str, Any], package: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MetricsBackendMissing, match=f"pip install {package}"):
        open_writers(tmp_path, config={}, **asked)
    assert not (tmp_path / METRICS_FILE).exists()


def test_a_backend_that_is_not_installed_is_missed_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.metrics.writers.find_spec", lambda _: None)
    settings = load_settings(None, ["logger.wandb_project=p"])
    with pytest.raises(ConfigError, match="pip install wandb"):
        check_run(settings, tmp_path / "run", resume=False)


def test_wandb_that_is_not_logged_in_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Refused(Exception):
        pass

    def init(**_: Any) -> None:
        raise Refused("No API key configured.")

    wandb_module = types.ModuleType("wandb")
    monkeypatch.setattr(wandb_module, "Error", Refused, raising=False)
    monkeypatch.setattr(wandb_module, "init", init, raising=False)
    monkeypatch.setitem(sys.modules, "wandb", wandb_module)
    with pytest.raises(MetricsBackendMissing, match=r"No API key.*WANDB_MODE=offline"):
        open_writers(tmp_path, config={}, wandb_project="p")


class Called:
    """Stands in for a backend: remembers what it is called with."""

    def __init__(self, calls: list[Any], *given: Any, **named: Any) -> None:
        self.calls = calls
        calls.append((given, named))

    def __getattr__(self, name: str) -> Any:
        return lambda *given, **named: self.calls.append((name, given, named))


def test_tensorboard_and_wandb_are_given_every_number_under_its_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    board: list[Any] = []
    wandb: list[Any] = []
    tensorboard_module, wandb_module = types.ModuleType("torch.utils.tensorboard"), types.ModuleType("wandb")
    monkeypatch.setattr(tensorboard_module, "SummaryWriter", lambda **named: Called(board, **named), raising=False)
    monkeypatch.setattr(wandb_module, "init", lambda **named: Called(wandb, **named), raising=False)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", tensorboard_module)
    monkeypatch.setitem(sys.modules, "wandb", wandb_module)
    writers = open_writers(tmp_path, config={"seed": 1}, tensorboard=True, wandb_project="p", run_name="r")
    for writer in writers:
        writer.write("step", {"step": 4, "reward": 0.5, "reward_parts": {"length": -0.25}})
        writer.write("validation", {"step": 4, "set": "maths", "accuracy": 0.75})
    close_writers(writers)
    assert board[1:] == [
        ("add_scalar", ("step/reward", 0.5), {"global_step": 4}),
        ("add_scalar", ("step/reward/length", -0.25), {"global_step": 4}),
        ("add_scalar", ("validation/maths/accuracy", 0.75), {"global_step": 4}),
        ("close", (), {}),
    ]
    assert wandb[0][1] == {"project": "p", "name": "r", "dir": str(tmp_path), "config": {"seed": 1}}
    assert wandb[2:] == [
        ("log", ({"step": 4, "step/reward": 0.5, "step/reward/length": -0.25},), {}),
        ("log", ({"step": 4, "validation/maths/accuracy": 0.75},), {}),
        ("finish", (), {}),
    ]


def test_a_name_that_no_encoding_has_ends_no_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    board: list[Any] = []
    module = types.ModuleType("torch.utils.tensorboard")
    monkeypatch.setattr(module, "SummaryWriter", lambda **named: Called(board, **named), raising=False)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    writers = open_writers(tmp_path, config={}, tensorboard=True, prometheus_port=0)
    for writer in writers:
        writer.write("step", {"step": 4, "reward_parts": {"a\ud800": 1.0}})
        writer.write("validation", {"step": 4, "set": "b\ud800", "accuracy": 0.5})
    [prometheus] = [writer for writer in writers if isinstance(writer, PrometheusWriter)]
    with urllib.request.urlopen(f"http://127.0.0.1:{prometheus.port}/metrics") as answer:
        assert b"d800" in answer.read()
    close_writers(writers)
    assert [given[0] for _, given, _ in board[1:-1]] == [r"step/reward/a\ud800", r"validation/b\ud800/accuracy"]
