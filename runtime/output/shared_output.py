"""On a cluster of several nodes, every process that uses the run's directory must see the same one.

The process that starts the run puts a random token into the directory. The controller runs on its node; trainer ranks
and generation workers may run on others, where the same path can be another directory, or none.
"""

import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fsm.errors import ConfigError
from runtime.files import reason_of, writing

TOKEN_FILE = ".started-by"
"""In the run's directory, while the process that started the run lives."""


class OutputNotShared(ConfigError):
    """A process of the run does not see the run's directory."""


@dataclass(frozen=True, slots=True)
class SharedOutput:
    """A run's directory and its token."""

    output: Path
    token: str

    def look(self, who: str) -> None:
        """Raise OutputNotShared unless this process sees the directory that the run was started in."""
        try:
            found = (self.output / TOKEN_FILE).read_text(encoding="ascii")
        except OSError as error:
            raise not_shared(who, self.output, reason_of(error)) from error
        if found != self.token:
            raise not_shared(who, self.output, "another directory of that name is there")


def not_shared(who: str, path: Path, reason: str) -> OutputNotShared:
    """The error of a process that sees another file at a path of the run, or none."""
    return OutputNotShared(
        f"the run cannot start: {who} runs on {socket.gethostname()} and does not see {path} of the machine that the "
        f"run was started on: {reason}. Trainer ranks write checkpoints and the model to --output, and generation "
        "workers read the model: give --output (and policy.model_name, where it is a path) on a file system that all "
        "nodes of the cluster share, or use a cluster of one node"
    )


@contextmanager
def shared_output(output: Path) -> Iterator[SharedOutput]:
    """Put a token into the run's directory while the run lasts. Raises FileNotWritten."""
    shared = SharedOutput(output, secrets.token_hex(16))
    path = output / TOKEN_FILE
    with writing(path, "the run has not begun"):
        path.write_text(shared.token, encoding="ascii")
    try:
        yield shared
    finally:
        path.unlink(missing_ok=True)
