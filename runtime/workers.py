"""Generation workers in the configuration: how many, when one is replaced, and what deadlines its calls have."""

from typing import Self

from pydantic import Field, model_validator

from fsm.config.plain import LONGEST_S
from fsm.config.strict import Strict


class WorkersConfig(Strict):
    """A part of the `cluster:` block."""

    num_generation_workers: int = Field(default=1, ge=1, description="Generation workers.")
    max_worker_restarts: int = Field(
        default=16,
        ge=0,
        description="Restarts of generation workers within restart_window_s; one more ends the run with the error.",
    )
    restart_window_s: float | None = Field(
        default=3600.0, gt=0, le=LONGEST_S, description="Window in which restarts are counted; null: the whole run."
    )
    min_healthy_workers: int = Field(
        default=1,
        ge=1,
        description="Generation workers below which the run ends with an error, once that has lasted for twice the "
        "deadline of a start.",
    )
    probe_interval_s: float = Field(
        default=5.0,
        gt=0,
        le=LONGEST_S,
        description="Time between two probes of each generation worker, reward worker and store.",
    )
    probe_timeout_s: float = Field(
        default=60.0,
        gt=0,
        le=LONGEST_S,
        description="A process that has not answered a probe for so long is killed and restarted, whatever it "
        "computes: probes have a thread of their own.",
    )
    hang_timeout_s: float = Field(
        default=300.0,
        gt=0,
        le=LONGEST_S,
        description="A generation worker whose event loop has stood still for so long is restarted, though its process "
        "answers. One step of the torch engine and one load of weights must be shorter.",
    )
    quarantine_after_failures: int | None = Field(
        default=8,
        ge=1,
        description="Attempts that fail in a row on one generation worker, by what may be its fault, while others' "
        "finish, after which it is restarted; null: no number does.",
    )
    start_timeout_s: float | None = Field(
        default=None,
        gt=0,
        le=LONGEST_S,
        description="Deadline for a generation worker to start its engine; null: 5 times what is usual in the run, at "
        "least 1,800 s. A worker that misses it is restarted.",
    )
    sync_timeout_s: float | None = Field(
        default=None,
        gt=0,
        le=LONGEST_S,
        description="Deadline for publishing weights, and for a generation worker to load them from the object store; "
        "null: 10 times what is usual in the run, at least 900 s. A worker that misses it is restarted; after "
        "a trainer that does, the run is.",
    )
    train_timeout_s: float | None = Field(
        default=None,
        gt=0,
        le=LONGEST_S,
        description="Deadline for the trainer to finish a chunk, an optimizer step or a copy for a checkpoint; null: "
        "10 times what is usual in the run, at least 3,600 s. After one that is missed the run is restarted.",
    )

    @model_validator(mode="after")
    def _enough_workers(self) -> Self:
        """`cluster.min_healthy_workers` above `cluster.num_generation_workers`."""
        if self.min_healthy_workers > self.num_generation_workers:
            raise ValueError(
                f"min_healthy_workers is {self.min_healthy_workers}, and num_generation_workers is "
                f"{self.num_generation_workers}: lower the former or raise the latter"
            )
        return self
