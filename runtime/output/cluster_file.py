"""`cluster.json` in a run's directory while it runs: the Ray cluster that it is on, for `evenstep status`.

It is no part of `run.json`, which the run has locked: a file that is replaced is not locked any more.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from runtime.files import FileNotWritten, refuse_not_plain, write_json_aside, writing
from runtime.output.directory import CLUSTER


class LivePlace(NamedTuple):
    """Where a live run is reached."""

    run: str
    """Its cluster.run_name, or the name that it was given."""
    address: str
    """Of the cluster's GCS, as host:port."""
    namespace: str


@contextmanager
def noted_in(output: Path, place: LivePlace, tell: Callable[[str], None]) -> Iterator[None]:
    """Note where a run is reached, until its end. A disk that refuses that is told, and costs the run nothing else."""
    path = output / CLUSTER
    try:
        with writing(path, "evenstep status needs --run and --address"):
            write_json_aside(path, place._asdict())
    except FileNotWritten as error:
        tell(str(error))
    try:
        yield
    finally:
        with suppress(OSError):  # one that stays names a cluster that is gone, which `evenstep status` says
            path.unlink(missing_ok=True)


def place_of(output: Path) -> LivePlace | None:
    """Where the run of a directory is reached; None if it has noted nothing that can be read."""
    try:
        refuse_not_plain(output / CLUSTER)
        noted = json.loads((output / CLUSTER).read_text(encoding="utf-8"))
        return LivePlace(str(noted["run"]), str(noted["address"]), str(noted["namespace"]))
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
