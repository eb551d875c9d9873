"""The way in of the `evenstep` command: light, since every process that `evenstep check` spawns imports it anew."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the command line."""
    from runtime.cli.app import app

    # Classes and functions that a configuration names (samplers, verifiers) lie in the folder it is run from.
    sys.path.insert(0, os.getcwd())
    app()
