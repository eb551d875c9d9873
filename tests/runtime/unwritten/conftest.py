"""The helpers of the bookkeeping, the trace and the control tests are used here."""

import sys
from pathlib import Path

_TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(_TESTS), str(_TESTS / "tracing"), str(_TESTS / "control")]
