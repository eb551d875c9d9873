"""Samplers from outside are loaded by `explaining_helpers:ClassName`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
