"""`evenstep` itself."""

from importlib.metadata import version

from typer.testing import CliRunner

from runtime.cli.app import app


def test_it_tells_its_version() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert result.exit_code == 0
    assert result.output == f"evenstep {version('evenstep')}\n"
