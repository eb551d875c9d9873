"""Recorded runs are made by the helpers of the tests of explain."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "explaining"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tracing"))
sys.path.insert(0, str(Path(__file__).parents[1]))
