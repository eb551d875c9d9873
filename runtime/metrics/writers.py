"""Writers of metrics and samples: files of JSON lines; TensorBoard, Prometheus and W&B if configured.

Every line of metrics.jsonl has a `kind`: "step" with the fields of `runtime.metrics.step_record.StepRecord`, or
"validation" with `step` (the validated version), `time_s`, `accuracy`, and further fields of the caller. The validation
of a named set has its name in `set`; backends have its figures under validation/NAME/…. `incarnation` tells the
processes of a run apart, as in samples.jsonl.
"""

import json
import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from fsm.errors import ConfigError
from runtime.files import writing
from runtime.metrics.sample_table import markdown_table, rows_of_table
from runtime.wording import counted

METRICS_FILE = "metrics.jsonl"
SAMPLES_FILE = "samples.jsonl"
MOST_WAITING = 1_000
"""Lines of samples that are kept while the disk refuses them."""
Kind = Literal["step", "validation"]
_TENSORBOARD = ("logging to TensorBoard", "tensorboard")
_PROMETHEUS = ("serving Prometheus", "prometheus-client")
_WANDB = ("logging to W&B", "wandb")
"""A backend's purpose, and its package."""
_Served = Literal["step", "validation", "now"]
Record = Mapping[str, Any]


class MetricsBackendMissing(ConfigError):
    """A configured backend is not installed, or refuses. The message says what to do."""


def _import(module: str, what: str, package: str) -> Any:
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
    """A message for each configured backend that is not installed. Does not import any."""
    asked = (
        (tensorboard, "tensorboard", _TENSORBOARD),
        (prometheus_port is not None, "prometheus_client", _PROMETHEUS),
        (wandb_project is not None, "wandb", _WANDB),
    )
    return [_missing(*named, f"no module {module}") for on, module, named in asked if on and find_spec(module) is None]


class MetricsWriter(ABC):
    """Takes records, one at a time, in order of steps for each kind."""

    @abstractmethod
    def write(self, kind: Kind, record: Record) -> None:
        """Write one record, which has a `step`. Raises FileNotWritten, after which the next record may be written."""

    def show_samples(self, step: int, lines: Sequence[Record]) -> None:  # noqa: B027  # most writers need only the records
        """Lines of samples.jsonl that were completed by a step (`runtime.samples`). Raises FileNotWritten."""

    def stands(self, standing: Record) -> None:  # noqa: B027  # most writers need only the records
        """The run's current state, about once a second, for backends that serve the latest values."""

    @abstractmethod
    def close(self) -> None:
        """Write everything and close. Raises FileNotWritten."""


def open_writers(
    directory: Path,
    *,
    config: Mapping[str, Any],
    tensorboard: bool = False,
    prometheus_port: int | None = None,
    wandb_project: str | None = None,
    run_name: str | None = None,
    samples: bool = False,
    table_every_steps: int | None = None,
) -> list[MetricsWriter]:
    """metrics.jsonl in the run's `directory`, and the other configured writers.

    config: the resolved configuration, which W&B stores with the run.
    tensorboard: write event files to `directory`/tensorboard.
    prometheus_port: serve the latest values on this port of the loopback; 0 takes any free one.
    wandb_project: the project to log to; WANDB_MODE and `wandb login` determine where.
    run_name: for W&B; None lets W&B choose.
    samples: write samples.jsonl.
    table_every_steps: steps between two tables of samples in TensorBoard and W&B; None: no tables.
    Raises MetricsBackendMissing, FileNotWritten if metrics.jsonl or samples.jsonl cannot be opened, and OSError if the
    port is taken; then leaves nothing open.
    """
    writers: list[MetricsWriter] = []
    try:
        if tensorboard:
            writers.append(TensorBoardWriter(directory / "tensorboard", table_every_steps))
        if prometheus_port is not None:
            writers.append(PrometheusWriter(prometheus_port))
        if wandb_project is not None:
            writers.append(WandbWriter(directory, wandb_project, run_name, config, table_every_steps))
        if samples:
            writers.append(SamplesWriter(directory / SAMPLES_FILE))
        return [JsonlWriter(directory / METRICS_FILE), *writers]
    except BaseException:
        close_writers(writers)
        raise


def close_writers(writers: list[MetricsWriter]) -> None:
    """Close all, even if one fails; raise the first failure at the end."""
    failures: list[Exception] = []
    for writer in writers:
        try:
            writer.close()
        except Exception as error:
            failures.append(error)
    if failures:
        raise failures[0]


def scalars(record: Record) -> Iterator[tuple[str, float]]:
    """The numbers of a record by name, nested ones as outer/inner, without None and text."""
    for given, value in record.items():
        name = _encodable(given)
        if isinstance(value, Mapping):
            yield from ((f"{name}/{inner}", number) for inner, number in scalars(value))
        elif isinstance(value, int | float):
            yield name, float(value)


def _encodable(name: str) -> str:
    """A name as backends take it: users choose some, and a lone surrogate has no UTF-8."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8")


def _prefix(kind: Kind, record: Record) -> str:
    """What the names of a record's figures begin with."""
    return f"{kind}/{_encodable(record['set'])}" if "set" in record else kind


def tags(kind: Kind, record: Record) -> Iterator[tuple[str, float]]:
    """The numbers of a record as charts name them: step/loss, step/reward/NAME for the parts of the reward."""
    for name, value in scalars(record):
        if name != "step":
            yield f"{_prefix(kind, record)}/{name.replace('reward_parts/', 'reward/', 1)}", value


