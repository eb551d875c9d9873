"""The `trace:` block of the configuration."""

from __future__ import annotations

from pydantic import Field

from fsm.config.strict import Strict


class TraceConfig(Strict):
    """The trace of a run."""

    enabled: bool = Field(
        default=True, description="Write trace.jsonl; without, the last records are kept in memory only."
    )
    flush_interval_s: float = Field(
        default=0.5, gt=0, le=1.0, description="A process that is killed loses the records of so many seconds at most."
    )
    snapshot_every: int = Field(
        default=4096, ge=1, description="Records between two snapshots of the state, which readers start from."
    )
    max_bytes: int | None = Field(
        default=64 * 2**20, ge=4096, description="A file that has grown so large is rotated; null: never."
    )
    compress: bool = Field(default=True, description="Compress rotated files with gzip.")
    ring_records: int = Field(
        default=4096,
        ge=1,
        description="Last records kept in memory, written to a file when the watchdog fires or on SIGUSR1.",
    )
