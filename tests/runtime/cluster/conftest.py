"""The helpers of the tests of runs on Ray are used here, but not their session."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "ray"))