class JsonlWriter(MetricsWriter):
    """One JSON line a record, written at once. A resumed run appends to the file.

    Lines that the disk refuses are kept and written before the next one. The file never ends with half a line, and the
    half that a killed writer left is ended.
    """

    def __init__(self, path: Path, most_waiting: int | None = None) -> None:
        """most_waiting: lines that are kept while the disk refuses them, the newest; None: all."""
        self._path = path
        with writing(path, "the run has not started"):
            torn = _last_byte(path) not in (b"", b"\n")
            self._file = path.open("ab", buffering=0)
        self._waiting = deque([b"\n"] if torn else [], most_waiting)
        """Lines that are not yet in the file."""

    def write(self, kind: Kind, record: Record) -> None:
        self.append({"kind": kind, **record})

    def append(self, *lines: Record) -> None:
        """Write lines. Raises FileNotWritten."""
        self._waiting += [json.dumps(line).encode("ascii") + b"\n" for line in lines]
        with writing(self._path, "the run continues, and keeps its lines until the disk accepts them"):
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

    def close(self) -> None:
        try:
            lost = f"it lacks its last {counted(len(self._waiting), 'line')}, and those before are whole"
            with writing(self._path, lost):
                self._write_out()
        finally:
            self._file.close()


def _last_byte(path: Path) -> bytes:
    """Of a plain file; nothing of an empty or missing one, or of a device."""
    if not path.is_file() or not path.stat().st_size:
        return b""
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read()


class SamplesWriter(MetricsWriter):
    """samples.jsonl. Of the lines that the disk refuses it keeps the newest: texts would fill the memory."""

    def __init__(self, path: Path) -> None:
        self._file = JsonlWriter(path, MOST_WAITING)

    def write(self, kind: Kind, record: Record) -> None:
        pass  # metrics are in their own file

    def show_samples(self, step: int, lines: Sequence[Record]) -> None:
        self._file.append(*lines)

    def close(self) -> None:
        self._file.close()


class TensorBoardWriter(MetricsWriter):
    """Scalars named step/…, validation/… and validation/SET/…; now and then a table of samples, as text."""

    def __init__(self, directory: Path, table_every_steps: int | None = None) -> None:
        self._table_every_steps = table_every_steps
        module = _import("torch.utils.tensorboard", *_TENSORBOARD)
        self._directory = directory
        with writing(directory, "the run has not started"):
            self._writer = module.SummaryWriter(log_dir=str(directory))

    def write(self, kind: Kind, record: Record) -> None:
        with writing(self._directory, "the run continues, and metrics.jsonl has the same figures"):
            for tag, value in tags(kind, record):
                self._writer.add_scalar(tag, value, global_step=record["step"])

    def show_samples(self, step: int, lines: Sequence[Record]) -> None:
        if rows := rows_of_table(step, lines, self._table_every_steps):
            with writing(self._directory, "the run continues, and samples.jsonl has the same samples"):
                self._writer.add_text("samples", markdown_table(rows), global_step=step)

    def close(self) -> None:
        with writing(self._directory, "metrics.jsonl has the same figures"):
            self._writer.close()


class PrometheusWriter(MetricsWriter):
    """The latest values as gauges, served on the loopback alone: evenstep_step_reward, evenstep_validation_accuracy.

    Nested values have a label: evenstep_step_worker_idle_share{name="worker-0"}, those of a named set another:
    evenstep_validation_accuracy{set="maths"}. The run's current state is
    evenstep_now_in_flight and so on, for alerts on a run that hangs.
    """

    def __init__(self, port: int) -> None:
        self._client = _import("prometheus_client", *_PROMETHEUS)
        self._registry = self._client.CollectorRegistry()
        self._gauges: dict[str, Any] = {}
        self._server, self._thread = self._client.start_http_server(port, addr="127.0.0.1", registry=self._registry)
        self.port: int = self._server.server_port
        """The port that it serves on."""

    def write(self, kind: Kind, record: Record) -> None:
        self._serve(kind, record)

    def stands(self, standing: Record) -> None:
        self._serve("now", standing)

    def _serve(self, kind: _Served, record: Record) -> None:
        for path, value in scalars(record):
            outer, _, inner = path.partition("/")
            name = f"evenstep_{kind}" if outer == "step" else f"evenstep_{kind}_{outer}"
            of_set = {"set": _encodable(record["set"])} if "set" in record else {}
            labels = {**of_set, **({"name": inner} if inner else {})}
            gauge = self._gauges.get(name)
            if gauge is None:
                text = f"{outer} of the latest {kind}"
                gauge = self._client.Gauge(name, text, list(labels), registry=self._registry)
                self._gauges[name] = gauge
            (gauge.labels(**labels) if labels else gauge).set(value)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class WandbWriter(MetricsWriter):
    """A W&B run. Its x-axis is our step, so that a validation may arrive after the records of later steps."""

    def __init__(
        self,
        directory: Path,
        project: str,
        name: str | None,
        config: Mapping[str, Any],
        table_every_steps: int | None = None,
    ) -> None:
        module = _import("wandb", *_WANDB)
        self._module = module
        self._table_every_steps = table_every_steps
        try:
            self._run = module.init(project=project, name=name, dir=str(directory), config=dict(config))
        except module.Error as error:
            raise MetricsBackendMissing(
                f"W&B refuses the project {project!r}: {error} Log in (wandb login), set WANDB_MODE=offline, or set "
                "logger.wandb_project to null"
            ) from error
        self._run.define_metric("*", step_metric="step")

    def write(self, kind: Kind, record: Record) -> None:
        self._run.log({"step": record["step"], **dict(tags(kind, record))})

    def show_samples(self, step: int, lines: Sequence[Record]) -> None:
        if rows := rows_of_table(step, lines, self._table_every_steps):
            table = self._module.Table(columns=list(rows[0]), data=[list(row.values()) for row in rows])
            self._run.log({"step": step, "samples": table})

    def close(self) -> None:
        self._run.finish()
