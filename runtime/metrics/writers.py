"""Where metrics go: a file of JSON lines always, TensorBoard, Prometheus and W&B when asked.

Every line of metrics.jsonl has a `kind`: "step" with the fields of `runtime.metrics.accumulator.StepRecord`, or
"validation" with `step` (the version that was validated), `time_s`, `accuracy`, and what else the caller gives.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Protocol

from fsm.errors import ConfigError
from runtime.files.unwritten import writing

METRICS_FILE = "metrics.jsonl"
Kind = Literal["step", "validation"]
_TENSORBOARD = ("logging to TensorBoard", "tensorboard")
_PROMETHEUS = ("serving Prometheus", "prometheus-client")
_WANDB = ("logging to W&B", "wandb")
"""What it is for, and its package."""
_Served = Literal["step", "validation", "now"]
Record = Mapping[str, Any]


class MetricsBackendMissing(ConfigError):
    """A backend was asked for that is not installed, or refuses. The message says what to do."""


def _import(module: str, what: str, package: str) -> Any:
    """A module of an optional package. Raises MetricsBackendMissing."""
    try:
        return import_module(module)
    except ImportError as error:
        raise MetricsBackendMissing(_missing(what, package, str(error))) from error


def _missing(what: str, package: str, why: str) -> str:
    return (
        f"{what} needs the package {package}, which cannot be imported ({why}); install it "
        f"(pip install {package}), or turn {what} off"
    )


def missing_backends(*, tensorboard: bool, prometheus_port: int | None, wandb_project: str | None) -> list[str]:
    """What is asked for and not installed, found without importing it: what is missing and what to do."""
    asked = (
        (tensorboard, "tensorboard", _TENSORBOARD),
        (prometheus_port is not None, "prometheus_client", _PROMETHEUS),
        (wandb_project is not None, "wandb", _WANDB),
    )
    return [_missing(*named, f"no module {module}") for on, module, named in asked if on and find_spec(module) is None]


class MetricsWriter(Protocol):
    """Takes records, one at a time, in order of steps for each kind."""

    def write(self, kind: Kind, record: Record) -> None:
        """One record; it has a `step`. Raises FileNotWritten, after which the next record may be written."""

    def stands(self, standing: Record) -> None:
        """Where the run stands, about once a second; of use where the latest values are served."""

    def close(self) -> None:
        """Everything is written, and what was opened is closed. Raises FileNotWritten."""


def open_writers(
    directory: Path,
    *,
    config: Mapping[str, Any],
    tensorboard: bool = False,
    prometheus_port: int | None = None,
    wandb_project: str | None = None,
    run_name: str | None = None,
) -> list[MetricsWriter]:
    """metrics.jsonl in `directory`, and the others that are asked for.

    Args:
        directory: Of the run.
        config: Resolved; W&B keeps it beside the run.
        tensorboard: Write event files to `directory`/tensorboard.
        prometheus_port: Serve the latest values on this port of the loopback; 0 takes any free one.
        wandb_project: The project to log to. Where it goes is W&B's own affair (WANDB_MODE, `wandb login`).
        run_name: For W&B; None lets it choose.

    Raises:
        MetricsBackendMissing: A package is missing; the message says what to install. Nothing is left open.
        FileNotWritten: metrics.jsonl can't be opened.
        OSError: The port is taken.
    """
    writers: list[MetricsWriter] = []
    try:
        if tensorboard:
            writers.append(TensorBoardWriter(directory / "tensorboard"))
        if prometheus_port is not None:
            writers.append(PrometheusWriter(prometheus_port))
        if wandb_project is not None:
            writers.append(WandbWriter(directory, wandb_project, run_name, config))
        return [JsonlWriter(directory / METRICS_FILE), *writers]
    except BaseException:
        close_writers(writers)
        raise


def close_writers(writers: list[MetricsWriter]) -> None:
    """Close each, also where one of them fails; raise the first failure at the end."""
    failures: list[Exception] = []
    for writer in writers:
        try:
            writer.close()
        except Exception as error:
            failures.append(error)
    if failures:
        raise failures[0]


def scalars(record: Record) -> Iterator[tuple[str, float]]:
    """The numbers of a record by name, nested ones as outer/inner; what is None or text is left out."""
    for name, value in record.items():
        if isinstance(value, Mapping):
            yield from ((f"{name}/{inner}", number) for inner, number in scalars(value))
        elif isinstance(value, int | float):
            yield name, float(value)


class JsonlWriter:
    """One JSON line a record, written at once, appended to what a resumed run finds.

    Lines that the disk refuses are kept, and written before the next one; the file never ends in half a line.
    """

    def __init__(self, path: Path) -> None:
        """Raises FileNotWritten."""
        self._path = path
        with writing(path, "the run has not begun"):
            self._file = path.open("ab", buffering=0)
        self._waiting: list[bytes] = []
        """Lines that are not in the file."""

    def write(self, kind: Kind, record: Record) -> None:
        """See MetricsWriter."""
        line = json.dumps({"kind": kind, **record}, ensure_ascii=False) + "\n"
        self._waiting.append(line.encode("utf-8", "surrogateescape"))
        with writing(self._path, "the run goes on, and its lines are kept until the disk takes them"):
            self._write_out()

    def _write_out(self) -> None:
        while self._waiting:
            rest = memoryview(self._waiting[0])
            whole = os.fstat(self._file.fileno()).st_size
            try:
                while rest:  # the system may take a part before it refuses the rest
                    rest = rest[self._file.write(rest) :]
            except OSError:
                with suppress(OSError):  # a device has no length
                    self._file.truncate(whole)
                raise
            del self._waiting[0]

    def stands(self, standing: Record) -> None:
        """Nothing: a step's record has what is kept."""

    def close(self) -> None:
        """See MetricsWriter."""
        try:
            lost = f"{len(self._waiting)} lines of it are lost, and those before are whole"
            with writing(self._path, lost):
                self._write_out()
        finally:
            self._file.close()


