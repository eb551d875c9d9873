"""`evenstep check` in this process, with all that it and the processes it forks print."""

from typing import NamedTuple

import pytest

from runtime.cli.app import app


class Ended(NamedTuple):
    """How a command ended."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        """All that was printed."""
        return self.stdout + self.stderr


def checked(capfd: pytest.CaptureFixture[str], *args: str) -> Ended:
    """`evenstep check` with these arguments."""
    capfd.readouterr()
    with pytest.raises(SystemExit) as ended:
        app(["check", *args])
    assert isinstance(ended.value.code, int)
    return Ended(ended.value.code, *capfd.readouterr())
