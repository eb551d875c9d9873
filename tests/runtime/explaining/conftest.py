"""Samplers from outside are loaded by `explaining_helpers:ClassName`; the bookkeeping helpers are used here too."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))
