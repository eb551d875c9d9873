"""The `evenstep` console script. Light: every process that `evenstep check` spawns imports it."""

import os
import sys


def main() -> None:
    """Run the command line."""
    from runtime.cli.app import app

    # A configuration may name classes and functions (samplers, verifiers) in the working directory.
    sys.path.insert(0, os.getcwd())
    app()