class TensorBoardWriter:
    """Scalars named step/… and validation/…"""

    def __init__(self, directory: Path) -> None:
        module = _import("torch.utils.tensorboard", *_TENSORBOARD)
        self._directory = directory
        with writing(directory, "the run has not begun"):
            self._writer = module.SummaryWriter(log_dir=str(directory))

    def write(self, kind: Kind, record: Record) -> None:
        """See MetricsWriter."""
        with writing(self._directory, "the run goes on, and metrics.jsonl has the same figures"):
            for name, value in scalars(record):
                if name != "step":
                    self._writer.add_scalar(f"{kind}/{name}", value, global_step=record["step"])

    def stands(self, standing: Record) -> None:
        """Nothing: a step's record has what is kept."""

    def close(self) -> None:
        """See MetricsWriter."""
        with writing(self._directory, "metrics.jsonl has the same figures"):
            self._writer.close()


class PrometheusWriter:
    """The latest values as gauges, served on the loopback alone: evenstep_step_reward, evenstep_validation_accuracy.

    What is nested has a label: evenstep_step_worker_idle_share{name="worker-0"}. Where the run stands is
    evenstep_now_in_flight and so on, which an alert on a run that hangs is made from.
    """

    def __init__(self, port: int) -> None:
        self._client = _import("prometheus_client", *_PROMETHEUS)
        self._registry = self._client.CollectorRegistry()
        self._gauges: dict[str, Any] = {}
        self._server, self._thread = self._client.start_http_server(port, addr="127.0.0.1", registry=self._registry)
        self.port: int = self._server.server_port
        """Where it is served; of use when any free one was asked for."""

    def write(self, kind: Kind, record: Record) -> None:
        """See MetricsWriter."""
        self._serve(kind, record)

    def stands(self, standing: Record) -> None:
        """See MetricsWriter."""
        self._serve("now", standing)

    def _serve(self, kind: _Served, record: Record) -> None:
        for path, value in scalars(record):
            outer, _, inner = path.partition("/")
            name = f"evenstep_{kind}" if outer == "step" else f"evenstep_{kind}_{outer}"
            gauge = self._gauges.get(name)
            if gauge is None:
                labels = ["name"] if inner else []
                gauge = self._client.Gauge(name, f"{outer} of the latest {kind}", labels, registry=self._registry)
                self._gauges[name] = gauge
            (gauge.labels(inner) if inner else gauge).set(value)

    def close(self) -> None:
        """See MetricsWriter."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class WandbWriter:
    """A W&B run; its x-axis is our step, so that a validation may come later than the records of later steps."""

    def __init__(self, directory: Path, project: str, name: str | None, config: Mapping[str, Any]) -> None:
        module = _import("wandb", *_WANDB)
        try:
            self._run = module.init(project=project, name=name, dir=str(directory), config=dict(config))
        except module.Error as error:
            raise MetricsBackendMissing(
                f"W&B refuses the project {project!r}: {error} Log in (wandb login), set WANDB_MODE=offline, or leave "
                f"logger.wandb_project out"
            ) from error
        self._run.define_metric("*", step_metric="step")

    def write(self, kind: Kind, record: Record) -> None:
        """See MetricsWriter."""
        values = {f"{kind}/{name}": value for name, value in scalars(record) if name != "step"}
        self._run.log({"step": record["step"], **values})

    def stands(self, standing: Record) -> None:
        """Nothing: a step's record has what is kept."""

    def close(self) -> None:
        """See MetricsWriter."""
        self._run.finish()
